"""Execute a plan from a command: take its lease, or work under the lease of another process, and renew it meanwhile.

A lease belongs to a session, and a session ends with its process. A command therefore completes what it starts, or the
plan is queued again when the command ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

from stepwell import limits
from stepwell.cli.common.output import print_error
from stepwell.cli.common.parameters import option, whole_number
from stepwell.cli.plan.common.format import local_time
from stepwell.client.client import Client
from stepwell.domain.plans.model import Phase, Plan, PlanState
from stepwell.errors import PlanNotReady, StepwellError

RENEW_SECONDS: Final = limits.LEASE_MS / 1000 / 5
"""The lease is renewed five times before it would expire, so that some renewals may fail."""

Lease = Annotated[
    int | None,
    option(
        "--lease",
        metavar="TOKEN",
        parse=whole_number,
        about="work under a lease that another process holds, and leave it to that one to complete the execution",
    ),
]


def start_execution(client: Client, plan: Plan, lease: int | None) -> Plan:
    """Return the plan, executing: under a new lease of this session, or under the lease that was given.

    A plan without a strategy goes straight to execute. Any other position is refused, with advice.
    """
    plans = client.plans
    match plan.position:
        case (Phase.EXECUTE, PlanState.PROCESSING) if lease is not None:
            return plans.renew_lease(plan.plan_id, lease=lease)
        case (Phase.STRATEGIZE, PlanState.QUEUED) if lease is None:
            plans.start_strategize(plan.plan_id)
            return plans.proceed(plan.plan_id)
        case (Phase.STRATEGIZE, PlanState.COMPLETE) if lease is None:
            plans.execute_plan(plan.plan_id)
            return plans.start_execute(plan.plan_id)
        case (Phase.EXECUTE, PlanState.QUEUED) if lease is None:
            return plans.start_execute(plan.plan_id)
        case _:
            raise PlanNotReady(f"plan {plan.plan_id} is {plan.position}: {_advice(plan, lease)}; nothing was done")


def _advice(plan: Plan, lease: int | None) -> str:
    """Return the advice for a plan at a position at which nothing can be recorded."""
    if plan.lease is not None:
        until = local_time(plan.lease.expires_at_ms)
        return f"another session works on it, until {until} at least; wait, or give --lease if it is yours"
    if lease is not None:
        return "no session works on it, so the lease is over; leave out --lease"
    match plan.state:
        case PlanState.ERRORED:
            return "`stepwell plan retry` queues it again"
        case PlanState.CANCELLED | PlanState.APPLIED:
            return "it is over; `stepwell plan new` makes another one"
        case _:
            return "what it changes is recorded; `stepwell plan apply` it, or `stepwell plan revert` it to begin anew"


def lease_renewer(client: Client, plan_id: str, lease: int | None) -> Callable[[], None]:
    """Return a function that renews the lease once. It is called again and again while the command runs.

    A lost lease is reported once, at once, because the work of the command will not be recorded. The command is not
    stopped: it may be an editor with unsaved text.
    """
    is_lost = False

    def renew() -> None:
        nonlocal is_lost
        if is_lost:
            return
        try:
            client.plans.renew_lease(plan_id, lease=lease)
        except StepwellError as error:
            is_lost = not error.retry
            print_error(f"what the command changes may not be recorded: {error.message}")

    return renew
