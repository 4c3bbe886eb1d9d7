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

    def _lease_token(self, plan_id: str, given: int | None) -> int | None:
        return self.session.lease_token(plan_id, given)

    def _leasing_call(self, command: Command[PlanFound]) -> Call[Plan]:
        return Call(command, _remember_lease(self.session.leases))

    def _releasing_call(self, command: Command[PlanFound]) -> Call[Plan]:
        return Call(command, _forget_lease(self.session.leases))


def project_links(projects: Sequence[str | ProjectLink]) -> tuple[ProjectLink, ...]:
    """The links to projects of which some are only named."""
    given = (projects,) if isinstance(projects, str) else projects
    return tuple(each if isinstance(each, ProjectLink) else ProjectLink(each) for each in given)


def plan_of(answered: Answered[PlanFound]) -> Plan:
    """The plan in an answer."""
    return answered.reply.plan


def _remember_lease(leases: dict[str, int]) -> Callable[[Answered[PlanFound]], Plan]:
    def finish(answered: Answered[PlanFound]) -> Plan:
        plan = answered.reply.plan
        if plan.lease is not None:
            leases[plan.plan_id] = plan.lease.token
        return plan

    return finish


def _forget_lease(leases: dict[str, int]) -> Callable[[Answered[PlanFound]], Plan]:
    def finish(answered: Answered[PlanFound]) -> Plan:
        leases.pop(answered.reply.plan.plan_id, None)
        return answered.reply.plan

    return finish
