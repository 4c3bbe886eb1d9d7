"""The calls of a workload: repeatable, with new values, of every kind, and on few keys."""

from collections import Counter

from stepwell.prove.history import (
    Accepted,
    AnyCall,
    Declined,
    PlanReadCall,
    PlanStepCall,
    ReplaceCall,
    keys_of,
    writes_of,
)
from stepwell.prove.workload import CallGenerator, RoundNames, names_of, rounds_in
from tests.support.prove.calls import saw
from tests.support.prove.simulated import simulated_history

NAMES = RoundNames("r", "c", ("x", "y"), "p")


def calls_of(seed: int, lane: tuple[int, int], names: RoundNames = NAMES) -> list[AnyCall]:
    generator = CallGenerator(seed, lane, 0, names)
    return [call for _ in range(200) for call in generator.request()]


def test_repeatable() -> None:
    """The same seed, lane and round give the same calls; another lane makes others."""
    assert calls_of(1, (0, 0)) == calls_of(1, (0, 0))
    assert calls_of(1, (0, 0)) != calls_of(1, (0, 1))
    assert calls_of(1, (0, 0)) != calls_of(2, (0, 0))


def test_values_are_new() -> None:
    """No two calls store the same value at a key, except increments of a counter that had the same chance."""
    calls = [*calls_of(1, (0, 0)), *calls_of(1, (0, 1)), *calls_of(1, (1, 0))]
    written = Counter(pair for call in calls for pair in writes_of(call) if pair[1] is not None and pair[0] != "c")
    assert max(written.values()) == 1


def test_every_kind_of_call() -> None:
    """A run has all calls that are judged, on the keys of its rounds and no others."""
    history = simulated_history(1, rounds=20)
    kinds = {type(each.call).__name__ for each in history.calls}
    assert len(kinds) == 11
    assert {key for call in calls_of(1, (0, 0)) for key in keys_of(call)} == {"r", "c", "x", "y", "plan p", "log log"}


def test_round_without_a_plan() -> None:
    """It has calls on fragments only."""
    calls = calls_of(1, (0, 0), RoundNames("r", "c", ("x", "y"), None))
    assert not any(isinstance(each, PlanStepCall | PlanReadCall) for each in calls)


def test_expectations_are_learned() -> None:
    """A compare-and-set expects the value that the lane has seen last."""
    generator = CallGenerator(1, (0, 0), 0, NAMES)
    for key in ("r", "c", "x", "y"):
        generator.learn(ReplaceCall(key, None, "5"), Accepted())
        generator.learn(ReplaceCall(key, "5", "6"), Declined())
    generator.learn(PlanReadCall("p"), saw("execute/queued"))
    calls = [call for _ in range(200) for call in generator.request()]
    replaced = [each for each in calls if isinstance(each, ReplaceCall)]
    assert {each.expected for each in replaced} == {"5"}
    assert {each.value for each in replaced if each.key == "c"} == {"6"}
    assert {each.step for each in calls if isinstance(each, PlanStepCall)} == {"start_execute", "cancel_plan"}
    generator.learn(PlanStepCall("p", "start_execute"), Accepted())
    calls = [call for _ in range(200) for call in generator.request()]
    assert "complete_execute" in {each.step for each in calls if isinstance(each, PlanStepCall)}


def test_names() -> None:
    """Each round has keys of its own, and the plans are spread over all rounds."""
    found = [names_of(number, ["a", "b"], 5).plan for number in range(5)]
    assert found == ["a", None, None, "b", None]
    assert names_of(1, [], 5).plan is None
    assert names_of(1, [], 5).register != names_of(2, [], 5).register


def test_rounds() -> None:
    """A run has at least one round."""
    assert rounds_in(0.001) == 1
    assert rounds_in(1) == 50
