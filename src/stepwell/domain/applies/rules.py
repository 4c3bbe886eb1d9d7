"""The rules of queues of applies: join one, leave it, read it. `turns` has their order."""

from __future__ import annotations

from collections.abc import Iterable

from stepwell import limits
from stepwell.domain.applies.commands import GetApplyQueue, JoinApplyQueue, LeaveApplyQueue
from stepwell.domain.applies.model import ApplyTicket
from stepwell.domain.applies.turns import QUEUED, is_at_work, new_ticket, plan_count, queue_changes
from stepwell.domain.leases import find_plan
from stepwell.domain.replies import ApplyQueued, ApplyQueueFound, ApplyQueueLeft
from stepwell.domain.state import State
from stepwell.domain.verdict import Origin, Verdict, decides
from stepwell.errors import AlreadyExists, Busy, PlanNotReady


@decides(JoinApplyQueue)
def join_apply_queue(state: State, command: JoinApplyQueue, origin: Origin) -> Verdict:
    """Add a ticket to the queue of a tree; a ticket that is there already keeps its place, and its turn gets more time.

    The plan has to be queued for apply. An applied plan, or one that executes, has nothing to wait for.
    """
    plan = find_plan(state, command.plan_id, origin)
    known = state.tickets.get(command.ticket_id)
    if known is not None:
        if (known.tree, known.plan_id, known.session_id) != (command.tree, command.plan_id, origin.session_id):
            raise AlreadyExists(f"ticket {command.ticket_id!r} exists already: join with another id")
        changes = queue_changes(state, command.tree, origin.now_ms, renewed={known.ticket_id})
    elif plan.position != QUEUED:
        raise PlanNotReady(
            f"plan {plan.plan_id!r} is {plan.position}: a plan waits for its turn while it is {QUEUED}",
            plan_id=plan.plan_id,
            phase=str(plan.phase),
            state=str(plan.state),
        )
    else:
        _require_room(state, command.tree, origin)
        added = new_ticket(
            state,
            origin,
            ticket_id=command.ticket_id,
            plan_id=command.plan_id,
            tree=command.tree,
            priority=command.priority,
        )
        changes = queue_changes(state, command.tree, origin.now_ms, added=added)
    found = {each.ticket_id: each for each in state.tickets.queue(command.tree)}
    found |= {each.after.ticket_id: each.after for each in changes if isinstance(each.after, ApplyTicket)}
    reply = ApplyQueued(
        found[command.ticket_id], plan_count(found.values()), _applied_now(state, found.values(), origin)
    )
    return Verdict(reply, tuple(changes))


@decides(LeaveApplyQueue)
def leave_apply_queue(state: State, command: LeaveApplyQueue, origin: Origin) -> Verdict:
    """End a ticket, of whichever session that sees its plan. Without one, or with one outside the scope, do nothing."""
    ticket = state.tickets.get(command.ticket_id)
    if ticket is None or not origin.sees(state.plans.rows[ticket.plan_id].projects):
        return Verdict(ApplyQueueLeft(None))
    changes = queue_changes(state, ticket.tree, origin.now_ms, without={ticket.ticket_id})
    return Verdict(ApplyQueueLeft(ticket), tuple(changes))


@decides(GetApplyQueue)
def get_apply_queue(state: State, command: GetApplyQueue, origin: Origin) -> Verdict:
    """Return the tickets of a tree whose plans the session may see, and the number of all plans in the queue."""
    queue = state.tickets.queue(command.tree)
    seen = tuple(each for each in queue if origin.sees(state.plans.rows[each.plan_id].projects))
    at_work = plan_count(each for each in queue if is_at_work(state, each))
    return Verdict(ApplyQueueFound(seen, plan_count(queue), at_work))


def _require_room(state: State, tree: str, origin: Origin) -> None:
    """Raise `Busy` if the queue, the session or the manager has the maximum number of tickets."""
    for count, maximum, where in (
        (len(state.tickets.by_tree.get(tree, ())), limits.APPLY_QUEUE_MAX, f"callers wait for {tree!r}"),
        (
            len(state.tickets.by_session.get(origin.session_id, ())),
            limits.APPLY_TICKETS_PER_SESSION_MAX,
            "applies of this session wait",
        ),
        (len(state.tickets), limits.APPLY_TICKETS_MAX, "applies wait"),
    ):
        if count >= maximum:
            raise Busy(f"{maximum} {where} already: try again when some have ended")


def _applied_now(state: State, tickets: Iterable[ApplyTicket], origin: Origin) -> str | None:
    """Return the plan that is being applied, if there is one and the session may see it."""
    for each in tickets:
        if is_at_work(state, each) and origin.sees(state.plans.rows[each.plan_id].projects):
            return each.plan_id
    return None
