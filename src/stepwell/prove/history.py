"""The values of a history: calls, their outcomes, and the orders in which watches have seen the writes.

A history is a file with one JSON value on each line, so that it can be kept, read by a person and judged again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from stepwell.errors import InvalidArgument


class StoreCall(Struct, frozen=True, tag="store"):
    """Store a value, whatever was there."""

    key: str
    value: str


class ReplaceCall(Struct, frozen=True, tag="replace"):
    """Store a value if the present one is the expected one; None expects that there is none."""

    key: str
    expected: str | None
    value: str


class GetCall(Struct, frozen=True, tag="get"):
    """Read one value."""

    key: str


class DeleteCall(Struct, frozen=True, tag="delete"):
    """Delete a value. It is declined if there is none."""

    key: str


class TransactCall(Struct, frozen=True, tag="transact"):
    """Write several keys together, or none of them."""

    writes: tuple[StoreCall | ReplaceCall, ...]


class SnapshotCall(Struct, frozen=True, tag="snapshot"):
    """Read several keys as of one moment."""

    keys: tuple[str, ...]


class PlanStepCall(Struct, frozen=True, tag="plan_step"):
    """Move a plan by a step of its lifecycle, such as `start_execute`. A completion needs the caller's own lease."""

    plan: str
    step: str


class PlanReadCall(Struct, frozen=True, tag="plan_read"):
    """Read the position of a plan, such as `execute/queued`."""

    plan: str


class LogAppendCall(Struct, frozen=True, tag="log_append"):
    """Append a value to a log."""

    log: str
    value: str


class LogPopCall(Struct, frozen=True, tag="log_pop"):
    """Remove the last value of a log, and return it; None if there is none."""

    log: str


class LogReadCall(Struct, frozen=True, tag="log_read"):
    """Read all values of a log, in order."""

    log: str


AnyCall = (
    StoreCall
    | ReplaceCall
    | GetCall
    | DeleteCall
    | TransactCall
    | SnapshotCall
    | PlanStepCall
    | PlanReadCall
    | LogAppendCall
    | LogPopCall
    | LogReadCall
)
"""The closed union of calls."""

READS: Final = (GetCall, SnapshotCall, PlanReadCall, LogReadCall)


class Accepted(Struct, frozen=True, tag="accepted"):
    """The call took effect."""


class Declined(Struct, frozen=True, tag="declined"):
    """The call had no effect, because the state did not allow it: a wrong expectation, no value, another position."""


class Observed(Struct, frozen=True, tag="observed"):
    """The values that a read returned, in the order of its keys; None for a key without a value.

    Of a log, they are its values in their order, or the one that was popped.
    """

    values: tuple[str | None, ...]


class NotDone(Struct, frozen=True, tag="not_done"):
    """The call had no effect for a reason that has nothing to do with the state, such as load."""


class NoAnswer(Struct, frozen=True, tag="no_answer"):
    """The caller does not know if the call took effect."""


AnyOutcome = Accepted | Declined | Observed | NotDone | NoAnswer
"""The closed union of outcomes."""


class RecordedCall(Struct, frozen=True, tag="call"):
    """A call of one thread, from the moment before it was made until the moment after its outcome was known.

    `end_ns` is None exactly if there was no answer: the call may take effect at any later time, or never.
    """

    process: int
    thread: int
    start_ns: int
    end_ns: int | None
    call: AnyCall
    outcome: AnyOutcome

    @property
    def lane(self) -> tuple[int, int]:
        """The process and the thread that made the call."""
        return self.process, self.thread

    @property
    def is_read(self) -> bool:
        """Return True if the call cannot change anything."""
        return isinstance(self.call, READS)


class WatchRecord(Struct, frozen=True, tag="watch"):
    """The writes that one watch has seen, in its order: key and digest of the new value, None for a deletion.

    It is complete if the watch has seen an event that was committed after all others of the run, and no gap.
    """

    process: int
    kind: str
    is_complete: bool
    events: tuple[tuple[str, str | None], ...]


class TrialHeader(Struct, frozen=True, tag="trial"):
    """The first line of a history: the subject, and the settings that repeat the same calls."""

    subject: str
    seed: int
    processes: int
    threads: int
    seconds: float
    kills: int = 0


class History(Struct, frozen=True):
    """Everything that was recorded of one subject."""

    header: TrialHeader
    calls: tuple[RecordedCall, ...]
    watches: tuple[WatchRecord, ...] = ()


AnyRecord = TrialHeader | RecordedCall | WatchRecord
"""The closed union of the lines of a history."""

_DECODER: Final = msgspec.json.Decoder(AnyRecord)


def keys_of(call: AnyCall) -> tuple[str, ...]:
    """Return the keys that a call reads or writes. A plan is a key of its own, and so is a log."""
    match call:
        case TransactCall():
            return tuple(write.key for write in call.writes)
        case SnapshotCall():
            return call.keys
        case PlanStepCall() | PlanReadCall():
            return (f"plan {call.plan}",)
        case LogAppendCall() | LogPopCall() | LogReadCall():
            return (f"log {call.log}",)
        case _:
            return (call.key,)


def writes_of(call: AnyCall) -> tuple[tuple[str, str | None], ...]:
    """Return the keys that a call sets if it takes effect, with their new values; None deletes."""
    match call:
        case StoreCall() | ReplaceCall():
            return ((call.key, call.value),)
        case DeleteCall():
            return ((call.key, None),)
        case TransactCall():
            return tuple((write.key, write.value) for write in call.writes)
        case _:
            return ()


def encode(record: AnyRecord) -> bytes:
    """Return a record as one line."""
    return msgspec.json.encode(record) + b"\n"


def write_history(path: Path, history: History) -> None:
    """Write a history to a file that `read_history` reads."""
    records: list[AnyRecord] = [history.header, *history.calls, *history.watches]
    with path.open("wb") as file:
        file.writelines(map(encode, records))


def read_records(path: Path) -> list[AnyRecord]:
    """Return the records of a file; raise `InvalidArgument` with the number of a line that is none."""
    found: list[AnyRecord] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                found.append(_DECODER.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise InvalidArgument(f"{path}: line {number}: {error}") from None
    return found


def read_history(path: Path) -> History:
    """Return the history of a file. The first line has to say of which trial it is."""
    records = read_records(path)
    if not records or not isinstance(records[0], TrialHeader):
        raise InvalidArgument(f"{path}: the first line is not the header of a history")
    return history_of(records[0], records[1:])


def history_of(header: TrialHeader, records: Iterable[AnyRecord]) -> History:
    """Return the history that the records of all processes make."""
    kept = [*records]
    calls = sorted((each for each in kept if isinstance(each, RecordedCall)), key=lambda each: each.start_ns)
    return History(header, tuple(calls), tuple(each for each in kept if isinstance(each, WatchRecord)))
