"""The sequential specifications: which outcome each call must have in each state."""

import pytest

from stepwell.domain.plans.lifecycle import LEGAL, PlanEvent
from stepwell.prove.history import (
    Accepted,
    AnyCall,
    AnyOutcome,
    Declined,
    DeleteCall,
    GetCall,
    LogAppendCall,
    LogPopCall,
    LogReadCall,
    NoAnswer,
    NotDone,
    PlanReadCall,
    PlanStepCall,
    ReplaceCall,
    SnapshotCall,
    StoreCall,
    TransactCall,
)
from stepwell.prove.models import (
    PLAN_START,
    PLAN_STEPS,
    FragmentModel,
    LogModel,
    PlanModel,
    is_about_logs,
    is_about_plans,
)
from tests.support.prove.calls import made, saw

BOTH = TransactCall((ReplaceCall("x", "1", "2"), StoreCall("y", "3")))


@pytest.mark.parametrize(
    "before, call, outcome, after",
    [
        (("1", None), StoreCall("x", "2"), Accepted(), ("2", None)),
        (("1", None), StoreCall("x", "2"), Declined(), None),
        (("1", None), ReplaceCall("x", "1", "2"), Accepted(), ("2", None)),
        (("1", None), ReplaceCall("x", "0", "2"), Accepted(), None),
        (("1", None), ReplaceCall("x", "0", "2"), Declined(), ("1", None)),
        (("1", None), ReplaceCall("x", "1", "2"), Declined(), None),
        (("1", None), ReplaceCall("y", None, "2"), Accepted(), ("1", "2")),
        (("1", None), GetCall("x"), saw("1"), ("1", None)),
        (("1", None), GetCall("x"), saw(None), None),
        (("1", None), DeleteCall("x"), Accepted(), (None, None)),
        (("1", None), DeleteCall("y"), Accepted(), None),
        (("1", None), DeleteCall("y"), Declined(), ("1", None)),
        (("1", None), BOTH, Accepted(), ("2", "3")),
        (("0", None), BOTH, Accepted(), None),
        (("0", None), BOTH, Declined(), ("0", None)),
        (("1", "3"), SnapshotCall(("x", "y")), saw("1", "3"), ("1", "3")),
        (("1", "3"), SnapshotCall(("x", "y")), saw("1", None), None),
        (("1", None), StoreCall("x", "2"), NotDone(), ("1", None)),
        (("1", None), StoreCall("x", "2"), NoAnswer(), ("2", None)),
        (("1", None), ReplaceCall("x", "0", "2"), NoAnswer(), None),
    ],
)
def test_fragments(
    before: tuple[str | None, ...], call: AnyCall, outcome: AnyOutcome, after: tuple[str | None, ...] | None
) -> None:
    """The state after a call, or None if its outcome contradicts the state."""
    found = FragmentModel(["x", "y"]).step((before, 0), made(0, 1, call, outcome))
    assert found == (None if after is None else (after, 0))


def test_watched_order() -> None:
    """With the order of a watch, writes take effect in that order only, and all of them in the end."""
    model = FragmentModel(["x"], [("x", "1"), ("x", None)])
    initial = model.initial()
    assert not model.is_final(initial)
    assert model.step(initial, made(0, 1, StoreCall("x", "2"), Accepted())) is None
    stored = model.step(initial, made(0, 1, StoreCall("x", "1"), Accepted()))
    assert stored == (("1",), 1)
    deleted = model.step(stored, made(2, 3, DeleteCall("x"), Accepted()))
    assert deleted == ((None,), 2)
    assert model.is_final(deleted)
    assert model.step(deleted, made(4, 5, StoreCall("x", "1"), Accepted())) is None


def test_plan() -> None:
    """One start wins, only its caller completes, and a cancelled plan stays so."""
    model = PlanModel()
    start = made(0, 1, PlanStepCall("p", "start_strategize"), Accepted(), lane=1)
    processing = model.step(model.initial(), start)
    assert processing == ("strategize/processing", (1, 0))
    assert model.step(processing, start) is None
    assert model.step(processing, made(0, 1, PlanStepCall("p", "start_strategize"), Declined())) == processing
    complete = PlanStepCall("p", "complete_strategize")
    assert model.step(processing, made(0, 1, complete, Accepted(), lane=2)) is None
    assert model.step(processing, made(0, 1, complete, Declined(), lane=1)) is None
    assert model.step(processing, made(0, 1, complete, Accepted(), lane=1)) == ("strategize/complete", None)
    assert model.step(processing, made(0, 1, complete, NotDone(), lane=1)) == processing
    cancelled = model.step(processing, made(0, None, PlanStepCall("p", "cancel_plan")))
    assert cancelled == ("strategize/cancelled", None)
    assert model.step(cancelled, made(0, 1, PlanStepCall("p", "cancel_plan"), Accepted())) is None
    assert model.step(cancelled, made(0, 1, PlanReadCall("p"), saw("strategize/cancelled"))) == cancelled
    assert model.step(cancelled, made(0, 1, PlanReadCall("p"), saw(PLAN_START))) is None
    assert model.is_final(cancelled)
    assert (PLAN_START, (1, 0)) in model.any_states([start])


def test_plan_steps_are_those_of_the_lifecycle() -> None:
    """The judge's own table and the manager's agree, where both have a step: neither is made from the other."""
    ours = {(step, source): target for step, moves in PLAN_STEPS.items() for source, target in moves.items()}
    theirs = {
        (str(event), f"{at.phase}/{at.state}"): f"{to.phase}/{to.state}"
        for (event, at), to in LEGAL.items()
        if event in {PlanEvent(step) for step in PLAN_STEPS} and at.phase != "apply" and at.state != "errored"
    }
    assert ours == theirs


def test_any_states() -> None:
    """A later part may begin with every value that its calls mention, with none, and with another one."""
    calls = [made(0, 1, ReplaceCall("x", "1", "2"), Accepted())]
    found = {values[0] for values, _ in FragmentModel(["x"]).any_states(calls)}
    assert {None, "1", "2"} < found
    assert len(found) == 4


def test_subject_of_a_call() -> None:
    """A call is about a plan or about fragments."""
    assert is_about_plans(PlanReadCall("p"))
    assert not is_about_plans(BOTH)


@pytest.mark.parametrize(
    "before, call, outcome, after",
    [
        ((), LogAppendCall("l", "1"), Accepted(), ("1",)),
        (("1",), LogAppendCall("l", "2"), NoAnswer(), ("1", "2")),
        (("1", "2"), LogPopCall("l"), saw("2"), ("1",)),
        (("1", "2"), LogPopCall("l"), saw("1"), None),
        (("1", "2"), LogPopCall("l"), saw(None), None),
        (("1",), LogPopCall("l"), NoAnswer(), ()),
        ((), LogPopCall("l"), NoAnswer(), None),
        ((), LogPopCall("l"), saw(None), ()),
        (("1", "2"), LogReadCall("l"), saw("1", "2"), ("1", "2")),
        (("1", "2"), LogReadCall("l"), saw("2", "1"), None),
        ((), LogReadCall("l"), saw(), ()),
        ((), LogAppendCall("l", "1"), Declined(), None),
    ],
)
def test_logs(before: tuple[str, ...], call: AnyCall, outcome: AnyOutcome, after: tuple[str, ...] | None) -> None:
    """An append adds one value at the end, a pop removes the last one, and a read has all of them."""
    model = LogModel()
    assert (model.initial(), model.is_final(before), is_about_logs(call)) == ((), True, True)
    assert model.step(before, made(0, 1, call, outcome)) == after
    assert [*model.any_states([made(0, 1, LogReadCall("l"), saw("1"))])] == [("1",)]
