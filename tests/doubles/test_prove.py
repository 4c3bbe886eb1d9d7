"""The judge rejects what the unsynchronised double really does if a second caller comes in between.

The seam of the double is where that can happen. The second caller is called from there, so that no test waits for luck.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import stepwell as sw
from stepwell.prove.history import (
    Accepted,
    AnyCall,
    AnyOutcome,
    Declined,
    GetCall,
    History,
    Observed,
    PlanStepCall,
    RecordedCall,
    StoreCall,
    TrialHeader,
)
from stepwell.prove.verdict import HistoryVerdict, judge
from tests.doubles.unsynchronised.plans import PlanLifecycleService
from tests.doubles.unsynchronised.tiers import ContextTierService


class Callers:
    """Records the calls of two callers on the double, of which the second comes in at the next seam."""

    def __init__(self) -> None:
        self.tiers = ContextTierService(seam=self._interrupted)
        self.plans = PlanLifecycleService(seam=self._interrupted)
        self._second: Callable[[], None] | None = None
        self._calls: list[RecordedCall] = []

    def interrupt(self, second: Callable[[], None]) -> None:
        """Let a second caller in at the next seam."""
        self._second = second

    def _interrupted(self, _point: str) -> None:
        second, self._second = self._second, None
        if second is not None:
            second()

    def _record(self, lane: int, call: AnyCall, perform: Callable[[], AnyOutcome]) -> None:
        start_ns = time.monotonic_ns()
        outcome = perform()
        self._calls.append(RecordedCall(lane, 0, start_ns, time.monotonic_ns(), call, outcome))

    def start(self, plan_id: str, lane: int) -> None:
        def perform() -> AnyOutcome:
            try:
                self.plans.start_strategize(plan_id)
            except sw.PlanNotReady:
                return Declined()
            return Accepted()

        self._record(lane, PlanStepCall(plan_id, "start_strategize"), perform)

    def store(self, value: str, lane: int) -> None:
        def perform() -> AnyOutcome:
            self.tiers.store(sw.Fragment(fragment_id="x", project="p", body=value))
            return Accepted()

        self._record(lane, StoreCall("x", value), perform)

    def get(self, lane: int) -> None:
        def perform() -> AnyOutcome:
            try:
                return Observed((self.tiers.get("x", project="p").text,))
            except sw.NotFound:
                return Observed((None,))

        self._record(lane, GetCall("x"), perform)

    def verdict(self) -> HistoryVerdict:
        return judge(History(TrialHeader("unsynchronised", 0, 2, 1, 1.0), tuple(self._calls)))


def plan_of(callers: Callers) -> str:
    callers.plans.create_action(
        "a", description="d", definition_of_done="d", strategy_actor="a/b", execution_actor="a/b"
    )
    return callers.plans.use_action("a", projects=["p"]).plan_id


def test_one_after_the_other() -> None:
    """What the double does for callers that do not meet is legal."""
    callers = Callers()
    plan_id = plan_of(callers)
    callers.start(plan_id, 0)
    callers.start(plan_id, 1)
    callers.store("1", 0)
    callers.store("2", 0)
    callers.get(1)
    assert callers.verdict().result == "legal"


def test_two_winners() -> None:
    """Two callers find a plan queued, and both start it."""
    callers = Callers()
    plan_id = plan_of(callers)
    callers.interrupt(lambda: callers.start(plan_id, 1))
    callers.start(plan_id, 0)
    verdict = callers.verdict()
    assert verdict.result == "illegal"
    assert verdict.counterexample is not None
    assert {each.process for each in verdict.counterexample.calls} == {0, 1}


def test_half_a_replacement() -> None:
    """A reader finds nothing while a fragment is replaced, although there was always one."""
    callers = Callers()
    callers.store("1", 0)
    callers.interrupt(lambda: callers.get(1))
    callers.store("2", 0)
    assert callers.verdict().result == "illegal"
