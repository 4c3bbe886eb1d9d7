"""A lease that is kept while somebody works, and whose end is noticed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.client.session.calls import Call
from stepwell.client.workflows.heartbeat import Heartbeat, now_s
from stepwell.testing import LocalRuntime
from tests.support.client.sessions import executing
from tests.support.wait import eventually


@pytest.fixture
def plan(client: sw.Client) -> sw.Plan:
    """A plan that this client executes."""
    started = executing(client, "beating", (client.projects or ("",))[0])
    assert started.lease is not None
    return started


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewals follow each other quickly, however long the lease is."""
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS_MAX", 0.01)


def beating(client: sw.Client, plan: sw.Plan) -> Heartbeat:
    """A heartbeat of a lease that outlasts every test, however busy the machine is."""
    assert plan.lease is not None
    return Heartbeat(client.session, plan.plan_id, plan.lease.token, limits.LEASE_MS)


def let_the_lease_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    later_s = now_s() + limits.LEASE_MS / 1000
    monkeypatch.setattr("stepwell.client.workflows.heartbeat.now_s", lambda: later_s)


def lost(heartbeat: Heartbeat) -> Callable[[], bool]:
    def is_lost() -> bool:
        try:
            heartbeat.check()
        except sw.LeaseLost:
            return True
        return False

    return is_lost


@pytest.mark.usefixtures("often")
def test_renews(client: sw.Client, plan: sw.Plan) -> None:
    """Again and again; and not after the block."""
    with client.watch() as events, beating(client, plan) as heartbeat:
        for _ in range(4):
            assert isinstance(events.get(60), sw.events.LeaseRenewed)
            heartbeat.check()
    with client.watch() as events:
        assert events.get(0.03) is None


@pytest.mark.usefixtures("often")
def test_cancelled(client: sw.Client, plan: sw.Plan) -> None:
    """Whoever works is told by the next renewal, with what to do."""
    with beating(client, plan) as heartbeat:
        heartbeat.check()
        client.plans.cancel_plan(plan.plan_id)
        eventually(lost(heartbeat))
        with pytest.raises(sw.LeaseLost, match="stop working") as caught:
            heartbeat.check()
        assert caught.value.details["plan_id"] == plan.plan_id


@pytest.mark.usefixtures("often")
def test_nobody_there(runtime: LocalRuntime, client: sw.Client, plan: sw.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is over when its time is: nobody knows what the manager would say."""
    perform, in_vain = client.session.perform, threading.Event()

    def noted(call: Call[sw.Plan]) -> sw.Plan:
        try:
            return perform(call)
        except sw.RuntimeLost:
            in_vain.set()
            raise

    monkeypatch.setattr(client.session, "perform", noted)
    with beating(client, plan) as heartbeat:
        runtime.kill()
        assert in_vain.wait(60)
        heartbeat.check()
        let_the_lease_expire(monkeypatch)
        with pytest.raises(sw.LeaseLost, match="not renewed in time"):
            heartbeat.check()


def test_stopped_for_longer_than_the_lease(client: sw.Client, plan: sw.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wakes up knows at once, before anybody is asked."""
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS_MAX", limits.LEASE_MS / 1000)  # nobody is asked meanwhile
    with beating(client, plan) as heartbeat:
        heartbeat.check()
        let_the_lease_expire(monkeypatch)
        with pytest.raises(sw.LeaseLost, match="not renewed in time"):
            heartbeat.check()


@pytest.mark.usefixtures("often")
def test_busy_manager_is_asked_again(client: sw.Client, plan: sw.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no answer to whether the lease is held does not end it."""
    perform, answered = client.session.perform, threading.Event()
    problems: list[sw.StepwellError] = [sw.Busy("later"), sw.RuntimeLost("for now")]

    def troubled(call: Call[sw.Plan]) -> sw.Plan:
        if problems:
            raise problems.pop()
        answered.set()
        return perform(call)

    monkeypatch.setattr(client.session, "perform", troubled)
    with beating(client, plan) as heartbeat:
        assert answered.wait(60)
        heartbeat.check()
