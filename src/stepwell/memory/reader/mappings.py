"""The readers' side: segments mapped read-only, and bodies read where they lie.

A mapping lives for as long as somebody looks at a body in it, whatever becomes of the segment meanwhile: a memoryview
keeps its mapping, and nothing in a segment ever changes. What is let go of is reported to the manager.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Collection, Iterable

from stepwell import limits
from stepwell.errors import BodyGone, RuntimeFault
from stepwell.memory.compression import unpack
from stepwell.protocol.handles import Handle


class Mappings:
    """The segments that a client has mapped, by number. Safe from any number of threads."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._mapped: dict[int, memoryview] = {}  # each of a mapping that nothing else refers to
        self._retired: deque[int] = deque(maxlen=limits.RETIRED_REMEMBERED)
        self._alive: dict[int, weakref.ref[object]] = {}  # let go of, and still looked at by somebody
        self._released: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._mapped)

    def map_segment(self, number: int, size: int, descriptor: int) -> None:
        """Map a segment. The descriptor is closed in any case."""
        try:
            with self._lock:
                if number not in self._mapped and number not in self._retired:
                    self._mapped[number] = memoryview(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))
        except OSError as error:
            raise RuntimeFault(
                f"shared memory cannot be mapped ({error.strerror}): raise `ulimit -n` or `ulimit -v`"
            ) from error
        finally:
            os.close(descriptor)

    def retire(self, numbers: Iterable[int]) -> None:
        """Segments are gone: let go of them, and report it once nobody looks at them any more."""
        with self._lock:
            for number in numbers:
                self._retired.append(number)
                self._unmap(number)

    def retain_only(self, numbers: Collection[int]) -> None:
        """These were in use a moment ago: whatever else we have is out of date, unless it is newer than all of them."""
        newest = max(numbers, default=0)
        with self._lock:
            for number in self._mapped.keys() - numbers:
                if number < newest:
                    self._unmap(number)

    def _unmap(self, number: int) -> None:
        view = self._mapped.pop(number, None)
        if view is not None:
            released = self._released
            self._alive[number] = weakref.ref(view.obj, lambda _: released.append(number))
        elif number not in self._alive:
            self._released.append(number)

    def pop_released(self) -> tuple[int, ...]:
        """Segments that were let go of since this was asked last, so many that they fit in a message."""
        found: list[int] = []
        with contextlib.suppress(IndexError):
            while len(found) < limits.RELEASED_PER_MESSAGE_MAX:
                found.append(self._released.popleft())
        for number in found:
            self._alive.pop(number, None)
        return tuple(found)

    def restore_released(self, released: Iterable[int]) -> None:
        """They were not reported after all."""
        self._released.extend(released)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The segments that are mapped, as many as can be said."""
        with self._lock:
            return tuple(self._mapped)[: limits.MAPPED_MAX]

    @property
    def has_released(self) -> bool:
        return bool(self._released)

    def find(self, handle: Handle) -> memoryview:
        """The bytes that a handle stands for, as they lie there. They stay readable for as long as they are held."""
        offset = handle.offset
        return self._view(handle.segment)[offset : offset + handle.stored]

    def segment(self, number: int) -> memoryview:
        """All of a segment: the caller's to release."""
        return memoryview(self._view(number))

    def _view(self, number: int) -> memoryview:
        view = self._mapped.get(number)
        if view is None:
            raise BodyGone(f"segment {number} is not there any more")
        return view

    def close(self) -> None:
        """Let go of everything. What somebody looks at stays for as long as they do."""
        with self._lock:
            self._mapped.clear()

    def clear(self) -> None:
        """Begin anew, in a forked child: what was inherited belongs to the parent, its locks included."""
        self._reset()


def content(stored: memoryview, handle: Handle) -> memoryview:
    """The body itself: the shared memory, or what is compressed there, expanded."""
    return memoryview(unpack(stored, handle.size)) if handle.packed else stored
