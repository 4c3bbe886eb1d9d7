"""A check whether one total order explains the observations of many processes.

`time.monotonic_ns` is one clock for the whole machine, so that intervals of different processes compare. The rule is
the promise: if A's reply arrived before B was sent, A comes first. A read names the revision that it saw, a write the
one that it made; so a write that comes later has a larger one, and a read that comes later at least as large a one.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct


class Operation(Struct, frozen=True, array_like=True):
    """One command, from before it was sent until after its answer came."""

    began_ns: int
    ended_ns: int
    revision: int
    is_write: bool


def violations(history: Sequence[Operation]) -> list[str]:
    """Return the observations that no total order explains."""
    return [*_shared_revisions(history), *_real_time(history)]


def _shared_revisions(history: Iterable[Operation]) -> Iterator[str]:
    seen: set[int] = set()
    for operation in history:
        if operation.is_write:
            if operation.revision in seen:
                yield f"revision {operation.revision} was given to two writes"
            seen.add(operation.revision)


def _real_time(history: Sequence[Operation]) -> Iterator[str]:
    """One pass over the operations in order of beginning, with the largest revision of all that had ended before."""
    by_end = iter(sorted(history, key=lambda each: each.ended_ns))
    ended = next(by_end, None)
    latest = -1
    for operation in sorted(history, key=lambda each: each.began_ns):
        while ended is not None and ended.ended_ns < operation.began_ns:
            latest = max(latest, ended.revision)
            ended = next(by_end, None)
        if operation.revision < latest + operation.is_write:
            kind = "write" if operation.is_write else "read"
            yield f"a {kind} began after revision {latest} was known, and got revision {operation.revision}"
