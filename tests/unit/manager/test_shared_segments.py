"""Sharing: descriptors before the handles that need them, and segments taken back when they are gone."""

import mmap
import os
from collections.abc import Iterator

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.domain.tiers.commands import DeleteFragment, GetFragment, GetMetrics
from stepwell.domain.tiers.model import TierBudget
from stepwell.limits import MIB
from stepwell.manager.sessions import SessionRecord
from stepwell.manager.shared_segments import SegmentHolders
from stepwell.memory.writer.segments import MemorySegment
from stepwell.protocol.messages import (
    VERSION,
    AskStatus,
    AskView,
    CommandResult,
    Goodbye,
    Hello,
    Rejected,
    Request,
    Response,
    SegmentsAdded,
    SegmentsReleased,
    SegmentsRetired,
    Status,
    ViewOpened,
    Welcome,
)
from stepwell.protocol.usage import MemoryUsage
from stepwell.storage.store import SessionRow
from tests.support.manager.peers import ORIGIN, Clock, answered, ask, connection_of, gone, joined, noise, told
from tests.support.managers import Stage, served, staged
from tests.support.peers import RawPeer, store
from tests.support.wait import eventually

LARGE = 3 * MIB
"""Of a body that has a segment of its own."""


@pytest.fixture
def small() -> Iterator[Stage]:
    """A manager whose segments are small."""
    with staged(budget=TierBudget(arena_bytes=32 * MIB)) as made:
        yield made


def keep(stage: Stage, *names: str) -> None:
    """Large bodies, each in a segment of its own, and a small one, so that none of these is being filled."""
    for number, name in enumerate(names):
        stage.owner.execute(store(name, noise(LARGE, number)), ORIGIN)
    stage.owner.execute(store(f"behind {names[-1]}", noise(8_000, len(names))), ORIGIN)


def drop(stage: Stage, name: str) -> None:
    """Delete one, and with it its segment."""
    stage.owner.execute(DeleteFragment("p", name), ORIGIN)
    stage.loop._sharing.close_retired()


def announced(stage: Stage, peer: RawPeer, name: str) -> list[int]:
    """Read a fragment; the segments that were announced before the response."""
    peer.send(Request(1, (GetFragment("p", name),)))
    response = answered(stage, peer)
    assert isinstance(response, Response)
    assert isinstance(response.results[0], CommandResult)
    asides, peer.asides = peer.asides, []
    return [each.number for aside in asides if isinstance(aside, SegmentsAdded) for each in aside.segments]


def usage(stage: Stage, peer: RawPeer) -> MemoryUsage:
    peer.send(AskStatus(1))
    status = answered(stage, peer)
    assert isinstance(status, Status)
    return status.memory


def test_descriptors_come_before_the_response_that_needs_them(small: Stage) -> None:
    """The next message is the announcement, with the segment itself; then the response, whose handle points there."""
    keep(small, "a")
    with joined(small, "reader") as reader:
        reader.send(Request(1, (GetFragment("p", "a"),)))
        segments, response = told(small, reader), told(small, reader)
        assert isinstance(segments, SegmentsAdded)
        assert isinstance(response, Response)
        (result,), (segment,) = response.results, segments.segments
        assert isinstance(result, CommandResult)
        (handle,) = result.handles.values()
        assert handle.segment == segment.number
        (descriptor,) = reader.descriptors
        with mmap.mmap(descriptor, segment.size, prot=mmap.PROT_READ) as mapped:
            assert mapped[handle.offset : handle.offset + handle.size] == noise(LARGE)


def test_segment_is_announced_once_to_each_connection(small: Stage) -> None:
    """Also to the second connection of a session, which may be read by another thread; a new one when it is needed."""
    keep(small, "a", "b")
    with joined(small, "reader") as first, joined(small, "reader") as second:
        (one,) = announced(small, first, "a")
        assert announced(small, first, "a") == []
        (two,) = announced(small, first, "b")
        assert one != two
        assert announced(small, second, "a") == [one]
        assert len(first.descriptors) == 2
        assert len(second.descriptors) == 1


def test_what_has_no_body_announces_nothing(small: Stage) -> None:
    """Writers, and readers of metrics, get no descriptors."""
    with joined(small, "a") as peer:
        ask(small, peer, store("a"), GetMetrics())
        assert (peer.asides, peer.descriptors) == ([], [])


def test_many_segments_take_several_frames(small: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more in a frame than the kernel takes at a time."""
    monkeypatch.setattr(limits, "DESCRIPTORS_PER_FRAME_MAX", 2)
    keep(small, "a", "b", "c", "d", "e")
    with joined(small, "reader") as reader:
        reader.send(AskView(1, ("p",)))
        assert isinstance(answered(small, reader), ViewOpened)
        frames = [len(each.segments) for each in reader.asides if isinstance(each, SegmentsAdded)]
        assert frames == [2, 2, 2, 1]  # five large bodies, a small one and a catalogue
        assert len(reader.descriptors) == 7


def test_no_descriptors_left_costs_the_connection_and_says_why(small: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked may have happened; the manager goes on."""
    keep(small, "a")

    def none_left(_descriptor: int) -> int:
        raise OSError(24, "Too many open files")

    with joined(small, "reader") as reader, joined(small, "other") as other:
        monkeypatch.setattr(os, "dup", none_left)
        reader.send(Request(1, (GetFragment("p", "a"),)))
        rejected = answered(small, reader)
        assert isinstance(rejected, Rejected)
        assert rejected.refusal.kind == "OutcomeUnknown"
        monkeypatch.undo()
        assert announced(small, other, "a")


# Gone for us, and not for others.


def test_retired_segment_is_told_once_to_each_session(small: Stage) -> None:
    """With its next answer, whichever connection that is on; who never had it hears nothing."""
    keep(small, "a", "b")
    with (
        joined(small, "reader") as first,
        joined(small, "reader") as second,
        joined(small, "other") as other,
        joined(small, "stranger") as stranger,
    ):
        (number,) = announced(small, first, "a")
        announced(small, other, "a")
        drop(small, "a")
        for peer in (second, first, other, stranger, second):
            ask(small, peer, GetMetrics())
        assert [each for each in second.asides if isinstance(each, SegmentsRetired)] == [SegmentsRetired((number,))]
        assert other.asides == [SegmentsRetired((number,))]
        assert (first.asides, stranger.asides) == ([], [])


def test_view_tells_what_is_retired_too(small: Stage) -> None:
    """Whoever only ever opens views lets go as well."""
    keep(small, "a", "b")
    with joined(small, "reader") as reader:
        (number,) = announced(small, reader, "a")
        drop(small, "a")
        reader.send(AskView(1, ("p",)))
        assert isinstance(answered(small, reader), ViewOpened)
        assert SegmentsRetired((number,)) in reader.asides


def test_retired_bytes_are_counted_until_everybody_lets_go(small: Stage) -> None:
    """The last of the holders to say so ends it; saying it twice, or of what one never had, changes nothing."""
    keep(small, "a")
    with joined(small, "one") as one, joined(small, "two") as two, joined(small, "stranger") as stranger:
        (number,) = announced(small, one, "a")
        announced(small, two, "a")
        size = small.owner.bodies.segment(number).size
        drop(small, "a")
        stranger.send(SegmentsReleased((number, 999)))
        memory = usage(small, stranger)
        assert (memory.retired_segments, memory.retired_bytes) == (1, size)
        one.send(SegmentsReleased((number,)), SegmentsReleased((number,)))
        memory = usage(small, one)
        assert (memory.retired_segments, memory.retired_bytes) == (1, size)
        two.send(SegmentsReleased((number,)))
        memory = usage(small, two)
        assert (memory.retired_segments, memory.retired_bytes) == (0, 0)


def test_segment_that_nobody_has_is_not_counted(small: Stage) -> None:
    """Its memory is gone with it."""
    keep(small, "a")
    with joined(small, "a") as peer:
        drop(small, "a")
        assert usage(small, peer).retired_bytes == 0


def test_what_was_let_go_of_before_it_retired_is_no_news(small: Stage) -> None:
    """A session that has released a segment is not told of its end."""
    keep(small, "a")
    with joined(small, "reader") as reader:
        (number,) = announced(small, reader, "a")
        reader.send(SegmentsReleased((number,)))
        assert usage(small, reader).retired_bytes == 0
        drop(small, "a")
        assert usage(small, reader).retired_bytes == 0
        ask(small, reader, GetMetrics())
        assert reader.asides == []


@pytest.mark.parametrize("end", ["hangs up", "says goodbye"])
def test_session_that_ends_holds_nothing(small: Stage, end: str) -> None:
    """The kernel has taken its mappings, or will; they are not counted for ever."""
    keep(small, "a")
    with joined(small, "other") as other:
        reader = joined(small, "reader")
        announced(small, reader, "a")
        drop(small, "a")
        assert usage(small, other).retired_segments == 1
        if end == "says goodbye":
            reader.send(Goodbye())
        else:
            reader.close()
        small.turn_until(lambda: small.peers == 1)
        assert usage(small, other).retired_segments == 0
        reader.close()


def test_who_holds_on_longest_is_disconnected(small: Stage, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """Past the bound, the holder of the oldest goes, and can come back and go on; the others stay."""
    monkeypatch.setattr(limits, "RETIRED_BYTES_MAX", 5 * MIB)
    keep(small, "a", "b")
    with joined(small, "old") as old, joined(small, "old") as older, joined(small, "new") as new:
        announced(small, old, "a")
        announced(small, new, "b")
        drop(small, "a")
        clock.forward(1)
        small.turn(2)
        assert small.peers == 3
        drop(small, "b")
        clock.forward(1)
        small.turn_until(lambda: small.peers == 1)
        assert gone(old)
        assert gone(older)
        assert small.loop._evicted == 2
        memory = usage(small, new)
        assert (memory.retired_segments, memory.retired_bytes <= limits.RETIRED_BYTES_MAX) == (1, True)
        keep(small, "c")
        with joined(small, "old") as back:
            assert announced(small, back, "c")


def test_holder_of_several_is_disconnected_once(small: Stage, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """Whoever shares the oldest goes too; with their going the bound is kept."""
    monkeypatch.setattr(limits, "RETIRED_BYTES_MAX", MIB)
    keep(small, "a", "b")
    with joined(small, "one") as one, joined(small, "two") as two, joined(small, "idle") as idle:
        for peer in (one, two):
            announced(small, peer, "a")
            announced(small, peer, "b")
        drop(small, "a")
        drop(small, "b")
        clock.forward(1)
        small.turn_until(lambda: small.peers == 1)
        assert small.loop._evicted == 2
        assert usage(small, idle).retired_bytes == 0


def test_client_that_held_on_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps what it holds, readable, and its next call, on another connection, works."""
    monkeypatch.setattr(limits, "RETIRED_BYTES_MAX", MIB)
    with served(TierBudget(arena_bytes=32 * MIB)) as stage, sw.connect(stage.address, projects=["p"]) as client:
        body = noise(LARGE)
        client.tiers.store(sw.Fragment(fragment_id="a", body=body, tokens=1))
        held = client.tiers.get("a")
        client.tiers.delete("a")
        eventually(lambda: stage.loop._evicted == 1)
        assert held.body == body
        client.tiers.store(sw.Fragment(fragment_id="b", body=body[1:], tokens=1))
        assert client.tiers.get("b").body == body[1:]
        assert held.body == body


def test_replaced_hash_table_of_the_index_is_retired(small: Stage) -> None:
    """It is closed behind the turn, and counts for as long as a session holds it, although no body was freed."""
    replaced = MemorySegment(number=1_000_000, size=mmap.PAGESIZE)
    session = SessionRecord(SessionRow("s", None, 0, ""), None)
    small.loop._sharing.holders.add(session, [replaced.number])
    small.owner.index.retired.append(replaced)
    small.loop._sharing.close_retired()
    assert (small.loop._sharing.holders.retired_bytes, session.notices) == (replaced.size, [replaced.number])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(replaced.descriptor)


# The bookkeeping by itself.


def test_holders_forget_whom_they_never_knew() -> None:
    """A session without segments, and a segment without holders, cost nothing."""
    holders = SegmentHolders()
    session = SessionRecord(SessionRow("s", None, 0, ""), None)
    holders.remove(session)
    holders.retire([(1, 100)])
    assert (holders.retired, holders.retired_bytes, holders.oldest()) == (0, 0, set())


def test_oldest_is_what_retired_first() -> None:
    """Not what was given first, and not the lowest number."""
    holders = SegmentHolders()
    one, two = (SessionRecord(SessionRow(name, None, 0, ""), None) for name in ("one", "two"))
    holders.add(one, [1])
    holders.add(two, [2])
    holders.retire([(2, 10)])
    holders.retire([(1, 20)])
    assert (holders.oldest(), holders.retired_bytes) == ({two}, 30)
    holders.remove(two)
    assert (holders.oldest(), holders.retired_bytes) == ({one}, 20)
    assert (one.notices, two.notices) == ([1], [])


def test_whoever_comes_back_is_still_a_holder(stage: Stage) -> None:
    """It says what it has mapped, so that it is told when that is gone; what is gone already is not counted."""
    stage.owner.execute(store("a"), ORIGIN)
    (number,) = stage.owner.bodies.arena.segments
    with RawPeer(stage.address) as peer:
        peer.send(Hello(VERSION, "back", None, (number, 999)))
        assert isinstance(answered(stage, peer), Welcome)
        session = connection_of(stage, "back").session
        assert session is not None
        assert session.segments == {number}


def test_view_brings_no_other_catalogues(stage: Stage) -> None:
    """Whoever looks at one project has no use for what is listed of another."""
    for project in ("p", "q"):
        stage.owner.execute(store("a", project=project), ORIGIN)
    with joined(stage, "q") as first, joined(stage, "p") as second:
        first.send(AskView(1, ("q",)))
        assert isinstance(answered(stage, first), ViewOpened)
        others = {*stage.owner.bodies.arena.raw_segments}
        assert others
        second.send(AskView(1, ("p",)))
        assert isinstance(answered(stage, second), ViewOpened)
        assert not connection_of(stage, "p").known & others
        assert connection_of(stage, "p").known | others == {*stage.owner.bodies.arena.segments}
