"""Events are kept for those who come late, by whole revisions and in bounded room."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from stepwell import limits
from stepwell.domain.events import AnyEvent
from stepwell.domain.tiers.commands import StoreFragment
from stepwell.domain.verdict import Origin
from tests.support.storage.state import NOON_MS, DurableState, durable_state, tamper

KEPT = 20
SLACK = 5
SIZES = [1, 3, 1, 7, 2, 2, 4, 1]
"""How many events the revisions have, one after the other."""


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENTS_KEPT", KEPT)
    monkeypatch.setattr(limits, "EVENTS_TRIMMED_PER_TURN", SLACK)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[DurableState]:
    with durable_state(tmp_path) as found:
        yield found


def happen(made: DurableState, size: int) -> None:
    """So many events at one revision."""
    commands = [StoreFragment("p", f"f{number}", b"body", 1) for number in range(size)]
    made.owner.execute_all(commands, Origin("alice", NOON_MS))


def revisions(events: list[AnyEvent]) -> dict[int, int]:
    """How many events there are of each revision, in their order."""
    return {revision: len(list(group)) for revision, group in groupby(events, lambda event: event.revision)}


def test_events_are_kept_up_to_a_bound(made: DurableState) -> None:
    """Not fewer than promised, not many more; each revision is there entirely or not at all."""
    expected: dict[int, int] = {}
    for size in SIZES * 8:
        happen(made, size)
        made.commit()
        made.follow()
        expected[made.owner.revision] = size
        found = revisions(made.store.events_after(0, 1_000))
        assert found == {revision: count for revision, count in expected.items() if revision >= min(found)}
        assert min(sum(expected.values()), KEPT) <= sum(found.values()) <= KEPT + SLACK + max(SIZES)
        if len(found) < len(expected):
            assert made.store.oldest_event() == min(found) - 1
        else:
            assert made.store.oldest_event() == 0
    assert made.store.oldest_event() > 0


def test_step_that_has_more_than_are_kept_stays_whole(made: DurableState) -> None:
    """It is the latest: whoever is behind it gets all of it."""
    happen(made, 3)
    happen(made, 2 * KEPT)
    made.commit()
    made.follow()
    assert revisions(made.store.events_after(0, 1)) == {2: 2 * KEPT}
    assert made.store.oldest_event() == 1


@pytest.mark.parametrize("in_tables", range(len(SIZES) + 1))
@pytest.mark.parametrize("limit", [1, 2, 3, 5, 8, 100])
def test_whoever_reads_gets_whole_revisions(made: DurableState, limit: int, in_tables: int) -> None:
    """At least as many events as it asked for, if there are as many; nothing twice, and nothing left out.

    It makes no difference how many of them are still in the redo log.
    """
    for number, size in enumerate(SIZES):
        if number == in_tables:
            made.follow()
        happen(made, size)
        made.commit()
    expected = revisions(made.store.events_after(0, 1_000))
    found: dict[int, int] = {}
    after = made.store.oldest_event()
    while events := made.store.events_after(after, limit):
        together = revisions(events)
        assert len(events) >= limit or max(together) == made.owner.revision
        assert len(events) - list(together.values())[-1] < limit
        assert not found.keys() & together.keys()
        found |= together
        after = max(together)
    assert found == expected


def test_next_manager_knows_what_is_missing(tmp_path: Path) -> None:
    """And goes on counting: the bound holds over restarts."""
    for _ in range(4):
        with durable_state(tmp_path) as made:
            oldest = made.store.oldest_event()
            for size in SIZES:
                happen(made, size)
                made.commit()
                made.follow()
            assert made.store.oldest_event() > oldest or not oldest
            oldest = made.store.oldest_event()
            assert len(made.store.events_after(0, 1_000)) <= KEPT + SLACK + max(SIZES)
        with durable_state(tmp_path) as made:
            assert made.store.oldest_event() == oldest


def test_file_does_not_grow_with_what_has_happened(made: DurableState) -> None:
    """Pages that events have left are used for the next ones."""

    def pages() -> int:
        (count,) = made.store._db.execute("PRAGMA page_count").fetchone()
        assert isinstance(count, int)
        return count

    def many() -> int:
        for _ in range(30):
            for size in SIZES:
                happen(made, size)
            made.commit()
            made.follow()
        return pages()

    first = many()
    assert max(many() for _ in range(5)) <= first + 2


def test_order_is_that_of_the_numbers(tmp_path: Path) -> None:
    """Of the revision and, within it, of what came first: not of how the rows lie in the file."""
    with durable_state(tmp_path) as made:
        happen(made, 4)
        happen(made, 3)
        made.commit()
        before = made.store.events_after(0, 1_000)
    tamper(
        tmp_path,
        "CREATE TABLE aside AS SELECT * FROM events ORDER BY revision DESC, ordinal DESC",
        "DELETE FROM events",
        "INSERT INTO events SELECT * FROM aside",
        "DROP TABLE aside",
    )
    with durable_state(tmp_path) as made:
        assert made.store.events_after(0, 1_000) == before
