"""Bugs of teams: agents that are given what they cannot do or sent away too soon, and queues in a wrong order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager

from msgspec import Struct
from msgspec.structs import replace

from stepwell.domain import machine
from stepwell.domain.applies import turns
from stepwell.domain.applies.model import ApplyTicket
from stepwell.domain.command_roots import Command
from stepwell.domain.leases import find_plan
from stepwell.domain.plans import plan_tree, subplans
from stepwell.domain.plans import rules as plan_rules
from stepwell.domain.plans.abilities import LimitedAgent
from stepwell.domain.plans.commands import EndSession, ExpireLeases
from stepwell.domain.plans.model import Plan
from stepwell.domain.replies import Reply
from stepwell.domain.state import State
from stepwell.domain.verdict import Origin, Verdict
from stepwell.storage import rows
from stepwell.storage.table import Value
from tests.simulator.bugs.registry import bug, do_nothing, patched


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


@bug("Plans wait for a tree in the order in which they came, whatever their priority.")
def queue_ignores_priority() -> AbstractContextManager[None]:
    places = turns._places

    def by_age(tickets: Sequence[ApplyTicket], busy: Collection[str]) -> dict[str, int]:
        return places([replace(each, priority=0) for each in tickets], busy)

    return patched((turns, "_places", by_age))


@bug("A plan begins to be applied although others wait for the tree.")
def apply_overtakes_queue() -> AbstractContextManager[None]:
    return patched((plan_rules, "require_apply_turn", do_nothing))


@bug("The tickets of a session that has ended stay in the queue.")
def tickets_outlive_session() -> AbstractContextManager[None]:
    def end_tickets(state: State, command: Command[Reply], verdict: Verdict, origin: Origin) -> Verdict:
        return verdict if isinstance(command, EndSession) else turns.end_tickets(state, command, verdict, origin)

    return patched((machine, "end_tickets", end_tickets))


@bug("A turn that is not used does not end.")
def turn_does_not_end() -> AbstractContextManager[None]:
    def end_tickets(state: State, command: Command[Reply], verdict: Verdict, origin: Origin) -> Verdict:
        return verdict if isinstance(command, ExpireLeases) else turns.end_tickets(state, command, verdict, origin)

    return patched((machine, "end_tickets", end_tickets))
