"""Mappings: the segments that a client has mapped read-only, and bodies read where they lie.

A mapping lives for as long as the client looks at a body in it, whatever becomes of the segment: a memoryview keeps its
mapping alive, and bytes in a segment never change. When the manager retires a segment, the client drops its own
reference at once. As soon as the last memoryview is gone, the segment is reported to the manager as released, so that
the manager can account for the memory.
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
    """The segments that a client has mapped, by number. Any thread may use it.

    The session of a client owns it. The lock protects the tables. `mapped` has the segments by number; it may be read
    without the lock. `released` has the segments whose release is to be
    reported. It is a deque without a lock, because it is appended to by a weakref callback, which may run in any thread
    at any time, even while the lock is held.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        """Start with no mappings and a new lock."""
        self._lock = threading.Lock()
        self.mapped: dict[int, memoryview] = {}  # each the only reference to its mapping
        self._retired: deque[int] = deque(maxlen=limits.RETIRED_REMEMBERED)
        self._alive: dict[int, weakref.ref[object]] = {}  # unmapped here, and still viewed by the program
        self.released: deque[int] = deque()

    def __len__(self) -> int:
        return len(self.mapped)

    def map_segment(self, number: int, size: int, descriptor: int) -> None:
        """Map a segment that the manager sent, unless it is known or retired already.

        The descriptor is closed in any case. Raise `RuntimeFault` if the process may not map more.
        """
        try:
            with self._lock:
                if number not in self.mapped and number not in self._retired:
                    self.mapped[number] = memoryview(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))
        except OSError as error:
            raise RuntimeFault(
                f"shared memory cannot be mapped ({error.strerror}): raise `ulimit -n` or `ulimit -v`"
            ) from error
        finally:
            os.close(descriptor)

    def retire(self, numbers: Iterable[int]) -> None:
        """Unmap retired segments. Each is reported as released once no memoryview of it is left."""
        with self._lock:
            for number in numbers:
                self._retired.append(number)
                self._unmap(number)

    def retain_only(self, numbers: Collection[int]) -> None:
        """Unmap all segments but these, which were live when the manager greeted a new connection.

        Segments that are newer than all of them were added after the greeting and stay.
        """
        newest = max(numbers, default=0)
        with self._lock:
            for number in self.mapped.keys() - numbers:
                if number < newest:
                    self._unmap(number)

    def _unmap(self, number: int) -> None:
        """Drop the reference to a mapping, and record its release when the last memoryview is gone."""
        view = self.mapped.pop(number, None)
        if view is not None:
            released = self.released
            self._alive[number] = weakref.ref(view.obj, lambda _: released.append(number))
        elif number not in self._alive:
            self.released.append(number)

    def pop_released(self) -> tuple[int, ...]:
        """Return the segments that were released since the last call, as many as fit in a message."""
        found: list[int] = []
        with contextlib.suppress(IndexError):
            while len(found) < limits.RELEASED_PER_MESSAGE_MAX:
                found.append(self.released.popleft())
        for number in found:
            self._alive.pop(number, None)
        return tuple(found)

    def restore_released(self, released: Iterable[int]) -> None:
        """Put segments back whose report did not reach the manager."""
        self.released.extend(released)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the mapped segments, as many as fit in a greeting."""
        with self._lock:
            return tuple(self.mapped)[: limits.MAPPED_MAX]

    def find(self, handle: Handle) -> memoryview:
        """Return the stored bytes of a handle, in place. They stay readable for as long as they are held.

        Raise `BodyGone` if the segment is not mapped any more: the caller asks the manager for a new handle.
        """
        offset = handle.offset
        return self._view(handle.segment)[offset : offset + handle.stored]

    def has_all(self, numbers: Iterable[int]) -> bool:
        """Return True if all of these segments are mapped."""
        return all(number in self.mapped for number in numbers)

    def segment(self, number: int) -> memoryview:
        """Return all of a segment. The caller releases it."""
        return memoryview(self._view(number))

    def _view(self, number: int) -> memoryview:
        view = self.mapped.get(number)
        if view is None:
            raise BodyGone(f"segment {number} is not there any more")
        return view

    def close(self) -> None:
        """Unmap everything. Memoryviews that the program holds stay readable."""
        with self._lock:
            self.mapped.clear()

    def clear(self) -> None:
        """Start anew in a forked child: mappings and locks that it inherited belong to the parent."""
        self._reset()


def content(stored: memoryview, handle: Handle) -> memoryview:
    """Return the body: the stored bytes in place, or expanded if they are packed."""
    return memoryview(unpack(stored, handle.size)) if handle.is_packed else stored
