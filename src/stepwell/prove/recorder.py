"""Records of one process, written to a file as they are made, and the order in which a watch shows writes."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from stepwell.domain.events import AnyEvent, FragmentDeleted, FragmentStored
from stepwell.prove.history import AnyRecord, WatchRecord, encode

END_KEY = "end"
"""The key of a fragment that is stored after all calls of a run: a watch that shows it has shown everything before."""


class Recorder:
    """Appends records to a file. The threads of one process share it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._lock = threading.Lock()

    def record(self, *records: AnyRecord) -> None:
        """Append records; those of one call stay together."""
        lines = b"".join(map(encode, records))
        with self._lock:
            self._file.write(lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()


class WatchRecorder:
    """Collects the writes that one watch shows, in the order in which they come. One thread or task uses it."""

    def __init__(self, process: int, kind: str) -> None:
        self._process, self._kind = process, kind
        self._events: list[tuple[str, str | None]] = []
        self._has_gap = False

    def add(self, event: AnyEvent) -> bool:
        """Add an event. Return False if it is the one that ends the run."""
        match event:
            case FragmentStored():
                if event.fragment_id == END_KEY:
                    return False
                self._events.append((event.fragment_id, event.digest.hex()))
            case FragmentDeleted():
                self._events.append((event.fragment_id, None))
            case _:
                pass
        return True

    def note_gap(self) -> None:
        """Note that events were missed: the order of the others proves nothing about those."""
        self._has_gap = True

    def result(self, *, is_ended: bool) -> WatchRecord:
        """Return the record. `is_ended` says that the watch has shown the end of the run."""
        return WatchRecord(self._process, self._kind, is_ended and not self._has_gap, tuple(self._events))
