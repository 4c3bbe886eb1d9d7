"""The arena: bodies in segments, under a bound that it never passes, and room that comes back."""

import errno
import itertools
import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell import limits
from stepwell.limits import KIB, MIB
from stepwell.memory.writer.arena import HEADER, Arena, ArenaSpan, OutOfRoom, record_bytes, shared_segment_bytes
from stepwell.memory.writer.segments import MemorySegment, Segment
from tests.support.memory.bodies import Watched, noise

SEGMENT = 64 * KIB
DIGEST = bytes(range(32))


def made(limit: int = 16 * SEGMENT, make: Callable[[int, int], Segment] = Watched) -> Arena:
    arena = Arena(make, itertools.count(1), SEGMENT)
    arena.limit = limit
    return arena


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = made()
    yield arena
    arena.close()


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


def put(arena: Arena, key: bytes, data: bytes | memoryview) -> ArenaSpan:
    handle = arena.append(key, data, len(data), packed=False)
    assert (handle.size, handle.is_packed) == (handle.stored, False)
    return ArenaSpan(handle.segment, handle.offset, handle.stored)


def stored(arena: Arena, place: ArenaSpan) -> bytes:
    return arena.segments[place.segment].read(place.offset, place.length)


def fill(arena: Arena, count: int, length: int = SEGMENT // 16 - HEADER.size) -> list[ArenaSpan]:
    """Bodies of which sixteen fill a segment, unless another length is said."""
    return [put(arena, digest(number), noise(length, number)) for number in range(count)]


def walk(arena: Arena) -> Iterator[tuple[Segment, int, ArenaSpan]]:
    for segment in arena.segments.values():
        for number, place in arena.records(segment):
            yield segment, int.from_bytes(number, "big"), place


def out_of_space(*_arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class TestAppending:
    def test_body_is_where_its_place_says(self, arena: Arena) -> None:
        """One behind the other, each aligned, with its digest and length before it."""
        bodies = [noise(length, length) for length in (0, 1, 7, 8, 9, 1_000)]
        places = [put(arena, digest(len(body)), memoryview(body)) for body in bodies]
        assert [stored(arena, place) for place in places] == bodies
        assert {place.offset % 8 for place in places} == {0}
        (segment,) = arena.segments.values()
        assert [*arena.records(segment)] == [
            (digest(len(body)), place) for body, place in zip(bodies, places, strict=True)
        ]
        assert arena.live == segment.live == segment.used == sum(record_bytes(len(body)) for body in bodies)

    def test_full_segment_is_followed_by_another(self, arena: Arena) -> None:
        """Sixteen fill one exactly, and the next opens the second."""
        assert {place.segment for place in fill(arena, 16)} == {1}
        assert arena.bytes == SEGMENT
        assert fill(arena, 1)[0].segment == 2
        assert arena.bytes == 2 * SEGMENT

    def test_large_body_has_a_segment_of_its_own(self, arena: Arena) -> None:
        """One that does not fit, and is larger than what may be given up, leaves the shared one as it is."""
        small = fill(arena, 1)[0]
        large = put(arena, DIGEST, bytes(3 * SEGMENT + 1))
        assert arena.segments[large.segment].size == 3 * SEGMENT + 4096
        assert fill(arena, 1)[0].segment == small.segment
        assert put(arena, DIGEST, bytes(SEGMENT // 2)).segment == small.segment

    def test_bound_is_not_passed(self, arena: Arena) -> None:
        """What does not fit under it is refused; what is kept for emptying is touched by nobody else."""
        with pytest.raises(OutOfRoom, match="its 1048576 bytes are taken"):
            fill(arena, 1_000)
        assert arena.bytes == arena.limit - 2 * SEGMENT
        for want in (
            lambda: arena.reserve(SEGMENT),
            lambda: arena.add_raw_segment(4096),
            lambda: arena.ensure_room(SEGMENT),
            lambda: put(arena, DIGEST, bytes(SEGMENT)),
        ):
            with pytest.raises(OutOfRoom):
                want()
        assert arena.bytes == arena.limit - 2 * SEGMENT

    def test_small_arena_uses_all_of_it(self) -> None:
        """Where two segments are a large part of all there is, none are kept."""
        arena = made(4 * SEGMENT)
        with pytest.raises(OutOfRoom):
            fill(arena, 1_000)
        assert arena.bytes == arena.limit
        arena.close()


class TestFreeing:
    def test_last_body_takes_its_segment_along(self, arena: Arena) -> None:
        """At once, and it is reported once, with its size; the one that is being filled stays."""
        places = fill(arena, 17)
        for place in places[:15]:
            arena.free(place.segment, place.length)
        assert arena.segments.keys() == {1, 2}
        arena.free(places[15].segment, places[15].length)
        assert ({*arena.segments}, arena.close_retired()) == ({2}, [(1, SEGMENT)])
        arena.free(places[16].segment, places[16].length)
        assert ({*arena.segments}, arena.live, arena.bytes) == ({2}, 0, SEGMENT)

    def test_empty_one_goes_when_it_is_not_filled_any_more(self, arena: Arena) -> None:
        """Nothing is live in it, and the next body opens another."""
        for place in fill(arena, 16):
            arena.free(place.segment, place.length)
        fill(arena, 1)
        assert ({*arena.segments}, arena.close_retired()) == ({2}, [(1, SEGMENT)])

    def test_closing_leaves_nothing(self, arena: Arena) -> None:
        """All descriptors and mappings go, which the leak check of every test sees to."""
        fill(arena, 40)
        arena.add_raw_segment(4096)
        put(arena, DIGEST, bytes(2 * SEGMENT))
        assert len(arena.segments) == 5
        arena.close()
        assert (arena.segments, arena.bytes) == ({}, 0)


class TestReserving:
    def test_place_is_pinned_until_it_is_settled(self, arena: Arena) -> None:
        """Its segment is no victim meanwhile; afterwards it is a body like any other."""
        place = arena.reserve(100)
        segment = arena.segments[place.segment]
        assert segment.pins == 1
        assert [*arena.records(segment)] == [(bytes(32), place)]
        assert arena.prepare(place)
        segment.write(place.offset, noise(100))
        arena.commit(place, DIGEST)
        assert segment.pins == 0
        assert [*arena.records(segment)] == [(DIGEST, place)]
        assert stored(arena, place) == noise(100)

    def test_abandoned_place_is_dead(self, arena: Arena) -> None:
        """Of a shared segment it is a hole, of one of its own the segment goes."""
        kept = fill(arena, 1)[0]
        arena.abandon(arena.reserve(100))
        large = arena.reserve(2 * SEGMENT)
        arena.abandon(large)
        assert arena.live == record_bytes(kept.length)
        assert arena.segments.keys() == {kept.segment}
        assert [number for number, _ in arena.close_retired()] == [large.segment]

    def test_abandoned_while_it_was_the_last(self, arena: Arena) -> None:
        """A segment that is full and holds nothing but a pinned place goes with it, not before."""
        place = arena.reserve(SEGMENT - HEADER.size)
        fill(arena, 1)
        assert place.segment in arena.segments
        arena.abandon(place)
        assert place.segment not in arena.segments

    @pytest.mark.parametrize("shared", [True, False])
    def test_memory_of_a_large_one_comes_in_parts(self, shared: bool) -> None:  # noqa: FBT001
        """Reserving allocates no more than it writes; preparing, a bounded part each time."""
        arena = Arena(MemorySegment, itertools.count(1), 16 * MIB if shared else MIB)
        arena.limit = 512 * MIB
        if shared:
            put(arena, DIGEST, b"")
        place = arena.reserve(15 * MIB)
        segment = arena.segments[place.segment]
        seen = [segment.allocated]
        while not arena.prepare(place):
            seen.append(segment.allocated)
        seen.append(segment.allocated)
        assert seen[0] <= limits.ALLOCATION_BYTES
        assert max(after - before for before, after in itertools.pairwise(seen)) <= limits.PREPARED_BYTES_PER_TURN
        assert segment.allocated >= place.offset + place.length
        assert arena.prepare(place)
        arena.close()

    def test_body_behind_one_that_is_not_there_yet(self) -> None:
        """Whatever comes behind a reserved place finds its own memory."""
        arena = Arena(Watched, itertools.count(1), 16 * MIB)
        arena.limit = 512 * MIB
        put(arena, DIGEST, b"")
        place = arena.reserve(5 * MIB)
        arena.ensure_room(record_bytes(100))
        behind = put(arena, DIGEST, noise(100))
        assert behind.segment == place.segment
        assert stored(arena, behind) == noise(100)
        arena.close()


class TestEnsuring:
    @given(
        before=st.lists(st.integers(0, 20_000), max_size=8),
        wanted=st.lists(st.integers(0, 70_000), max_size=12),
        data=st.data(),
    )
    def test_append_cannot_fail_afterwards(self, before: list[int], wanted: list[int], data: st.DataObject) -> None:
        """Bodies of any sizes, in any order, all of them or some, find room without asking the kernel for any."""
        arena = made(64 * SEGMENT)
        try:
            for length in before:
                put(arena, DIGEST, bytes(length))
            arena.ensure_room(sum(map(record_bytes, wanted)))
            arena.resize(0, SEGMENT)
            segments = {*arena.segments}
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "posix_fallocate", out_of_space)
                patch.setattr(arena, "_make", out_of_space)
                for length in data.draw(st.permutations(wanted)):
                    if data.draw(st.booleans()):
                        put(arena, DIGEST, bytes(length))
            assert {*arena.segments} == segments
        finally:
            arena.close()

    def test_what_cannot_be_had_is_refused_now(self, arena: Arena) -> None:
        """More than the bound, at once."""
        with pytest.raises(OutOfRoom, match="are taken"):
            arena.ensure_room(arena.limit)
        assert arena.segments == {}

    def test_more_than_a_segment_is_one_segment(self, arena: Arena) -> None:
        """So that it is enough to have made one; an empty one before it goes."""
        arena.ensure_room(10)
        arena.ensure_room(3 * SEGMENT + 1)
        assert [segment.size for segment in arena.segments.values()] == [3 * SEGMENT + 4096]
        assert arena.close_retired() == [(1, SEGMENT)]

    def test_asked_twice_is_asked_once(self, arena: Arena) -> None:
        """What is there already is enough."""
        arena.ensure_room(1_000)
        (segment,) = arena.segments.values()
        assert segment.used == 0
        arena.ensure_room(SEGMENT)
        assert [*arena.segments.values()] == [segment]


class TestWithoutMemory:
    @pytest.mark.parametrize(
        "want",
        [
            lambda arena: put(arena, DIGEST, bytes(100)),
            lambda arena: put(arena, DIGEST, bytes(2 * SEGMENT)),
            lambda arena: arena.reserve(100),
            lambda arena: arena.reserve(2 * SEGMENT),
            lambda arena: arena.ensure_room(100),
        ],
        ids=["append", "append large", "reserve", "reserve large", "ensure"],
    )
    @pytest.mark.parametrize("lacking", ["os.posix_fallocate", "os.memfd_create"])
    def test_nothing_can_be_had(
        self, want: Callable[[Arena], object], lacking: str, arena: Arena, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is said, nothing is counted, nothing leaks; and later there is some again."""
        with monkeypatch.context() as patch:
            patch.setattr(lacking, out_of_space)
            with pytest.raises(OutOfRoom, match="No space left on device"):
                want(arena)
        assert (arena.segments, arena.bytes, arena.live, arena.retired) == ({}, 0, 0, {})
        want(arena)

    def test_segment_cannot_be_had_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One that has room in name only: whoever asks for more of it is told, and it stays usable."""
        arena = Arena(Watched, itertools.count(1), 16 * MIB)
        arena.limit = 512 * MIB
        kept = put(arena, DIGEST, noise(100))
        place = arena.reserve(5 * MIB)
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", out_of_space)
            with pytest.raises(OutOfRoom):
                arena.prepare(place)
            with pytest.raises(OutOfRoom):
                put(arena, DIGEST, bytes(2 * MIB))
            with pytest.raises(OutOfRoom):
                arena.ensure_room(2 * MIB)
        arena.abandon(place)
        assert arena.live == record_bytes(100)
        assert stored(arena, kept) == noise(100)
        put(arena, DIGEST, bytes(2 * MIB))
        arena.close()


class TestOtherSegments:
    def test_they_count_and_are_no_victims(self, arena: Arena) -> None:
        """What catalogues are in is under the same bound, and nobody moves it."""
        segment = arena.add_raw_segment(8 * 4096)
        assert (arena.bytes, arena.live) == (8 * 4096, 8 * 4096)
        assert arena.victim(pressed=True) is None
        arena.drop_raw_segment(segment.number)
        assert (arena.bytes, arena.live, arena.close_retired()) == (0, 0, [(segment.number, 8 * 4096)])


class TestVictims:
    def half_dead(self, arena: Arena, segments: int) -> None:
        for place in fill(arena, 16 * segments)[::2]:
            arena.free(place.segment, place.length)
        fill(arena, 1)

    def test_worst_comes_first(self, arena: Arena) -> None:
        """The one that gives back most, once enough is dead, and never the one that is being filled."""
        places = fill(arena, 16 * 4 + 1)
        assert arena.victim(pressed=False) is None
        for place in (*places[:3], *places[16:28], *places[32:36]):
            arena.free(place.segment, place.length)
        victim = arena.victim(pressed=False)
        assert victim is not None
        assert victim.number == places[16].segment

    def test_little_is_enough_only_when_pressed(self, arena: Arena) -> None:
        """A fifth of all bytes may be dead before anything is moved; less than that when there is little room."""
        places = fill(arena, 16 * 5 + 1)
        for place in places[::6]:
            arena.free(place.segment, place.length)
        assert arena.victim(pressed=False) is None
        assert arena.victim(pressed=True) is not None

    def test_next_to_nothing_is_never_enough(self) -> None:
        """Moving a whole segment for a sixty-fourth of it would be work without an end."""
        arena = made(64 * SEGMENT)
        for place in fill(arena, 256 * 3, SEGMENT // 256 - HEADER.size)[:3]:
            arena.free(place.segment, place.length)
        assert arena.victim(pressed=True) is None
        arena.close()

    def test_remainders_are_no_gain(self, arena: Arena) -> None:
        """Bodies that leave a remainder at the end of a segment would leave it elsewhere too."""
        fill(arena, 16 * 6, SEGMENT // 9)
        assert arena.live * 100 < 90 * arena.bytes
        assert arena.victim(pressed=True) is None

    def test_what_was_given_up_is_a_gain(self, arena: Arena) -> None:
        """A segment that was given up half empty, because many bodies came together, is worth it."""
        fill(arena, 4)
        arena.ensure_room(SEGMENT)
        victim = arena.victim(pressed=False)
        assert victim is not None
        assert victim.number == 1

    def test_pinned_is_no_victim(self, arena: Arena) -> None:
        """Somebody is writing there."""
        self.half_dead(arena, 1)
        victim = arena.victim(pressed=True)
        assert victim is not None
        victim.pins += 1
        assert arena.victim(pressed=True) is None

    def test_there_is_room_for_a_victim_in_a_full_arena(self, arena: Arena) -> None:
        """What is kept is enough to empty any segment that bodies share, large ones included."""
        with pytest.raises(OutOfRoom):
            for number in itertools.count():
                put(arena, digest(number), bytes(SEGMENT // 4 if number % 4 else SEGMENT // 16))
        for segment, number, place in [*walk(arena)]:
            if number % 4 == 1 and segment.size == SEGMENT:
                arena.free(segment.number, place.length)
        assert arena.bytes + SEGMENT > arena.limit - 2 * SEGMENT
        victim = arena.victim(pressed=True)
        assert victim is not None
        for key, place in [*arena.records(victim)]:
            if int.from_bytes(key, "big") % 4 != 1:
                moved = arena.reserve(place.length, emptying=True)
                arena.prepare(moved)
                arena.commit(moved, key)
                arena.free(place.segment, place.length)
                assert arena.bytes <= arena.limit
        assert victim.number not in arena.segments

    def test_no_victim_without_room_for_what_is_live(self) -> None:
        """In an arena of a few segments that is full, moving would only be begun."""
        arena = made(4 * SEGMENT)
        places = fill(arena, 16 * 4)
        for place in places[:8]:
            arena.free(place.segment, place.length)
        assert arena.victim(pressed=True) is None
        arena.close()

    def test_room_left_in_the_current_one_is_room(self) -> None:
        """What is live in the victim fits behind what was written last."""
        arena = made(4 * SEGMENT)
        places = fill(arena, 16 * 3 + 2)
        for place in places[:8]:
            arena.free(place.segment, place.length)
        victim = arena.victim(pressed=True)
        assert victim is not None
        assert victim.number == 1
        arena.close()

    def test_bound_that_was_lowered(self, arena: Arena) -> None:
        """An arena that is past its bound can be emptied, and takes nothing else until it is below."""
        arena.resize(32 * SEGMENT, SEGMENT)
        self.half_dead(arena, 20)
        arena.resize(16 * SEGMENT, SEGMENT)
        assert arena.victim(pressed=True) is not None
        with pytest.raises(OutOfRoom):
            arena.reserve(SEGMENT)
        arena.abandon(arena.reserve(SEGMENT, emptying=True))
        arena.resize(32 * SEGMENT, SEGMENT)
        arena.abandon(arena.reserve(SEGMENT))


def test_dead_segment_makes_way_for_the_next() -> None:
    """Where the bound is too near for both."""
    arena = Arena(MemorySegment, itertools.count(1), SEGMENT)
    arena.limit = SEGMENT
    first = arena.append(bytes(32), bytes(SEGMENT - 100), SEGMENT - 100, packed=False)
    arena.free(first.segment, first.stored)
    second = arena.append(bytes(32), bytes(SEGMENT - 100), SEGMENT - 100, packed=False)
    assert ({*arena.segments}, second.segment) == ({2}, 2)
    arena.close()


@pytest.mark.parametrize(
    "arena_bytes,expected",
    [(1, 64 * KIB), (32 * MIB, MIB), (100 * MIB, 3276800), (1024 * MIB, 16 * MIB), (1 << 40, 16 * MIB)],
)
def test_size_of_segments(arena_bytes: int, expected: int) -> None:
    """A thirty-second of the arena, in whole pages, within bounds."""
    assert shared_segment_bytes(arena_bytes) == expected
