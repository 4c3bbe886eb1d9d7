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

SHORT_MS = 60


@pytest.fixture
def plan(client: sw.Client) -> sw.Plan:
    """A plan that this client executes, for a short while."""
    started = executing(client, "beating", (client.projects or ("",))[0])
    assert started.lease is not None
    return started


def beating(client: sw.Client, plan: sw.Plan, lease_ms: int = SHORT_MS) -> Heartbeat:
    assert plan.lease is not None
    return Heartbeat(client.session, plan.plan_id, plan.lease.token, lease_ms)


def lost(heartbeat: Heartbeat) -> Callable[[], bool]:
    def is_lost() -> bool:
        try:
            heartbeat.check()
        except sw.LeaseLost:
            return True
        return False

    return is_lost


def test_renews(client: sw.Client, plan: sw.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again; and not after the block."""
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS_MAX", 0.01)
    with client.watch() as events, beating(client, plan, lease_ms=limits.LEASE_MS) as heartbeat:
        for _ in range(4):
            assert isinstance(events.get(60), sw.events.LeaseRenewed)
            heartbeat.check()
    with client.watch() as events:
        assert events.get(0.03) is None


def test_cancelled(client: sw.Client, plan: sw.Plan) -> None:
    """Whoever works is told by the next renewal, with what to do."""
    with beating(client, plan) as heartbeat:
        heartbeat.check()
        client.plans.cancel_plan(plan.plan_id)
        eventually(lost(heartbeat))
        with pytest.raises(sw.LeaseLost, match="stop working") as caught:
            heartbeat.check()
        assert caught.value.details["plan_id"] == plan.plan_id


def test_told_soon(client: sw.Client, plan: sw.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the lease is."""
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS_MAX", 0.01)
    with beating(client, plan, lease_ms=limits.LEASE_MS) as heartbeat:
        client.plans.cancel_plan(plan.plan_id)
        eventually(lost(heartbeat), 60)


def test_nobody_there(runtime: LocalRuntime, client: sw.Client, plan: sw.Plan) -> None:
    """The lease is over when its time is: nobody knows what the manager would say."""
    with beating(client, plan, lease_ms=3_000) as heartbeat:
        runtime.kill()
        heartbeat.check()
        eventually(lost(heartbeat))
        with pytest.raises(sw.LeaseLost, match="not renewed in time"):
            heartbeat.check()


def test_stopped_for_longer_than_the_lease(client: sw.Client, plan: sw.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wakes up knows at once, before anybody is asked."""
    with beating(client, plan, lease_ms=limits.LEASE_MS) as heartbeat:
        heartbeat.check()
        later_s = now_s() + limits.LEASE_MS / 1000
        monkeypatch.setattr("stepwell.client.workflows.heartbeat.now_s", lambda: later_s)
        with pytest.raises(sw.LeaseLost, match="not renewed in time"):
            heartbeat.check()
        monkeypatch.undo()


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
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS_MAX", 0.05)
    with beating(client, plan, lease_ms=limits.LEASE_MS) as heartbeat:
        assert answered.wait(60)
        heartbeat.check()
