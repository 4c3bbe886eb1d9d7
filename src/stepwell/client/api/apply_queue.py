"""The calls on queues of applies: join the queue of a tree, leave it, and read it.

`PlanExecutionContext.apply(wait=True)` uses them. They are for programs that apply plans in another way.
"""

from __future__ import annotations

from stepwell.client.api.service import Service, method
from stepwell.client.session.calls import Call
from stepwell.domain.applies.commands import GetApplyQueue, JoinApplyQueue, LeaveApplyQueue
from stepwell.domain.applies.model import ApplyTicket
from stepwell.domain.replies import ApplyQueued, ApplyQueueFound


class ApplyQueueCalls(Service):
    """The calls on queues of applies; their result depends on the kind of service."""

    @method
    def join_apply_queue(
        self, plan_id: str, tree: str, *, priority: int = 0, ticket_id: str | None = None
    ) -> Call[ApplyQueued]:
        """Join the queue of a tree with a plan that is queued for apply, and return the ticket, with its place.

        `tree` is the real path of the root. The plan with the highest `priority` comes first, and of equal ones that
        which has waited longest; a plan that is being applied is not interrupted. At place 1 it is the plan's turn:
        begin, or call this again with the `ticket_id` within `limits.APPLY_TURN_MS`; otherwise the ticket ends. An
        `ApplyPlaceChanged` event tells each change of the place. The ticket ends with the session, and when the plan is
        applied or can be applied no more. Raises `PlanNotReady` if the plan is not queued for apply, and `Busy` if the
        queue is full.
        """
        return Call(JoinApplyQueue(ticket_id or self.session.new_id(), plan_id, tree, priority))

    @method
    def leave_apply_queue(self, ticket_id: str) -> Call[ApplyTicket | None]:
        """End a ticket, also one of another session. Return it; None if it has ended already."""
        return Call(LeaveApplyQueue(ticket_id), lambda answered: answered.reply.ticket)

    @method
    def apply_queue(self, tree: str) -> Call[ApplyQueueFound]:
        """Return the queue of a tree: the tickets of plans that the session may see, and the number of all plans."""
        return Call(GetApplyQueue(tree))
