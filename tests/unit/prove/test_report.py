"""The timeline shows each call with its time and its outcome."""

from stepwell.prove.history import (
    Accepted,
    AnyCall,
    AnyOutcome,
    Declined,
    DeleteCall,
    GetCall,
    NotDone,
    PlanReadCall,
    PlanStepCall,
    ReplaceCall,
    SnapshotCall,
    StoreCall,
    TransactCall,
)
from stepwell.prove.report import call_text, outcome_text, timeline
from stepwell.prove.shrink import Counterexample
from tests.support.prove.calls import made, saw

MS = 1_000_000


def test_timeline() -> None:
    """Calls come in the order of their starts, with bars on one scale; an open one has no right edge."""
    calls = (
        made(8 * MS, None, StoreCall("x", "2")),
        made(0, 4 * MS, ReplaceCall("x", None, "1"), Accepted(), lane=1),
        made(5 * MS, 8 * MS, GetCall("x"), saw(None)),
    )
    before, *lines, conclusion = timeline(Counterexample(("x",), calls, begins_anywhere=True))
    assert before == "before: any values"
    assert [line.split("ms  ")[0].split()[-1] for line in lines] == ["0.000", "5.000", "8.000"]
    bars = [line.split("ms  ")[1][:33] for line in lines]
    assert bars == ["[================]".ljust(33), " " * 19 + "[============]", " " * 31 + "[."]
    assert lines[0].endswith('  replace x: nothing by "1"  accepted')
    assert [line.rpartition("  ")[2] for line in lines] == ["accepted", "returned nothing", "may take effect"]
    assert conclusion.startswith("No order of these calls")


def test_watches() -> None:
    """Watched orders come below the calls, or alone."""
    one, other = (("x", "1"), ("x", None)), ()
    calls = (made(0, 1, StoreCall("x", "1"), Accepted()),)
    with_calls = timeline(Counterexample(("x",), calls, (one,)))
    assert with_calls[0] == "before: nothing"
    assert with_calls[2] == 'watch 1: x = "1", x = nothing'
    assert with_calls[-1].endswith("and the order of the watch.")
    alone = timeline(Counterexample(("x",), (), (one, other)))
    assert alone[1:] == [
        "watch 2: no write",
        "Two watches have seen the same writes in different orders, or not the same writes.",
    ]


def test_words() -> None:
    """Every kind of call and outcome has words of its own."""
    calls: list[AnyCall] = [
        StoreCall("x", "1"),
        ReplaceCall("x", "1", "2"),
        GetCall("x"),
        DeleteCall("x"),
        TransactCall((StoreCall("x", "1"),)),
        SnapshotCall(("x", "y")),
        PlanStepCall("p", "start_execute"),
        PlanReadCall("p"),
    ]
    assert len({call_text(each) for each in calls}) == len(calls)
    outcomes: list[AnyOutcome] = [Accepted(), Declined(), saw("1"), NotDone(), made(0, None, GetCall("x")).outcome]
    assert len({outcome_text(each) for each in outcomes}) == len(outcomes)
