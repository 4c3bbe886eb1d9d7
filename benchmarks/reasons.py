"""The sentences of `docs/performance.md` on what limits a figure that misses its goal.

They are kept here, and not on the page, because the page is generated. A sentence is shown only while its goal is
missed, so it can stay when a figure improves.
"""

from __future__ import annotations

from typing import Final

from benchmarks.section import OURS

_WAKE_UPS: Final = (
    "Each call wakes the manager and then its client. A bare pipe, which has only these two wake-ups, is no faster."
)
_SHARED_CORES: Final = (
    "Each call wakes the manager and then its client, which have to share the cores with the other clients. A bare "
    "pipe has only this."
)
_MANAGER: Final = "The manager is busy all the time: see its CPU for an operation."
_REPLACED: Final = f"{_MANAGER} A replaced fragment is published in the index, and its old body is released."
_FIRST_READ: Final = (
    "Each fragment is read once or a few times in a measurement: the manager enters it into the index, which takes "
    "about 4 µs, and each client decodes it, which takes about as long."
)
_MIX: Final = (
    "Nine in ten calls take a microsecond or two. The rest are replacing stores, and each reader decodes what they "
    "have replaced."
)
_BUSY: Final = (
    "The busy processes leave client and manager less than a core each, so that a call takes the sum of their CPU "
    "times, about 60 µs. That of a SyncManager is a third of it."
)
_BUSY_READER: Final = (
    "A read that needs no request is limited by the client's share of the cores alone. The report of its reads, which "
    "is due every 0.1 s, waits for the manager's share."
)
_PACED: Final = "The writer, the manager and the reader, which never waits, are three processes on two cores."
_TAIL: Final = "The usual call takes about a microsecond, and so does the limit. The slowest ones are requests."
_COMMIT: Final = (
    "A turn of the manager commits what has arrived, in one SQLite transaction. Clients that wait for each answer send "
    "too little at a time; the CPU for a request counts as in memory."
)

_CROWD: Final = (
    "Sixteen clients and the manager take turns on two cores, so that a call may wait for several time slices."
)
_LARGE_READ: Final = "The first read of a segment maps it, and the first touch of each of its pages is a page fault."
_SHORT_WAIT: Final = (
    "The difference is within what two rounds differ by: each of the 64 tasks takes the processor all the time."
)
_SMALL_CHANGE: Final = (
    "A question takes about 0.45 s without changes. Each changed file is split again, and tables of all fragments are "
    "made to find what it replaces."
)
_LARGE_CHANGE: Final = f"{_SMALL_CHANGE} So many changes are also written to the cache, with the whole index."

_BY_WORK: Final[dict[str, str]] = {
    "store, one at a time, 16 clients": _CROWD,
    "store, one at a time, 1 client": _WAKE_UPS,
    "store, one at a time, 4 clients": _SHARED_CORES,
    "store, batches of 100, 4 clients": _MANAGER,
    "get, one at a time, 1 client": _FIRST_READ,
    "get, one at a time, 4 clients": _FIRST_READ,
    "get, batches of 100, 4 clients": _FIRST_READ,
    "get, one at a time, 16 clients": _TAIL,
    "get, batches of 16, 16 clients": _TAIL,
    "get, batches of 100, 16 clients": _TAIL,
    "replacing store, one at a time, 1 client": _WAKE_UPS,
    "replacing store, one at a time, 4 clients": _SHARED_CORES,
    "replacing store, batches of 100, 4 clients": _REPLACED,
    "90 % get and 10 % replacing store, one at a time, 4 clients": _MIX,
    "replacing store, at a pace": _PACED,
    "after 3 files have changed": _SMALL_CHANGE,
    "after 30 files have changed": _LARGE_CHANGE,
} | {
    f"{work}, one at a time, {clients}, beside {busy}": sentence
    for work, sentence in (("get", _BUSY_READER), ("replacing store", _BUSY))
    for clients in ("1 client", "4 clients")
    for busy in ("1 busy process", "2 busy processes")
}

LIMITS: Final[dict[tuple[str, str], str]] = (
    {(OURS, work): sentence for work, sentence in _BY_WORK.items()}
    | {(f"{OURS}, {way}", "8 clients"): _COMMIT for way in ("one at a time", "16 outstanding")}
    | {
        (f"{OURS}, get", "1,024 KiB, read by 4"): _LARGE_READ,
        (f"{OURS}, strategies", "64 tasks of 20 ms"): _SHORT_WAIT,
    }
)
"""A sentence by the contender and the work of a row."""
