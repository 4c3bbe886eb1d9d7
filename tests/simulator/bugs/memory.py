"""Bugs of the bodies in shared memory: freed or overwritten while a row or a reader needs them."""

from __future__ import annotations

from collections.abc import Container
from contextlib import AbstractContextManager

from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.verdict import AnyChange
from stepwell.manager.state_owner import StateOwner
from stepwell.memory.writer.arena import Arena, record_bytes
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
    free = BodyStore._free

    def free_and_reuse(self: BodyStore, handle: Handle) -> None:
        segment = self.arena.segments.get(handle.segment)
        taken = record_bytes(handle.stored)
        free(self, handle)
        if segment is not None and segment is self.arena._current:
            header = record_bytes(0)
            if handle.offset - header + taken == segment.used:
                segment.used -= taken

    return patched((BodyStore, "_free", free_and_reuse))


@bug("A segment is retired when most of its bodies are dead, and not all.")
def segment_retired_with_live_bodies() -> AbstractContextManager[None]:
    def close_if_nearly_empty(self: Arena, segment: Segment) -> None:
        if segment.live < segment.used // 8 and segment is not self._current and not segment.pins:
            self._close(segment)

    return patched((Arena, "_close_if_empty", close_if_nearly_empty))
