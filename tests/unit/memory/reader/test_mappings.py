"""The readers' side: a mapping lives for as long as somebody looks, and not longer."""

import errno
import gc
import mmap
import os
import threading
from collections.abc import Iterator

import pytest

from stepwell import limits
from stepwell.errors import BodyGone, RuntimeFault
from stepwell.memory.compression import Compressor
from stepwell.memory.reader.mappings import Mappings, content
from stepwell.memory.writer.segments import MemorySegment
from stepwell.protocol.handles import Handle

SIZE = 4096


def body_of(number: int) -> bytes:
    return f"the body in segment {number}".encode()


class Manager:
    """Gives descriptors of segments with one body each, like a manager does."""

    def __init__(self) -> None:
        self.segments: dict[int, MemorySegment] = {}

    def make(self, number: int) -> None:
        segment = self.segments[number] = MemorySegment(number, SIZE)
        segment.allocate(SIZE)
        segment.write(0, body_of(number))

    def descriptor(self, number: int) -> int:
        if number not in self.segments:
            self.make(number)
        return os.dup(self.segments[number].descriptor)

    def close(self) -> None:
        for segment in self.segments.values():
            segment.close()


@pytest.fixture
def manager() -> Iterator[Manager]:
    manager = Manager()
    yield manager
    manager.close()


@pytest.fixture
def mappings() -> Iterator[Mappings]:
    mappings = Mappings()
    yield mappings
    mappings.close()


def adopt(mappings: Mappings, manager: Manager, *numbers: int) -> None:
    for number in numbers:
        mappings.map_segment(number, SIZE, manager.descriptor(number))


def handle(number: int) -> Handle:
    size = len(body_of(number))
    return Handle(number, 0, size)


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


class TestFinding:
    def test_body_is_read_where_it_lies(self, mappings: Mappings, manager: Manager) -> None:
        """The memoryview is on the shared memory itself, and read-only."""
        adopt(mappings, manager, 1, 2)
        found = mappings.find(handle(2))
        assert found == body_of(2)
        assert isinstance(found.obj, mmap.mmap)
        with pytest.raises(TypeError, match="read-only"):
            found[0] = 0

    def test_what_is_not_there(self, mappings: Mappings) -> None:
        """Is `BodyGone`, which the client answers by asking again."""
        with pytest.raises(BodyGone, match="segment 7 is not there any more"):
            mappings.find(handle(7))
        with pytest.raises(BodyGone):
            mappings.segment(7)

    def test_content(self) -> None:
        """Raw bytes are not copied; packed ones are expanded."""
        raw = memoryview(b"raw")
        assert content(raw, Handle(1, 0, 3)) is raw
        packed = memoryview(Compressor().pack(b"x" * 1_000))
        expanded = content(packed, Handle(1, 0, 1_000, packed_bytes=len(packed)))
        assert (bytes(expanded), expanded.readonly) == (b"x" * 1_000, True)


class TestAdopting:
    def test_descriptor_is_closed(self, mappings: Mappings, manager: Manager) -> None:
        """The mapping is enough, and a second copy of a segment is not mapped."""
        descriptors = [manager.descriptor(1) for _ in range(2)]
        for descriptor in descriptors:
            mappings.map_segment(1, SIZE, descriptor)
        assert [is_open(descriptor) for descriptor in descriptors] == [False, False]
        assert len(mappings) == 1

    def test_late_descriptor_of_a_retired_segment(self, mappings: Mappings, manager: Manager) -> None:
        """It crossed, on another connection, the word that the segment is gone: it does not bring it back."""
        adopt(mappings, manager, 1)
        mappings.retire([1, 2])
        late = [manager.descriptor(number) for number in (1, 2)]
        for number, descriptor in zip((1, 2), late, strict=True):
            mappings.map_segment(number, SIZE, descriptor)
        assert len(mappings) == 0
        assert not any(map(is_open, late))

    def test_no_room_for_a_mapping(self, mappings: Mappings, manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
        """It says what to do, and keeps no descriptor."""
        descriptor = manager.descriptor(1)

        def fail(*_arguments: object, **_keywords: object) -> None:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

        monkeypatch.setattr(mmap, "mmap", fail)
        with pytest.raises(RuntimeFault, match=r"cannot be mapped \(Cannot allocate memory\): raise `ulimit"):
            mappings.map_segment(1, SIZE, descriptor)
        assert not is_open(descriptor)
        assert len(mappings) == 0


class TestLettingGo:
    def test_retired_while_nobody_looks(self, mappings: Mappings, manager: Manager) -> None:
        """It is unmapped and reported, once."""
        adopt(mappings, manager, 1, 2)
        seen = [bool(mappings.released)]
        mappings.retire([1])
        seen.append(bool(mappings.released))
        assert seen == [False, True]
        assert mappings.pop_released() == (1,)
        assert mappings.pop_released() == ()
        with pytest.raises(BodyGone):
            mappings.find(handle(1))
        assert mappings.find(handle(2)) == body_of(2)

    def test_retired_while_somebody_looks(self, mappings: Mappings, manager: Manager) -> None:
        """What is held stays readable; only when it is let go of is the segment reported."""
        adopt(mappings, manager, 1)
        held = [mappings.find(handle(1)), mappings.find(handle(1))[3:8]]
        mappings.retire([1])
        manager.segments.pop(1).close()
        assert not mappings.released
        assert held == [body_of(1), body_of(1)[3:8]]
        held.pop(0)
        gc.collect()
        assert not mappings.released
        assert held == [body_of(1)[3:8]]
        held.pop()
        assert mappings.pop_released() == (1,)

    def test_retired_after_it_was_out_of_date(self, mappings: Mappings, manager: Manager) -> None:
        """What somebody still looks at is not reported, whoever said first that it is gone."""
        adopt(mappings, manager, 1, 2)
        looking = mappings.find(handle(1))
        mappings.retain_only({2})
        mappings.retire([1])
        assert mappings.pop_released() == ()
        del looking
        assert mappings.pop_released() == (1,)

    def test_retired_without_having_been_there(self, mappings: Mappings) -> None:
        """Is reported all the same: the manager believes that we have it."""
        mappings.retire([5])
        assert mappings.pop_released() == (5,)

    def test_released_by_another_thread(self, mappings: Mappings, manager: Manager) -> None:
        """Whoever looked last may be anybody."""
        adopt(mappings, manager, 1)
        held = [mappings.find(handle(1))]
        mappings.retire([1])
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        assert mappings.pop_released() == (1,)

    def test_report_that_did_not_go(self, mappings: Mappings, manager: Manager) -> None:
        """It is made again."""
        adopt(mappings, manager, 1, 2)
        mappings.retire([1])
        mappings.restore_released(mappings.pop_released())
        assert (mappings.pop_released(), mappings.numbers) == ((1,), (2,))

    def test_report_fits_in_a_message(self, mappings: Mappings) -> None:
        """So many at a time, and none is lost."""
        count = limits.RELEASED_PER_MESSAGE_MAX
        mappings.retire(range(count + 1))
        assert mappings.pop_released() == tuple(range(count))
        assert mappings.pop_released() == (count,)

    def test_what_is_retired_is_not_remembered_for_ever(self, mappings: Mappings) -> None:
        """A client that lives long does not grow by it."""
        mappings.retire(range(2 * limits.RETIRED_REMEMBERED))
        assert len(mappings._retired) == limits.RETIRED_REMEMBERED
        while mappings.pop_released():
            pass
        assert not mappings._alive

    def test_out_of_date_after_a_lost_connection(self, mappings: Mappings, manager: Manager) -> None:
        """What is not among those in use is let go of, unless it came after that was said."""
        adopt(mappings, manager, 1, 2, 3, 9)
        mappings.retain_only({2, 5})
        assert {number for number in range(10) if number in mappings.mapped} == {2, 9}
        assert sorted(mappings.pop_released()) == [1, 3]
        mappings.retain_only(())
        assert len(mappings) == 2

    def test_closed(self, mappings: Mappings, manager: Manager) -> None:
        """Everything is let go of, but what somebody looks at stays."""
        adopt(mappings, manager, 1, 2)
        held = mappings.find(handle(1))
        mappings.close()
        assert len(mappings) == 0
        assert held == body_of(1)
        with pytest.raises(BodyGone):
            mappings.find(handle(1))

    def test_cleared_in_a_forked_child(self, mappings: Mappings, manager: Manager) -> None:
        """Nothing of the parent's is reported as ours, and its lock, which nobody will release, is not waited for."""
        adopt(mappings, manager, 1)
        mappings.retire([2])
        mappings._lock.acquire()
        mappings.clear()
        assert (len(mappings), mappings.pop_released()) == (0, ())
        adopt(mappings, manager, 1, 2)
        assert len(mappings) == 2


def test_threads_adopt_retire_and_look_at_once(mappings: Mappings, manager: Manager) -> None:
    """Whoever finds a body finds the right one; in the end every segment is reported exactly once."""
    numbers = range(1, 201)
    for number in numbers:
        manager.make(number)
    begin = threading.Barrier(4)
    wrong: list[bytes] = []
    finished = threading.Event()

    def adopting() -> None:
        begin.wait()
        adopt(mappings, manager, *numbers)

    def looking() -> None:
        begin.wait()
        while not finished.is_set():
            for number in numbers:
                try:
                    found = mappings.find(handle(number))
                except BodyGone:
                    continue
                if found != body_of(number):
                    wrong.append(bytes(found))

    def retiring() -> None:
        begin.wait()
        for number in numbers:
            mappings.retire([number])

    threads = [threading.Thread(target=each) for each in (adopting, looking, looking, retiring)]
    for thread in threads:
        thread.start()
    for thread in (threads[0], threads[3]):
        thread.join()
    finished.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(mappings) == 0
    assert sorted(mappings.pop_released()) == [*numbers]
