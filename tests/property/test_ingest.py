"""After any history of a directory, and of mishaps with its rows, a project is what a first ingest would make it."""

import os
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwell as sw
from tests.support.ingest import all_rows

NAMES = st.sampled_from(["a.py", "b.py", "sub/a.py", "sub/c.md", "d.jsonl", "e.txt", "f"])
LONG = "words that are long enough to be no tiny part of anything, " * 4
BLOCKS = [
    f"def f():\n    return '{LONG}'\n",
    f"def g():\n    return '{LONG}'\n",
    f"# Title\n\n{LONG}\n\n",
    '{"speaker": "A", "text": "b"}\n',
    "x = 1\n",
    "\0",
]
TEXTS = st.lists(st.sampled_from(BLOCKS), max_size=5).map("".join)
PLACES = st.integers(0, 50)

numbers = count()


@pytest.fixture(scope="module")
def runtime() -> Iterator[sw.Runtime]:
    with sw.Runtime.start(workers=0, log_level="error") as started:
        yield started


class Directory:
    """Files that somebody works on, and rows that somebody harms."""

    def __init__(self, root: Path, client: sw.Client) -> None:
        self.root = root
        self.client = client
        self._clock_s = 10**9

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        self._stamp(path)

    def touch(self, name: str) -> None:
        if (self.root / name).exists():
            self._stamp(self.root / name)

    def delete(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def move(self, name: str, other: str) -> None:
        if (self.root / name).exists():
            (self.root / other).parent.mkdir(exist_ok=True)
            (self.root / name).rename(self.root / other)

    def harm(self, place: int) -> None:
        rows = all_rows(self.client)
        if rows:
            self.client.tiers.delete(rows[place % len(rows)].fragment_id)

    def evict(self, place: int) -> None:
        for tier in (sw.Tier.WARM, sw.Tier.COLD):
            self.client.tiers.evict_lru(tier, 1 + place % 5)

    def ingest(self) -> None:
        self.client.ingest(self.root)

    def _stamp(self, path: Path) -> None:
        """Old enough to be recognised by its time, and a time that no other write has."""
        self._clock_s += 1
        os.utime(path, (self._clock_s, self._clock_s))


Deed = Callable[[Directory], None]
DEEDS: st.SearchStrategy[Deed] = st.one_of(
    st.builds(lambda name, text: lambda it: it.write(name, text), NAMES, TEXTS),
    st.builds(lambda name: lambda it: it.touch(name), NAMES),
    st.builds(lambda name: lambda it: it.delete(name), NAMES),
    st.builds(lambda name, other: lambda it: it.move(name, other), NAMES, NAMES),
    st.builds(lambda place: lambda it: it.harm(place), PLACES),
    st.builds(lambda place: lambda it: it.evict(place), PLACES),
    st.just(lambda it: it.ingest()),
)


def contents(client: sw.Client) -> dict[str, tuple[object, ...]]:
    rows = all_rows(client)
    return {row.fragment_id: (row.kind, row.source, row.tokens, row.digest, row.metadata) for row in rows}


@given(st.lists(DEEDS, max_size=25))
def test_any_history(runtime: sw.Runtime, deeds: list[Deed]) -> None:
    number = next(numbers)
    with (
        tempfile.TemporaryDirectory() as root,
        runtime.client(projects=[f"old-{number}"]) as old,
        runtime.client(projects=[f"new-{number}"]) as new,
    ):
        directory = Directory(Path(root), old)
        for deed in deeds:
            deed(directory)
        old.ingest(root)
        report = new.ingest(root)
        assert contents(old) == contents(new)
        again = old.ingest(root)
        assert (again.stored, again.is_changed, again.fragments) == (0, False, report.fragments)
