"""Retention: delete trees of plans that are over, oldest end first, in steps of bounded size.

A tree is deleted as a whole. If it has more rows than fit into a step, the first steps delete rows that its plans own
(entries, changesets, decisions), the newest first, and the last step deletes the plans together. No step leaves a
parent without its child, or a changeset whose count of entries is wrong, so every intermediate state is consistent and
survives a restart of the manager.
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
"""A row that belongs to a plan and is deleted with it.

Execution contexts are not among them: they exist while a changeset is open, and a plan without a lease has no open one.
"""


@decides(ForgetPlans)
def forget_plans(state: State, command: ForgetPlans, _origin: Origin) -> Verdict:
    """Delete as many trees as fit into a step, or a part of one tree that does not fit into any step.

    The reply says whether more is left, so that the manager repeats the command between other requests.
    """
    changes: list[AnyChange] = []
    forgotten: list[str] = []
    for root_plan_id in _due_roots(state, command):
        plans = state.plans.tree(root_plan_id)
        if any(plan.lease for plan in plans):  # never delete a plan while a session works on it
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
    """Iterate over the roots that ended too long ago, or that are more than the number to keep, in order of
    their end.
    """
    surplus = len(state.plans.by_end) - command.keep
    for position, (ended_at_ms, plan_id) in enumerate(state.plans.by_end):
        if position >= surplus and ended_at_ms >= command.before_ms:
            return
        yield plan_id


def _row_count(state: State, plan: Plan) -> int:
    """Return the number of rows that deleting the plan deletes, including the plan itself."""
    return 1 + len(plan.changeset_ids) + len(plan.decision_ids) + state.entries.by_plan.get(plan.plan_id, 0)


def _owned_rows(state: State, plan: Plan) -> Iterator[OwnedRow]:
    """Iterate over the rows that the plan owns, the newest of each kind first.

    A prefix of this order can be deleted alone: every entry goes before its changeset, and what remains is a valid,
    shorter history of the plan.
    """
    for changeset_id in reversed(plan.changeset_ids):
        yield from reversed(state.entries.of(changeset_id))
        yield state.changesets.rows[changeset_id]
    for decision_id in reversed(plan.decision_ids):
        yield state.decisions.rows[decision_id]


def _partial_removal(state: State, plans: list[Plan]) -> list[AnyChange]:
    """Return one step's worth of deletions of rows that the plans of a tree own."""
    changes: list[AnyChange] = []
    for plan in plans:
        room = limits.FORGOTTEN_ROWS_PER_STEP_MAX - len(changes) - 2  # two updates: a changeset and the plan
        if removed := list(islice(_owned_rows(state, plan), max(0, room))):
            changes += (RowChanged(row, None) for row in removed)
            changes += _updated_owners(state, plan, removed)
    return changes


def _updated_owners(state: State, plan: Plan, removed: list[OwnedRow]) -> Iterator[AnyChange]:
    """Return the updates of the rows that count or list the removed rows: the last changeset, and the plan."""
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
