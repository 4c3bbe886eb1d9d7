"""Replaying: the same bytes, as long as the bodies are there."""

import pytest
from msgspec.structs import replace

import stepwell as sw
from stepwell.assembly.replay import replay
from tests.support.assembly import answer, count, meeting, request, result
from tests.support.strategy_views import Store

SCORES = result("keyword", {"t3": 1.0, "t9": 0.5})


def test_later() -> None:
    """Whatever was stored since, and whatever a strategy would say now."""
    store = meeting()
    found = answer(store.view(), SCORES, asked=request("number"))
    store.store("new", "number number number", source="s")
    store.demote("t3")
    replayed = replay(found.receipt, store.view(), count)
    assert (replayed.text, replayed.fragments, replayed.total_tokens) == (
        found.text,
        found.fragments,
        found.total_tokens,
    )
    assert (replayed.revision, replayed.epoch) == (found.revision, found.epoch)
    assert [each.strategy for each in replayed.strategies] == ["keyword"]


def test_bodies_that_are_gone() -> None:
    """Changed, deleted or lost: the error names them. What is only in the receipt may go."""
    store = meeting(40)
    found = answer(store.view(), SCORES, asked=request("number", budget_tokens=60))
    shown = [each.fragment_id for each in found.fragments]
    store.store(shown[0], "changed", source="s")
    store.delete(shown[1])
    store.lose_body(shown[2])
    store.delete("t39")
    with pytest.raises(sw.BodyGone, match=", ".join(shown[:3])) as caught:
        replay(found.receipt, store.view(), count)
    assert caught.value.details["fragment_ids"] == shown[:3]
    with pytest.raises(sw.BodyGone):
        replay(found.receipt, store.view("elsewhere"), count)


def test_many_that_are_gone() -> None:
    found = answer(meeting(40).view(), SCORES, asked=request("unheard", budget_tokens=600))
    with pytest.raises(sw.BodyGone, match=r"and \d+ more"):
        replay(found.receipt, Store().view(), count)


def test_a_receipt_that_was_changed() -> None:
    found = answer(meeting().view(), SCORES, asked=request("number"))
    with pytest.raises(sw.InvalidArgument, match="another text"):
        replay(replace(found.receipt, sections=("> forged",)), meeting().view(), count)
