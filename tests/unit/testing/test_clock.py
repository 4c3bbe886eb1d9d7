"""The clock: it stands still until it is told to go on, and then everything that is due has happened."""

from datetime import UTC, datetime, timedelta

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.testing import Clock, LocalRuntime
from tests.support.client.sessions import act, executing, fragment

HOUR = 60 * 60
DAY = 24 * HOUR


def test_it_stands_still(stepwell_runtime: LocalRuntime, stepwell_clock: Clock) -> None:
    """What happens without `advance` happens at one moment, the one that the clock was made with."""
    client = stepwell_runtime.client(projects=["p"])
    client.tiers.store(fragment())
    assert client.tiers.get("a").row.created_at_ms == stepwell_clock.now_ms()
    assert client.status().uptime_s == 0
    assert datetime.fromtimestamp(stepwell_clock.now_ms() / 1000, UTC).year == 2026


def test_leases_end(stepwell_runtime: LocalRuntime, stepwell_clock: Clock) -> None:
    """A worker that was paused for longer than its lease cannot go on, and somebody else can."""
    paused, other = stepwell_runtime.client(), stepwell_runtime.client()
    plan = executing(paused, "work", "p")
    stepwell_clock.advance(limits.LEASE_MS / 1000 - 1)
    assert paused.plans.get_plan(plan.plan_id).position == plan.position
    stepwell_clock.advance(1)
    with pytest.raises(sw.LeaseLost):
        paused.plans.complete_execute(plan.plan_id)
    assert other.plans.start_execute(plan.plan_id).attempt == plan.attempt + 1


def test_fragments_go_down_and_out(stepwell_runtime: LocalRuntime, stepwell_clock: Clock) -> None:
    """An hour after it was used last a fragment is warm, a day later cold, and three months later gone."""
    tiers = stepwell_runtime.client(projects=["p"]).tiers
    tiers.store(fragment())
    found = []
    for passed in (HOUR - 1, 1, DAY - 1, 1, 90 * DAY - 1, 1):
        stepwell_clock.advance(passed)
        found.append([row.tier.value for row in tiers.list().rows])
    assert found == [["hot"], ["warm"], ["warm"], ["cold"], ["cold"], []]


def test_long_time_in_one_go(stepwell_runtime: LocalRuntime, stepwell_clock: Clock) -> None:
    """What would have gone down in its time, and then further, has."""
    tiers = stepwell_runtime.client(projects=["p"]).tiers
    tiers.store(fragment())
    stepwell_clock.advance(timedelta(days=92))
    assert tiers.list().rows == ()


def test_plans_are_forgotten(stepwell_runtime: LocalRuntime, stepwell_clock: Clock) -> None:
    """What is over is kept for a month."""
    plans = stepwell_runtime.client().plans
    plan = plans.use_action(act(stepwell_runtime.client(), "short"), projects=["p"])
    plans.cancel_plan(plan.plan_id)
    stepwell_clock.advance(29 * DAY)
    assert plans.get_plan(plan.plan_id).position
    stepwell_clock.advance(2 * DAY)
    with pytest.raises(sw.NotFound):
        plans.get_plan(plan.plan_id)


def test_two_runtimes_have_one_time() -> None:
    """Whoever follows a clock follows it for as long as it is there, killed or not."""
    clock = Clock(datetime(2030, 1, 1, tzinfo=UTC))
    with LocalRuntime(clock=clock) as one, LocalRuntime(clock=clock) as other:
        tiers = [runtime.client(projects=["p"]).tiers for runtime in (one, other)]
        for each in tiers:
            each.store(fragment())
        clock.advance(HOUR)
        assert [each.list().rows[0].tier for each in tiers] == [sw.Tier.WARM] * 2
        one.kill()
        clock.advance(DAY)
        assert tiers[1].list().rows[0].tier is sw.Tier.COLD
    clock.advance(DAY)


def test_refuses_what_is_no_time() -> None:
    with pytest.raises(sw.InvalidArgument, match="does not go back"):
        Clock().advance(-1)
    with pytest.raises(sw.InvalidArgument, match="no time zone"):
        Clock(datetime(2026, 1, 1))  # noqa: DTZ001 - that is what is refused
