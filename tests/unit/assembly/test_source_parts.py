"""Rows of sources are found by a search, and in a view that is asked for again by source."""

from __future__ import annotations

import pytest

from stepwell.assembly.source_parts import SourceParts, search
from stepwell.domain.tiers.model import FragmentRow, Tier


def row(number: int, source: str) -> FragmentRow:
    return FragmentRow("p", f"f{number}", source, "text", 0, 1, 1, b"", Tier.HOT, 0, 0, number, number, {})


ROWS = tuple(row(number, source) for number, source in enumerate("abacab"))
WANTED = frozenset({"a", "c", "unknown"})


def test_each_question_finds_the_same_rows() -> None:
    """The first question searches, later ones look up, and rows of another revision are searched again."""
    parts = SourceParts()
    for rows in (ROWS, ROWS, ROWS, ROWS[1:], ROWS[1:], ROWS):
        found = [*parts.find("p", rows, WANTED)]
        assert sorted(found, key=lambda each: each.serial) == search("p", rows, WANTED)


def test_rows_that_may_change_are_searched() -> None:
    """A list may be another one later, so nothing of it is kept."""
    parts, rows = SourceParts(), [*ROWS]
    for _ in range(3):
        assert len([*parts.find("p", rows, WANTED)]) == len(search("p", rows, WANTED))
        rows.append(row(len(rows), "a"))


def test_a_view_that_is_asked_for_again_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second question keeps the rows by source; the third one looks at the wanted sources only."""
    parts = SourceParts()
    for _ in range(2):
        parts.find("p", ROWS, WANTED)
    monkeypatch.setattr(f"{search.__module__}.search", lambda *_: pytest.fail("all rows were searched"))
    assert len([*parts.find("p", ROWS, WANTED)]) == 4


def test_few_projects_are_kept() -> None:
    """The rows of projects that were asked for long ago are dropped."""
    parts = SourceParts()
    for number in range(10):
        parts.find(f"p{number}", ROWS, WANTED)
    assert len(parts._seen) == 4
