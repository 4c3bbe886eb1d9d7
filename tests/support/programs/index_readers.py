"""Processes that read in shared memory while others write, and report what must not be."""

from __future__ import annotations

import mmap
import resource
from pathlib import Path

import stepwell as sw
from stepwell.limits import MIB

PROJECT = "p"
PAIR = ("first", "second")
COUNTER = "counter"
WORD_BYTES = 8
ALWAYS_NS = 2**62
"""A time to report reads that never comes, so that only the validity of the index decides."""


class Progress:
    """Numbers in a file that several processes have mapped. Each has one writer."""

    def __init__(self, path: Path, words: int = 4) -> None:
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(words * WORD_BYTES)
            self._map = mmap.mmap(file.fileno(), words * WORD_BYTES)
        self._words = memoryview(self._map).cast("Q")

    def __getitem__(self, at: int) -> int:
        return int(self._words[at])

    def __setitem__(self, at: int, number: int) -> None:
        self._words[at] = number

    def close(self) -> None:
        self._words.release()
        self._map.close()


ACKNOWLEDGED, READS, STOP = range(3)
"""Words of the progress: what the writer was told, how often the reader has read, and 1 when both have to end."""


def store_pair(client: sw.Client, number: int) -> None:
    """Store one number in both fragments, in one transaction."""
    with client.transaction() as transaction:
        for name in PAIR:
            transaction.tiers.store(sw.Fragment(fragment_id=name, project=PROJECT, body=str(number), tokens=1))


def check_order(address: str, last: int) -> None:
    """Read both fragments in turn until they have their last number. No number is less than one that was read before.

    A transaction changes both at once, so whichever is read later is not older.
    """
    with sw.connect(address, [PROJECT]) as client:
        seen = indexed = 0
        while seen < last:
            for name in (*PAIR, *reversed(PAIR)):
                found = client.tiers._get_indexed(name, None)
                indexed += found is not None
                number = int((found or client.tiers.get(name)).text)
                assert number >= seen, f"{name} has {number} after {seen} was read"
                seen = number
        assert indexed, "no read was answered in shared memory"


def write(address: str, path: str) -> None:
    """Count up, and note each number once it is acknowledged."""
    progress = Progress(Path(path))
    with sw.connect(address, [PROJECT]) as client:
        number = progress[ACKNOWLEDGED]
        while not progress[STOP]:
            number += 1
            client.tiers.store(sw.Fragment(fragment_id=COUNTER, body=str(number), tokens=1))
            progress[ACKNOWLEDGED] = number
    progress.close()


def read(address: str, path: str) -> None:
    """Only read. No number is less than what was acknowledged before.

    The index is read for as long as it is valid, also when it would be time to report: the validity alone has to do.
    """
    progress = Progress(Path(path))
    with sw.connect(address, [PROJECT]) as client:
        while not progress[STOP]:
            floor = progress[ACKNOWLEDGED]
            found = client.session.reads.index.find((PROJECT, COUNTER), ALWAYS_NS)
            body = None if found is None else client.session.reads.index.body_of(found)
            number = int(client.tiers.get(COUNTER).text if body is None else bytes(body))
            assert number >= floor, f"{number} was read after {floor} was acknowledged"
            progress[READS] += 1
    progress.close()


def read_with_little_room(address: str, names: list[str]) -> None:
    """Read in a process that may not map the index: every read is a request, and is right."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 128 * MIB, resource.RLIM_INFINITY))
    with sw.connect(address, [PROJECT]) as client:
        for _ in range(3):
            for name in names:
                assert client.tiers.get(name).text == name
                assert client.tiers._get_indexed(name, None) is None
        assert client.session.reads.index._index is None
