"""The smallest illegal part: nothing in it can be left out, and nothing illegal is made up."""

import random

import pytest

from stepwell import limits
from stepwell.prove.history import (
    Accepted,
    Declined,
    DeleteCall,
    GetCall,
    NoAnswer,
    PlanStepCall,
    ReplaceCall,
    StoreCall,
)
from stepwell.prove.partition import Partition, partitions_of
from stepwell.prove.shrink import result_of, shrink
from tests.support.prove.calls import made, saw
from tests.support.prove.mutations import mutants
from tests.support.prove.simulated import simulated_history


def test_lost_update() -> None:
    """Two calls that replaced the same value are all that is left of a long history."""
    history = [
        made(0, 1, StoreCall("x", "1"), Accepted()),
        made(2, 3, GetCall("x"), saw("1")),
        made(4, 8, ReplaceCall("x", "1", "2"), Accepted()),
        made(5, 9, ReplaceCall("x", "1", "3"), Accepted(), lane=1),
        made(5, 9, ReplaceCall("x", "0", "9"), Declined(), lane=2),
        made(10, 11, GetCall("x"), saw("3")),
        made(12, 13, StoreCall("x", "4"), Accepted()),
    ]
    example = shrink(Partition(("x",), tuple(history)))
    assert [each.call for each in example.calls] == [ReplaceCall("x", "1", "2"), ReplaceCall("x", "1", "3")]
    assert example.begins_anywhere


def test_from_the_beginning() -> None:
    """A part that is illegal only because nothing was there before is shown from the beginning."""
    history = (made(0, 1, GetCall("x"), saw("1")), made(2, 3, StoreCall("x", "2"), Accepted()))
    example = shrink(Partition(("x",), history))
    assert [each.call for each in example.calls] == [GetCall("x")]
    assert not example.begins_anywhere


def test_a_write_that_explains_a_refusal_stays() -> None:
    """Without the store, the compare-and-set would look refused for no reason: that is not what is wrong here."""
    history = (
        made(0, 1, StoreCall("x", "1"), Accepted()),
        made(2, 3, DeleteCall("x"), Accepted()),
        made(4, 5, DeleteCall("x"), Accepted()),
    )
    example = shrink(Partition(("x",), history))
    assert result_of(Partition(("x",), example.calls)) == "illegal"
    assert [each.call for each in example.calls] == [DeleteCall("x"), DeleteCall("x")]


def test_plan() -> None:
    """Two winners of one start."""
    start = PlanStepCall("p", "start_strategize")
    history = (
        made(0, 5, start, Accepted()),
        made(1, 6, start, Accepted(), lane=1),
        made(2, 7, start, Declined(), lane=2),
    )
    example = shrink(Partition(("plan p",), history))
    assert [each.lane for each in example.calls] == [(0, 0), (1, 0)]


def test_calls_under_way_may_take_effect() -> None:
    """A call that had not ended where the history is cut may explain a read, so it is left in as an open one."""
    history = (
        made(0, 20, StoreCall("x", "1"), Accepted()),
        made(1, 2, GetCall("x"), saw("1")),
        made(3, 4, GetCall("x"), saw(None)),
    )
    example = shrink(Partition(("x",), history))
    assert [each.outcome for each in example.calls] == [NoAnswer(), saw("1"), saw(None)]


def test_watches() -> None:
    """A watch that contradicts the calls is shown with the writes; two that contradict each other alone."""
    calls = (
        made(0, 1, StoreCall("x", "1"), Accepted()),
        made(2, 3, StoreCall("x", "2"), Accepted()),
        made(4, 5, GetCall("x"), saw("2")),
    )
    wrong, right = (("x", "2"), ("x", "1")), (("x", "1"), ("x", "2"))
    assert result_of(Partition(("x",), calls, (right,))) == "legal"
    example = shrink(Partition(("x",), calls, (wrong,)))
    assert (len(example.calls), example.watched) == (2, (wrong,))
    both = Partition(("x",), calls, (wrong, right))
    assert result_of(both) == "illegal"
    assert shrink(both).watched == (wrong, right)


def test_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its last search the shrinker returns what it has, which is illegal still."""
    monkeypatch.setattr(limits, "PROVE_SHRINK_SEARCHES_MAX", 0)
    partition = Partition(("x",), (made(0, 1, GetCall("x"), saw("1")), made(0, 1, GetCall("x"), saw("1"))))
    assert shrink(partition).calls == partition.calls


def test_every_mutant_shrinks_to_something_illegal() -> None:
    """The smallest part of a mutated history is illegal itself, and no longer than the history."""
    partitions = [each for seed in range(60) for each in partitions_of(simulated_history(seed))]
    for _, (name, mutant) in zip(range(80), mutants(partitions, random.Random(3)), strict=False):
        example = shrink(mutant)
        watched = example.watched or ()
        assert result_of(Partition(mutant.keys, example.calls, watched)) == "illegal", name
        assert len(example.calls) <= len(mutant.calls)
