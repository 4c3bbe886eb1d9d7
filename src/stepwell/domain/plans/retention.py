"""Forgetting the plans that are over: whole trees, those that ended first before others, a bounded step at a time.

A tree that is larger than a step loses what its plans have, the last first, over as many steps as that takes. The
plans themselves go together, in the last of them: no step leaves a parent without its child.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.changesets.model import Changeset, EntryRow
from stepwell.domain.plans.commands import ForgetPlans
from stepwell.domain.plans.model import Decision, Plan
from stepwell.domain.replies import PlansForgotten
from stepwell.domain.state import State
from stepwell.domain.verdict import AnyChange, Origin, RowChanged, Verdict, decides

OwnedRow = EntryRow | Changeset | Decision
"""What a plan has. Contexts are not among it: they own open changesets, and an idle plan has none."""


@decides(ForgetPlans)
def forget_plans(state: State, command: ForgetPlans, _origin: Origin) -> Verdict:
    """As many trees as fit in a step, or a part of one that fits in none."""
    changes: list[AnyChange] = []
    forgotten: list[str] = []
    for root_plan_id in _due_roots(state, command):
        plans = state.plans.tree(root_plan_id)
        if any(plan.lease for plan in plans):  # whoever works below it is not left without a plan
            continue
        if len(changes) + sum(_row_count(state, plan) for plan in plans) > limits.FORGOTTEN_ROWS_PER_STEP_MAX:
            return Verdict(
                PlansForgotten(tuple(forgotten), more=True), tuple(changes or _partial_removal(state, plans))
            )
        for plan in plans:
            changes += (RowChanged(row, None) for row in _owned_rows(state, plan))
            changes.append(RowChanged(plan, None))
            forgotten.append(plan.plan_id)
    return Verdict(PlansForgotten(tuple(forgotten)), tuple(changes))


def _due_roots(state: State, command: ForgetPlans) -> Iterator[str]:
    """The roots that are too old or too many, in order of their end."""
    surplus = len(state.plans.by_end) - command.keep
    for position, (ended_at_ms, plan_id) in enumerate(state.plans.by_end):
        if position >= surplus and ended_at_ms >= command.before_ms:
            return
        yield plan_id


def _row_count(state: State, plan: Plan) -> int:
    """How many rows a plan is, itself included."""
    return 1 + len(plan.changeset_ids) + len(plan.decision_ids) + state.entries.by_plan.get(plan.plan_id, 0)


def _owned_rows(state: State, plan: Plan) -> Iterator[OwnedRow]:
    """All that a plan has, the last of each kind first: whatever is left after some of it is sound."""
    for changeset_id in reversed(plan.changeset_ids):
        yield from reversed(state.entries.of(changeset_id))
        yield state.changesets.rows[changeset_id]
    for decision_id in reversed(plan.decision_ids):
        yield state.decisions.rows[decision_id]


def _partial_removal(state: State, plans: list[Plan]) -> list[AnyChange]:
    """A step's worth of what the plans of a tree have."""
    changes: list[AnyChange] = []
    for plan in plans:
        room = limits.FORGOTTEN_ROWS_PER_STEP_MAX - len(changes) - 2  # for what is left of a changeset and the plan
        if removed := list(islice(_owned_rows(state, plan), max(0, room))):
            changes += (RowChanged(row, None) for row in removed)
            changes += _updated_owners(state, plan, removed)
    return changes


def _updated_owners(state: State, plan: Plan, removed: list[OwnedRow]) -> Iterator[AnyChange]:
    """The rows that say how much a plan has, when it has these no longer."""
    last = removed[-1]
    if isinstance(last, EntryRow):
        changeset = state.changesets.rows[last.changeset_id]
        yield RowChanged(changeset, replace(changeset, entry_count=last.seq - 1))
    changesets = sum(isinstance(row, Changeset) for row in removed)
    decisions = sum(isinstance(row, Decision) for row in removed)
    if changesets or decisions:
        decision_ids = plan.decision_ids[: len(plan.decision_ids) - decisions]
        yield RowChanged(
            plan,
            replace(
                plan,
                changeset_ids=plan.changeset_ids[: len(plan.changeset_ids) - changesets],
                decision_ids=decision_ids,
                last_checkpoint_id=plan.last_checkpoint_id if plan.last_checkpoint_id in decision_ids else None,
            ),
        )
