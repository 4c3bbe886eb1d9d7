"""Bugs of the bodies in shared memory: freed or overwritten while a row or a reader needs them."""

from __future__ import annotations

from collections.abc import Container
from contextlib import AbstractContextManager
from weakref import WeakKeyDictionary

from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.verdict import AnyChange
from stepwell.manager.state_owner import StateOwner
from stepwell.memory.writer.arena import HEADER, Arena, record_bytes
from stepwell.memory.writer.body_store import BodyStore
from stepwell.memory.writer.segments import Segment
from stepwell.protocol.handles import Handle
from tests.simulator.bugs.registry import bug, patched


@bug("A body is freed with the first of the fragments that refer to it.")
def body_freed_while_referenced() -> AbstractContextManager[None]:
    recheck = StateOwner._recheck_bodies

    def free(self: StateOwner, change: AnyChange, arrived: Container[bytes]) -> None:
        recheck(self, change, arrived)
        before, after = change.before, change.after
        if isinstance(before, FragmentRow) and (after is None or before.digest != getattr(after, "digest", None)):
            handle = self._bodies.handles.get(before.digest)
            if handle is not None:
                self._bodies._drop(before.digest, handle)

    return patched((StateOwner, "_recheck_bodies", free))


@bug("The space of a freed body is used again at once, although a reader may have its handle.")
def arena_space_reused() -> AbstractContextManager[None]:
    free, append = BodyStore._free, Arena.append
    spaces: WeakKeyDictionary[Arena, dict[int, list[Handle]]] = WeakKeyDictionary()

    def note_space(self: BodyStore, handle: Handle) -> None:
        free(self, handle)
        spaces.setdefault(self.arena, {}).setdefault(record_bytes(handle.stored), []).append(handle)

    def append_to_space(self: Arena, digest: bytes, data: bytes | memoryview, size: int, packed: bool) -> Handle:  # noqa: FBT001
        length = len(data) if packed else size
        taken = record_bytes(length)
        found = spaces.get(self, {}).get(taken)
        segment = self.segments.get(found[-1].segment) if found else None
        if found is None or segment is None:
            return append(self, digest, data, size, packed)
        place = found.pop()
        segment.write(place.offset - HEADER.size, HEADER.pack(digest, length) + bytes(data))
        segment.live += taken
        self.live += taken
        self._bodies += 1
        return Handle(place.segment, place.offset, size, length if packed else 0)

    return patched((BodyStore, "_free", note_space), (Arena, "append", append_to_space))


@bug("A segment is retired when most of its bodies are dead, and not all.")
def segment_retired_with_live_bodies() -> AbstractContextManager[None]:
    def close_if_nearly_empty(self: Arena, segment: Segment) -> None:
        if segment.live < segment.used // 8 and segment is not self._current and not segment.pins:
            self._close(segment)

    return patched((Arena, "_close_if_empty", close_if_nearly_empty))
