"""Bugs of teams: agents that are given what they cannot do, or that are sent away too soon."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from msgspec import Struct
from msgspec.structs import replace

from stepwell.domain.leases import find_plan
from stepwell.domain.plans import plan_tree, subplans
from stepwell.domain.plans.abilities import LimitedAgent
from stepwell.domain.plans.model import Plan
from stepwell.domain.state import State
from stepwell.domain.verdict import Origin
from stepwell.storage import rows
from stepwell.storage.table import Value
from tests.simulator.bugs.registry import bug, patched


@bug("A child is given to any agent that asks, whatever it can do.")
def abilities_ignored() -> AbstractContextManager[None]:
    return patched((subplans, "_can_start", lambda _state, _agent, _child: True))


@bug("An agent is sent away if no child is ready that it can do, although one may come back.")
def agent_sent_away_too_soon() -> AbstractContextManager[None]:
    def is_for_others(state: State, parent: Plan, agent: LimitedAgent, origin: Origin) -> bool:
        ready = plan_tree.ready_children(state, find_plan(state, parent.plan_id, origin))
        return parent.subplans is not None and not any(subplans._can_start(state, agent, child) for child in ready)

    return patched((subplans, "_is_for_others", is_for_others))


@bug("The labels of plans are not restored when the manager starts.")
def labels_lost_at_restart() -> AbstractContextManager[None]:
    restore = rows.RowTable.row

    def row(self: rows.RowTable[Struct], values: Sequence[Value]) -> Struct:
        found = restore(self, values)
        return replace(found, labels=()) if isinstance(found, Plan) else found

    return patched((rows.RowTable, "row", row))
