"""The base of the calls on plans: the leases that a session holds, and decoding of a plan.

`plans` and `subplans` both need it, and `plans` imports `subplans`; therefore it is a module of its own.

A lease is a token that a plan's `start_*` returns. The session remembers the tokens that it receives, so that callers
need not pass them, and forgets a token when the phase ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepwell.client.api.service import Service
from stepwell.client.session.calls import Answered, Call
from stepwell.domain.commands import Command
from stepwell.domain.plans.model import Plan, ProjectLink
from stepwell.domain.replies import PlanFound


class LeasedPlanCalls(Service):
    """A service whose calls acquire, show and give up leases."""

    def _lease_token(self, plan_id: str, given: int | None) -> int | None:
        """Return the given token or, for None, the one that the session remembers for the plan."""
        return self.session.lease_token(plan_id, given)

    def _leasing_call(self, command: Command[PlanFound]) -> Call[Plan]:
        """Return a call whose result carries a new lease, which the session remembers."""
        return Call(command, _remember_lease(self.session.leases))

    def _releasing_call(self, command: Command[PlanFound]) -> Call[Plan]:
        """Return a call that ends the lease of its plan, which the session forgets when the call succeeds."""
        return Call(command, _forget_lease(self.session.leases))


def project_links(projects: Sequence[str | ProjectLink]) -> tuple[ProjectLink, ...]:
    """Return links to projects, of which some may be given by name only."""
    given = (projects,) if isinstance(projects, str) else projects
    return tuple(each if isinstance(each, ProjectLink) else ProjectLink(each) for each in given)


def name_tuple(names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return names as a tuple, of which a single one may be given as it is; None stays None."""
    return (names,) if isinstance(names, str) else None if names is None else tuple(names)


def plan_of(answered: Answered[PlanFound]) -> Plan:
    """Return the plan in an answer."""
    return answered.reply.plan


def _remember_lease(leases: dict[str, int]) -> Callable[[Answered[PlanFound]], Plan]:
    """Return a `finish` function that stores the lease of the plan in `leases`."""

    def finish(answered: Answered[PlanFound]) -> Plan:
        plan = answered.reply.plan
        if plan.lease is not None:
            leases[plan.plan_id] = plan.lease.token
        return plan

    return finish


def _forget_lease(leases: dict[str, int]) -> Callable[[Answered[PlanFound]], Plan]:
    """Return a `finish` function that removes the plan from `leases`."""

    def finish(answered: Answered[PlanFound]) -> Plan:
        leases.pop(answered.reply.plan.plan_id, None)
        return answered.reply.plan

    return finish
