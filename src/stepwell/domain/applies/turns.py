"""The order of a queue of applies, and the end of tickets whose plan or session has moved on.

The plan that is being applied comes first, then the plan with the highest priority, then the one that has waited
longest. Whenever tickets come or end, all places of their queue are computed anew: a queue is short (see
`limits.APPLY_QUEUE_MAX`), and a place that is stored gives the event that tells its caller.

A ticket ends, in the same step, when

- its plan is neither queued for apply nor being applied any more: applied, constrained, errored, reverted, cancelled;
- its session lost the lease under which its plan was being applied;
- its session has ended, for instance because its process has died;
- its turn has come, and its caller has neither begun nor asked again in time, for instance because it is stopped;
- its plan is started, but not at the ticket's tree;
- its caller leaves.

So no caller that is gone holds up the others for longer than `limits.APPLY_TURN_MS`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Final

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.applies.model import ApplyTicket, queued_error
from stepwell.domain.command_roots import Command
from stepwell.domain.plans.commands import EndSession, ExpireLeases
from stepwell.domain.plans.model import Phase, Plan, PlanState, Position
from stepwell.domain.replies import Reply
from stepwell.domain.state import State
from stepwell.domain.verdict import AnyChange, Origin, RowChanged, Verdict

QUEUED: Final = Position(Phase.APPLY, PlanState.QUEUED)
_AT_WORK: Final = Position(Phase.APPLY, PlanState.PROCESSING)


def is_at_work(state: State, ticket: ApplyTicket) -> bool:
    """Return True if the plan of a ticket is being applied."""
    return state.plans.rows[ticket.plan_id].position == _AT_WORK


def first_waiting(state: State, tree: str) -> ApplyTicket | None:
    """Return the first ticket of a queue whose plan is not being applied yet; None if no plan waits."""
    return next((each for each in state.tickets.queue(tree) if not is_at_work(state, each)), None)


def plan_count(tickets: Iterable[ApplyTicket]) -> int:
    """Return the number of different plans."""
    return len({each.plan_id for each in tickets})


def require_apply_turn(state: State, plan: Plan, tree: str, origin: Origin) -> None:
    """Raise `TreeQueued` if another plan waits for the tree, and comes before this one."""
    first = first_waiting(state, tree)
    if first is None or first.plan_id == plan.plan_id:
        return
    queue = state.tickets.queue(tree)
    count = plan_count(queue)
    place = next((each.place for each in queue if each.plan_id == plan.plan_id), count + 1)
    is_seen = origin.sees(state.plans.rows[first.plan_id].projects)
    raise queued_error(tree, plan.plan_id, place, count, first.plan_id if is_seen else None)


def start_changes(state: State, begun: Plan, tree: str, origin: Origin) -> list[AnyChange]:
    """Return the changes of the queues when a plan starts to be applied to a tree; '' if the caller named none.

    The plan has a ticket there while it is being applied, so that others see what they wait for. It waits for no other
    tree any more.
    """
    own = state.tickets.of_plan(begun.plan_id)
    changes: list[AnyChange] = []
    for other in sorted({each.tree for each in own if each.tree != tree}):
        gone = {each.ticket_id for each in own if each.tree == other}
        changes += queue_changes(state, other, origin.now_ms, without=gone)
    here = [each for each in own if each.tree == tree]
    has_room = len(state.tickets.by_tree.get(tree, ())) < limits.APPLY_QUEUE_MAX
    added = None
    if tree and not here and has_room and begun.plan_id not in state.tickets.rows:
        added = new_ticket(state, origin, ticket_id=begun.plan_id, plan_id=begun.plan_id, tree=tree)
    if here or added:
        changes += queue_changes(state, tree, origin.now_ms, added=added, at_work={begun.plan_id})
    return changes


def new_ticket(
    state: State, origin: Origin, *, ticket_id: str, plan_id: str, tree: str, priority: int = 0
) -> ApplyTicket:
    """Return a ticket without a place."""
    return ApplyTicket(
        ticket_id, tree, plan_id, origin.session_id, priority, origin.now_ms, state.revision + 1, place=0
    )


def queue_changes(
    state: State,
    tree: str,
    now_ms: int,
    *,
    added: ApplyTicket | None = None,
    without: Collection[str] = (),
    at_work: Collection[str] = (),
    idle: Collection[str] = (),
    renewed: Collection[str] = (),
) -> list[AnyChange]:
    """Return the changes of a queue when tickets come or end, and with them all places and turns.

    `without` are the ids of tickets that end, `renewed` those whose turn gets more time. `at_work` are the ids of plans
    that begin in this step, `idle` those that are queued again.
    """
    present = [state.tickets.rows[each] for each in sorted(state.tickets.by_tree.get(tree, ()))]
    changes: list[AnyChange] = [RowChanged(each, None) for each in present if each.ticket_id in without]
    staying = [each for each in present if each.ticket_id not in without] + ([added] if added else [])
    busy = {each.plan_id for each in staying if each.plan_id in at_work or is_at_work(state, each)}.difference(idle)
    places = _places(staying, busy)
    for ticket in staying:
        place = places[ticket.plan_id]
        until_ms = None
        if place == 1 and ticket.plan_id not in busy:
            has_turn = ticket.turn_until_ms is not None and ticket.ticket_id not in renewed
            until_ms = ticket.turn_until_ms if has_turn else now_ms + limits.APPLY_TURN_MS
        if ticket is added or (place, until_ms) != (ticket.place, ticket.turn_until_ms):
            before = None if ticket is added else ticket
            changes.append(RowChanged(before, replace(ticket, place=place, turn_until_ms=until_ms)))
    return changes


def end_tickets(state: State, command: Command[Reply], verdict: Verdict, origin: Origin) -> Verdict:
    """Return a verdict with the end of all tickets that it takes their reason from.

    The machine calls it for every verdict while there are tickets, so that no decider of plans can forget it.
    """
    gone, idle = _ended(state, verdict.changes)
    if isinstance(command, EndSession):
        gone |= state.tickets.by_session.get(command.session_id, set())
    elif isinstance(command, ExpireLeases):
        due = state.tickets.by_turn.irange(None, (origin.now_ms, "\x7f"))
        gone |= {ticket_id for _, ticket_id in islice(due, limits.EXPIRIES_PER_STEP_MAX)}
    if not gone and not idle:
        return verdict
    trees = {state.tickets.rows[each].tree for each in gone}
    trees.update(each.tree for plan_id in idle for each in state.tickets.of_plan(plan_id))
    changes = [
        change
        for tree in sorted(trees)
        for change in queue_changes(state, tree, origin.now_ms, without=gone, idle=idle)
    ]
    return replace(verdict, changes=(*verdict.changes, *changes))


def kept_turns(state: State, held_at_ms: int, until_ms: int) -> list[AnyChange]:
    """Return the changes that extend the turns which had not ended at a time, because no manager ran since then."""
    due = [*state.tickets.by_turn.irange((held_at_ms + 1, ""), (until_ms, ""))]
    tickets = [state.tickets.rows[ticket_id] for _, ticket_id in due]
    return [RowChanged(each, replace(each, turn_until_ms=until_ms)) for each in tickets]


def _places(tickets: Sequence[ApplyTicket], busy: Collection[str]) -> dict[str, int]:
    """Return the place of each plan: that of its best ticket, without gaps."""
    ordered = sorted(
        tickets, key=lambda each: (each.plan_id not in busy, -each.priority, each.revision, each.ticket_id)
    )
    return {plan_id: place for place, plan_id in enumerate(dict.fromkeys(each.plan_id for each in ordered), 1)}


def _ended(state: State, changes: Sequence[AnyChange]) -> tuple[set[str], set[str]]:
    """Return the ids of tickets that end by changes of plans, and of plans that are not being applied any more, but
    are queued again.
    """
    gone, idle = set[str](), set[str]()
    for change in changes:
        before, after = change.before, change.after
        if not isinstance(before, Plan) or before.plan_id not in state.tickets.by_plan:
            continue
        own = state.tickets.of_plan(before.plan_id)
        if not isinstance(after, Plan) or after.position not in {QUEUED, _AT_WORK}:
            gone.update(each.ticket_id for each in own)
        elif before.lease is not None and after.lease is None:
            gone.update(each.ticket_id for each in own if each.session_id == before.lease.session_id)
            idle.add(before.plan_id)
    return gone, idle
