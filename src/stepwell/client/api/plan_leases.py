"""What the calls on plans share: the leases that a session holds, and what to make of a plan that comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepwell.client.api.service import Service
from stepwell.client.session.calls import Answered, Call
from stepwell.domain.commands import Command
from stepwell.domain.plans.model import Plan, ProjectLink
from stepwell.domain.replies import PlanFound


class LeasedPlanCalls(Service):
    """A service that remembers the leases it is given, and forgets those that it gives up."""

    def _lease(self, plan_id: str, given: int | None) -> int | None:
        return self.session.lease(plan_id, given)

    def _start(self, command: Command[PlanFound]) -> Call[Plan]:
        return Call(command, _remembering(self.session.leases))

    def _finish(self, command: Command[PlanFound]) -> Call[Plan]:
        return Call(command, _forgetting(self.session.leases))


def links_of(projects: Sequence[str | ProjectLink]) -> tuple[ProjectLink, ...]:
    """The links to projects of which some are only named."""
    given = (projects,) if isinstance(projects, str) else projects
    return tuple(each if isinstance(each, ProjectLink) else ProjectLink(each) for each in given)


def plan_of(answered: Answered[PlanFound]) -> Plan:
    """The plan in an answer."""
    return answered.reply.plan


def _remembering(leases: dict[str, int]) -> Callable[[Answered[PlanFound]], Plan]:
    def finish(answered: Answered[PlanFound]) -> Plan:
        plan = answered.reply.plan
        if plan.lease is not None:
            leases[plan.plan_id] = plan.lease.token
        return plan

    return finish


def _forgetting(leases: dict[str, int]) -> Callable[[Answered[PlanFound]], Plan]:
    def finish(answered: Answered[PlanFound]) -> Plan:
        leases.pop(answered.reply.plan.plan_id, None)
        return answered.reply.plan

    return finish
