"""The invariants of logs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from stepwell.domain.invariant_registry import invariant
from stepwell.domain.logs.model import POPPED, LogRow
from stepwell.domain.state import State
from stepwell.text import plural


@invariant
def logs_are_filed(state: State) -> Iterator[str]:
    """Each log is in the order of names and is found by its serial, and what is due to be deleted is in order."""
    logs = state.logs
    if list(logs.order) != sorted(row.key for row in logs) or dict(logs.by_serial) != {row.serial: row for row in logs}:
        yield "logs by name or by serial differ"
    due = {(due_ms, serial) for serial in logs.entries.by_log if (due_ms := logs.due_ms(serial)) is not None}
    if set(logs.due) != due or len(logs.due) != len(due):
        yield "logs by what is due differ"


@invariant
def entries_of_logs_are_in_order(state: State) -> Iterator[str]:
    """The entries of a log are in order of position and of time, and end with the one that its row names as the last.

    A reader finds entries by bisection, and a missing one at the end would be overwritten.
    """
    logs = state.logs
    if len(logs.entries) != sum(len(run) for run in logs.entries.by_log.values()):
        yield f"{plural(len(logs.entries), 'entry', 'entries')} counted"
    for serial, run in logs.entries.by_log.items():
        for older, newer in pairwise(run):
            if older.position >= newer.position or older.at_ms > newer.at_ms:
                yield f"entry {newer.position} of log {serial} is behind {older.position}"
        if run[-1].revision > state.revision:
            yield f"entry {run[-1].position} of log {serial} is of revision {run[-1].revision}, from the future"
        if any(row.log != serial for row in run) or run.bytes_from(0) != sum(row.size for row in run):
            yield f"log {serial} has another's entry, or another sum of bytes"
        if serial == POPPED:
            continue
        log = logs.by_serial.get(serial)
        if log is not None and run[-1].position > log.last_position:
            yield f"{log.key} has entry {run[-1].position} behind its last one"
    for log in logs:
        yield from _contradictions(log, state.revision)
        run = logs.entries.of(log.serial)
        if log.last_position >= log.first_position and (not run or run[-1].position != log.last_position):
            yield f"{log.key} has no entry {log.last_position}"


def _contradictions(log: LogRow, revision: int) -> Iterator[str]:
    """Yield what the positions of a log say against each other, and its head against the revision of the state."""
    if log.head > revision:
        yield f"{log.key} has head {log.head}, from the future"
    if not 1 <= log.first_position <= log.next_position or not 0 <= log.last_position < log.next_position:
        yield f"{log.key} has positions from {log.first_position} to {log.last_position} of {log.next_position}"
