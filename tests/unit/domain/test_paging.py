"""Pages are bounded three ways and miss nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell import limits
from stepwell.domain.paging import build_page, cursor_number
from stepwell.errors import InvalidArgument


@given(st.lists(st.integers(0, 9)), st.integers(1, 5))
def test_pages_give_every_row_once(rows: list[int], limit: int) -> None:
    """Following the cursors gives every accepted row once, in order, and no page is too long."""
    numbered = list(enumerate(rows, 1))
    seen: list[tuple[int, int]] = []
    cursor: str | None = None
    while True:
        page, cursor = build_page(
            numbered[cursor_number(cursor) :], limit, lambda pair: str(pair[0]), accepts=lambda pair: pair[1] % 2 == 0
        )
        assert len(page) <= limit
        seen += page
        if cursor is None:
            break
    assert seen == [pair for pair in numbered if pair[1] % 2 == 0]


def test_page_that_ends_exactly_has_no_cursor() -> None:
    """A cursor promises that there are rows left to examine."""
    assert build_page("abc", 3, str) == (("a", "b", "c"), None)
    assert build_page("abc", 2, str) == (("a", "b"), "b")
    assert build_page("", 3, str) == ((), None)


def test_page_examines_a_bounded_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows are accepted; the page may then be empty, and has a cursor."""
    monkeypatch.setattr(limits, "SCAN_ROWS_MAX", 10)
    examined: list[int] = []

    def keep(row: int) -> bool:
        examined.append(row)
        return False

    assert build_page(range(100), 5, str, accepts=keep) == ((), "9")
    assert examined == list(range(10))


def test_page_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends once it is full; a single row that is too heavy is still given, or nobody would get past it."""
    monkeypatch.setattr(limits, "REPLY_BYTES_MAX", 100)
    assert build_page(range(9), 9, str, size_of=lambda _: 50) == ((0, 1), "1")
    assert build_page(range(9), 9, str, size_of=lambda _: 1_000) == ((0,), "0")


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1.0", "²", "१", " 1"])
def test_malformed_cursor(cursor: str) -> None:
    """A cursor is what the page before returned, and nothing else."""
    with pytest.raises(InvalidArgument, match="give a cursor as the page before returned it"):
        cursor_number(cursor)


def test_cursor_number() -> None:
    """Without a cursor one begins at the beginning."""
    assert cursor_number(None) == 0
    assert cursor_number("17") == 17
