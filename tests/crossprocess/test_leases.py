"""A dead process's plan is free at once, and its token is worth nothing any more."""

import os

import pytest

import stepwell as sw
from tests.support.processes import CONTEXT, kill, spawned
from tests.support.programs.competitors import hold_plan, hold_plan_with_child
from tests.support.programs.storm import create_action
from tests.support.wait import promptly

AT_ONCE_SECONDS = 5.0
"""Far less than the grace of 30 s: no timeout can have been what freed the plan."""


def check_taken_back(client: sw.Client, plan_id: str, token: int) -> None:
    """The plan is queued once more, because its session has ended and not its time, and its old token opens nothing."""
    plans = client.plans
    promptly(lambda: plans.get_plan(plan_id).state is sw.PlanState.QUEUED, AT_ONCE_SECONDS)
    plan = plans.get_plan(plan_id)
    assert (str(plan.position), plan.attempt, plan.lease) == ("strategize/queued", 2, None)
    (fault,) = plan.errors
    assert fault.message.startswith("lease lost: session ")
    for use in (
        lambda: plans.complete_strategize(plan_id, lease=token),
        lambda: plans.fail_strategize(plan_id, "late", lease=token),
        lambda: plans.renew_lease(plan_id, lease=token),
        lambda: plans.record_decision(plan_id, question="q", choice="c", lease=token),
        lambda: client.execution(plan_id, lease=token).start_changeset(),
    ):
        with pytest.raises((sw.LeaseLost, sw.PlanNotReady)):
            use()
    plans.start_strategize(plan_id)
    with pytest.raises(sw.LeaseLost):
        plans.complete_strategize(plan_id, lease=token)
    assert str(plans.complete_strategize(plan_id).position) == "strategize/complete"


def test_killed_owner_loses_its_lease_at_once() -> None:
    """SIGKILL of the process that holds the lease: attempt + 1, the loss in errors, the old token refused."""
    with sw.Runtime.start(workers=0) as runtime, runtime.client() as client:
        create_action(client, "act")
        plan_id = client.plans.use_action("act", projects=["p"]).plan_id
        ours, theirs = CONTEXT.Pipe()
        with ours, theirs, spawned(hold_plan, runtime.address, plan_id, theirs) as owner:
            token = ours.recv()
            assert owner.pid is not None
            with pytest.raises((sw.LeaseLost, sw.PlanNotReady)):
                client.plans.start_strategize(plan_id)
            kill(owner.pid)
            check_taken_back(client, plan_id, token)


def test_child_that_holds_the_socket_does_not_hold_the_lease() -> None:
    """The owner is dead, but a child that it forked keeps its connection open: the pidfd tells, not the EOF."""
    with sw.Runtime.start(workers=0) as runtime, runtime.client() as client:
        create_action(client, "act")
        plan_id = client.plans.use_action("act", projects=["p"]).plan_id
        ours, theirs = CONTEXT.Pipe()
        until, release = os.pipe()
        with ours, theirs, os.fdopen(until), os.fdopen(release, "wb"):
            with spawned(hold_plan_with_child, runtime.address, plan_id, theirs, until) as owner:
                token = ours.recv()
                assert owner.pid is not None
                kill(owner.pid)
                check_taken_back(client, plan_id, token)
