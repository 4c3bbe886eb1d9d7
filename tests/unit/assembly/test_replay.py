"""Replaying: the same bytes, as long as the bodies are there."""

import msgspec
import pytest
from msgspec.structs import asdict, replace

import stepwell as sw
from stepwell.assembly.receipt import Receipt
from stepwell.assembly.render import LAYOUT
from stepwell.assembly.replay import replay
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.source_outline import Outline
from tests.support.assembly import answer, count, meeting, request, result, stored
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


def test_receipts_of_other_versions() -> None:
    """A receipt that does not name its layout has the first one; one of a later layout is refused, with advice."""
    body = "def run():\n    return 1"
    view = library(body).view()
    found = answer(view, result("keyword", {"a": 1.0}), asked=request("run", budget_tokens=60))
    assert "```python\n" in found.text
    text = found.text.replace("```python", "```")
    fields = {name: value for name, value in asdict(found.receipt).items() if name != "layout"}
    old = msgspec.convert(fields | {"text_digest": digest_of(text.encode()).hex()}, Receipt, from_attributes=True)
    assert replay(old, view, count).text == text
    listed = answer(view, result("keyword", {"a": 1.0}), asked=request("run", budget_tokens=16))
    assert listed.text == "### a.py:1-2\n…"
    text = "### a.py:1-2\n```\n…\n```"
    old = replace(listed.receipt, layout=1, text_digest=digest_of(text.encode()).hex())
    assert replay(old, view, count).text == text
    with pytest.raises(sw.InvalidArgument, match="made by a later version"):
        replay(replace(found.receipt, layout=LAYOUT + 1), view, count)


def library(body: str) -> Store:
    """Return a store with one function."""
    store = Store()
    stored(store, "a", body, kind="code", source="a.py", outline=Outline(lines=(1, 2), order=0))
    return store


def test_a_receipt_that_was_changed() -> None:
    found = answer(meeting().view(), SCORES, asked=request("number"))
    with pytest.raises(sw.InvalidArgument, match="another text"):
        replay(replace(found.receipt, sections=("> forged",)), meeting().view(), count)
