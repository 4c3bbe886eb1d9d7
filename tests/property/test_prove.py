"""The judge: the search agrees with the definition, accepts what is legal, and rejects every mutant."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.prove.history import (
    Accepted,
    AnyCall,
    AnyOutcome,
    Declined,
    DeleteCall,
    GetCall,
    NoAnswer,
    Observed,
    PlanReadCall,
    PlanStepCall,
    RecordedCall,
    ReplaceCall,
    StoreCall,
    TransactCall,
)
from stepwell.prove.models import PLAN_STEPS, FragmentModel, PlanModel
from stepwell.prove.partition import Partition, partitions_of
from stepwell.prove.search import SearchResult, search
from stepwell.prove.shrink import result_of
from tests.support.prove import naive
from tests.support.prove.mutations import MUTATIONS, mutants
from tests.support.prove.simulated import simulated_history
from tests.support.soak import IS_LONG

HISTORIES = 2_000 if IS_LONG else 100
MUTANTS = 10_000 if IS_LONG else 400

OUTCOMES: list[AnyOutcome] = [Accepted(), Accepted(), Declined(), NoAnswer()]

values = st.sampled_from(["1", "2"])
maybe = st.sampled_from([None, "1", "2"])
keys = st.sampled_from(["x", "y"])
writes = st.one_of(st.builds(StoreCall, keys, values), st.builds(ReplaceCall, keys, maybe, values))
pairs = st.tuples(st.builds(ReplaceCall, st.just("x"), maybe, values), st.builds(StoreCall, st.just("y"), values))
changes = st.one_of(writes, st.builds(DeleteCall, keys), st.builds(TransactCall, pairs))
positions = sorted({position for moves in PLAN_STEPS.values() for pair in moves.items() for position in pair})
steps = st.builds(PlanStepCall, st.just("p"), st.sampled_from([*PLAN_STEPS]))


@st.composite
def tiny_histories(
    draw: st.DrawFn, calls: st.SearchStrategy[AnyCall], read: AnyCall, seen: list[str | None]
) -> list[RecordedCall]:
    """A few calls with any outcomes and times, of which some overlap."""
    found: list[RecordedCall] = []
    for _ in range(draw(st.integers(0, 5))):
        start_ns = draw(st.integers(0, 8))
        is_read = draw(st.booleans())
        outcome: AnyOutcome = draw(st.sampled_from(OUTCOMES))
        if is_read:
            outcome = Observed((draw(st.sampled_from(seen)),))
        end_ns = None if outcome == NoAnswer() else start_ns + draw(st.integers(0, 4))
        lane = draw(st.integers(0, 1))
        found.append(RecordedCall(lane, 0, start_ns, end_ns, read if is_read else draw(calls), outcome))
    return found


@given(tiny_histories(changes, GetCall("x"), [None, "1", "2"]))
def test_fragments_as_defined(calls: list[RecordedCall]) -> None:
    """The search finds an order exactly if one of all orders is an explanation."""
    model = FragmentModel(["x", "y"])
    found = search(calls, model, model.initial())
    assert (found is SearchResult.LEGAL) == naive.is_legal(calls, model)


@given(tiny_histories(changes, GetCall("x"), [None, "1", "2"]), st.lists(st.tuples(keys, maybe), max_size=3))
def test_watched_fragments_as_defined(calls: list[RecordedCall], watched: list[tuple[str, str | None]]) -> None:
    """The same, with an order of writes that a watch has shown."""
    model = FragmentModel(["x", "y"], watched)
    found = search(calls, model, model.initial())
    assert (found is SearchResult.LEGAL) == naive.is_legal(calls, model)


@given(tiny_histories(steps, PlanReadCall("p"), [*positions]))
def test_plans_as_defined(calls: list[RecordedCall]) -> None:
    """The same for the life of a plan."""
    model = PlanModel()
    found = search(calls, model, model.initial())
    assert (found is SearchResult.LEGAL) == naive.is_legal(calls, model)


@pytest.fixture(scope="module")
def legal() -> list[Partition]:
    """Partitions of histories in which each request took effect at one moment."""
    return [each for seed in range(HISTORIES) for each in partitions_of(simulated_history(seed))]


def test_legal_histories(legal: list[Partition]) -> None:
    """However the calls overlap and however many answers are lost, a history that was made in one order is legal."""
    assert {result_of(each) for each in legal} == {SearchResult.LEGAL}


def test_mutants(legal: list[Partition]) -> None:
    """No mutant passes, of no kind: two winners, a lost update, a stale read, half a transaction, a wrong watch."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    judged = [
        (name, result_of(mutant))
        for _, (name, mutant) in zip(range(MUTANTS), mutants(legal, random.Random(seed)), strict=False)
    ]
    assert [name for name, result in judged if result is not SearchResult.ILLEGAL] == []
    assert len({name for name, _ in judged}) == len(MUTATIONS)
