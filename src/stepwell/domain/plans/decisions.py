"""The rules of decisions: each plan has a tree of decisions that only grows.

A decision is recorded under the plan's lease and is never changed, except that it can be marked as superseded. A
checkpoint is a decision at which a later reversion stops: the decisions up to the last checkpoint stay valid.
"""

from __future__ import annotations

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.leases import find_plan, require_lease
from stepwell.domain.paging import build_page, cursor_number
from stepwell.domain.plans.commands import ListDecisions, RecordDecision
from stepwell.domain.plans.model import Decision, Plan
from stepwell.domain.replies import DecisionFound, DecisionPage
from stepwell.domain.state import State
from stepwell.domain.verdict import AnyChange, Origin, RowChanged, Verdict, decides
from stepwell.errors import AlreadyExists, Busy, NotFound


@decides(RecordDecision)
def record_decision(state: State, command: RecordDecision, origin: Origin) -> Verdict:
    """Add a decision below its parent decision, or as a root if it names none. Needs the plan's lease.

    The phase and the attempt of the plan are stored with the decision, so that a reader can tell decisions of an
    abandoned attempt from the present ones.
    """
    plan = find_plan(state, command.plan_id, origin)
    require_lease(plan, command.lease, origin)
    if state.decisions.get(command.decision_id):
        raise AlreadyExists(f"decision {command.decision_id!r} is recorded already")
    if command.parent_id is not None and command.parent_id not in plan.decision_ids:
        raise NotFound(f"plan {plan.plan_id!r} has no decision {command.parent_id!r} to be its parent")
    if len(plan.decision_ids) >= limits.DECISIONS_PER_PLAN_MAX:
        raise Busy(f"plan {plan.plan_id!r} has {limits.DECISIONS_PER_PLAN_MAX} decisions already")
    decision = Decision(
        plan_id=plan.plan_id,
        decision_id=command.decision_id,
        parent_id=command.parent_id,
        question=command.question,
        choice=command.choice,
        rationale=command.rationale,
        phase=plan.phase,
        attempt=plan.attempt,
        recorded_at_ms=origin.now_ms,
        checkpoint=command.checkpoint,
    )
    grown = replace(
        plan,
        decision_ids=(*plan.decision_ids, decision.decision_id),
        last_checkpoint_id=decision.decision_id if command.checkpoint else plan.last_checkpoint_id,
    )
    return Verdict(DecisionFound(decision), (RowChanged(None, decision), RowChanged(plan, grown)))


@decides(ListDecisions)
def list_decisions(state: State, command: ListDecisions, origin: Origin) -> Verdict:
    """Return a page of a plan's decisions in the order of recording, including superseded ones.

    The cursor is the number of the last decision of the page. It stays valid, because decisions are only appended.
    """
    plan = find_plan(state, command.plan_id, origin)
    start = cursor_number(command.cursor)
    numbered = list(enumerate(plan.decision_ids, 1))[start:]
    page, cursor = build_page(
        ((number, state.decisions.rows[decision_id]) for number, decision_id in numbered),
        command.limit,
        lambda pair: str(pair[0]),
        # A character is at most four bytes in UTF-8.
        size_of=lambda pair: 4 * (len(pair[1].question) + len(pair[1].choice) + len(pair[1].rationale)),
    )
    return Verdict(DecisionPage(tuple(decision for _, decision in page), cursor))


def supersede_decisions(state: State, plan: Plan, now_ms: int, *, entirely: bool = False) -> list[AnyChange]:
    """Return the changes that mark the decisions after the last checkpoint as superseded, or all if `entirely` is true.

    A reversion keeps the decisions up to the checkpoint, because the plan begins again from there. A rollback
    supersedes all, because nothing of the plan is in effect afterwards.
    """
    valid_count = (
        plan.decision_ids.index(plan.last_checkpoint_id) + 1 if plan.last_checkpoint_id and not entirely else 0
    )
    later = (state.decisions.rows[decision_id] for decision_id in plan.decision_ids[valid_count:])
    return [
        RowChanged(decision, replace(decision, superseded_at_ms=now_ms))
        for decision in later
        if decision.superseded_at_ms is None
    ]
