"""The tiers' own methods beside the single calls: many at a time, split over frames, and pages."""

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.testing import LocalRuntime
from tests.support.client.sessions import fragment
from tests.support.managers import served
from tests.support.peers import LARGE_METADATA


def test_what_is_stored_is_what_is_found(client: sw.Client) -> None:
    """Every field comes back, and the body is read-only."""
    before = client.tiers.store(
        sw.Fragment(
            fragment_id="a",
            body="gr\u00fc\u00df dich",
            source="a.py",
            kind="code",
            detail_depth=2,
            metadata={"k": "v"},
        ),
        tier=sw.Tier.WARM,
    )
    found = client.tiers.get("a")
    assert (found.text, found.source, found.kind, found.detail_depth) == ("gr\u00fc\u00df dich", "a.py", "code", 2)
    assert (found.tier, found.access_count, found.metadata["k"]) == (sw.Tier.WARM, 1, "v")
    assert (found.revision, found.digest.value) == (before.revision, before.digest)
    assert found.body.readonly
    assert found.created_at <= found.last_accessed
    assert found.tokens == before.tokens >= 1
    assert (found.project, found.fragment_id) == (before.project, "a")
    assert repr(found).startswith("<stepwell.StoredFragment 'a'")


@pytest.mark.parametrize("body", [b"", b"\xff\x00", memoryview(b"view"), "text"])
def test_bodies_of_every_kind(client: sw.Client, body: str | bytes | memoryview) -> None:
    """Text, bytes and views are stored as bytes; tokens are counted when they are not given, at least one."""
    client.tiers.store(sw.Fragment(fragment_id="a", body=body))
    found = client.tiers.get("a")
    assert found.body == (body.encode() if isinstance(body, str) else body)
    assert found.tokens >= 1


def test_text_of_what_is_no_text(client: sw.Client) -> None:
    """Bytes that are not UTF-8 are still there as bytes."""
    client.tiers.store(fragment("a", b"\xff"))
    with pytest.raises(UnicodeDecodeError):
        _ = client.tiers.get("a").text


def test_many_more_than_one_frame(client: sw.Client) -> None:
    """Thousands of fragments go and come over as many frames as it takes, in order."""
    fragments = [fragment(str(number), str(number)) for number in range(2 * limits.BATCH_COMMANDS_MAX + 1)]
    placed = client.tiers.store_many(iter(fragments))
    assert [each.fragment_id for each in placed] == [each.fragment_id for each in fragments]
    found = client.tiers.get_many(each.fragment_id for each in fragments)
    assert {key: each.text for key, each in found.items()} == {each.fragment_id: each.fragment_id for each in fragments}


def test_none_at_all(client: sw.Client) -> None:
    """Nothing to do is done at once."""
    assert client.tiers.store_many([]) == []
    assert client.tiers.get_many([]) == {}


def test_what_is_absent_is_not_in_the_result(client: sw.Client) -> None:
    """`get_many` finds what there is; asking twice for one is asking once."""
    client.tiers.store(fragment("a"))
    assert client.tiers.get_many(["b", "a", "a", "c"]).keys() == {"a"}
    assert client.tiers.get("a").access_count == 2


def test_one_id_is_not_many(client: sw.Client) -> None:
    """A string is a sequence of strings, which is never what was meant."""
    with pytest.raises(sw.InvalidArgument, match="sequence of ids"):
        client.tiers.get_many("abc")


def test_rows_larger_than_a_reply(client: sw.Client) -> None:
    """Only what is known of a fragment fills a reply, and only in a batch: what comes behind is told to ask again."""
    client.tiers.store(sw.Fragment(fragment_id="a", body="x", tokens=1, metadata=LARGE_METADATA))
    with client.batch() as batch:
        pending = [batch.tiers.get("a") for _ in range(600)]
    assert pending[0].result().metadata == LARGE_METADATA
    with pytest.raises(sw.Busy, match="ask for the rest again"):
        pending[-1].result()


def test_what_was_crowded_out_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one reply can carry comes in several."""
    monkeypatch.setattr(limits, "REPLY_BYTES_MAX", 3 * 15_000)
    with served() as stage, sw.connect(stage.address, projects=["p"]) as client:
        names = [str(number) for number in range(20)]
        client.tiers.store_many(
            sw.Fragment(fragment_id=name, body=name, tokens=1, metadata=LARGE_METADATA) for name in names
        )
        before = stage.requests.served
        found = client.tiers.get_many(names)
        assert {name: each.text for name, each in found.items()} == {name: name for name in names}
        assert stage.requests.served - before > 1


def test_long_names_and_large_bodies_do_not_block_each_other(client: sw.Client) -> None:
    """The next request does not fit in the socket while the last reply does not either: neither side waits for ever."""
    names = [f"{number:04}" + "\U0001f600" * 508 for number in range(3 * limits.STREAM_COMMANDS)]
    client.tiers.store_many(fragment(name, bytes(40_000)) for name in names)
    assert client.tiers.get_many(names).keys() == set(names)


def test_partly_refused_has_every_outcome(runtime: LocalRuntime) -> None:
    """Out of scope is refused by the manager, one by one, and the others are stored."""
    with runtime.client(projects=["mine"]) as client:
        fragments = [
            sw.Fragment(fragment_id=str(number), project="theirs" if number % 2 else "mine", body="")
            for number in range(4)
        ]
        with pytest.raises(sw.PartlyRefused, match="2 of 4 were refused") as caught:
            client.tiers.store_many(fragments)
        kinds = [type(outcome) for outcome in caught.value.outcomes]
        assert kinds == [sw.types.FragmentPlaced, sw.OutOfScope, sw.types.FragmentPlaced, sw.OutOfScope]
        with pytest.raises(sw.OutOfScope):
            client.tiers.get_many(["0"], project="theirs")
        assert client.tiers.get_many(["0", "2"]).keys() == {"0", "2"}


def test_bad_name_among_many_keeps_the_connection(client: sw.Client) -> None:
    """What cannot be encoded was not sent, and the connection is not given up for it."""
    before = dict(client._channel.connections._open)
    with pytest.raises(sw.InvalidArgument, match="lone surrogate"):
        client.tiers.get_many(["\ud800"])
    assert client._channel.connections._open == before


def test_scoped_follows_the_pages(client: sw.Client) -> None:
    """More than one page comes as one sequence, and filters hold."""
    count = limits.PAGE_ROWS_MAX + 10
    client.tiers.store_many(
        sw.Fragment(fragment_id=str(number), body="", source=f"src/{number}.py", tokens=1) for number in range(count)
    )
    assert [row.fragment_id for row in client.tiers.scoped()] == [str(number) for number in range(count)]
    assert [row.fragment_id for row in client.tiers.scoped(globs=["src/7.*"], tier=sw.Tier.HOT)] == ["7"]
    assert [*client.tiers.scoped(kind="code")] == []
    assert client.tiers.projects(limit=1).projects == (client.projects or ())


def test_the_other_calls(client: sw.Client, everything: sw.Client) -> None:
    """promote, demote, evict, sweep, budget and delete say what they did."""
    tiers = client.tiers
    tiers.store(fragment("a"))
    assert tiers.demote("a").tier is sw.Tier.WARM
    assert tiers.promote("a").tier is sw.Tier.HOT
    (move,) = tiers.evict_lru().moves
    assert (move.source, move.target) == (sw.Tier.HOT, sw.Tier.WARM)
    assert tiers.sweep().moves == ()
    assert tiers.delete("a").tier is sw.Tier.WARM
    budget = everything.tiers.metrics().budget
    assert everything.tiers.set_budget(budget) == budget


def test_looking_is_no_access(client: sw.Client) -> None:
    """`peek` returns what `get` does, and `contains` if there is anything; a polled fragment stays where it is."""
    tiers = client.tiers
    tiers.store(fragment("a", "text"), tier=sw.Tier.WARM)
    for _ in range(10):
        found = tiers.peek("a")
        assert (found.text, found.tier, found.access_count) == ("text", sw.Tier.WARM, 0)
        assert tiers.contains("a")
    assert not tiers.contains("b")
    with pytest.raises(sw.NotFound):
        tiers.peek("b")
    with client.batch() as batch:
        looked, is_there = batch.tiers.peek("a"), batch.tiers.contains("b")
    assert (looked.result().text, is_there.result()) == ("text", False)


def test_methods_have_the_signature_of_their_definition() -> None:
    """What `help()` shows is the method, not the machinery that performs it."""
    assert "access" in (sw.ContextTierService.get.__doc__ or "")
