"""Pages are bounded three ways and miss nothing; globs cost linear time."""

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stepwell import limits
from stepwell.domain.pages import cursor_number, glob_matcher, take
from stepwell.errors import InvalidArgument

ALPHABET = "ab/.*?[\\\n\0é☃"


def naive_match(glob: str, path: str) -> bool:
    """The meaning of a glob, spelt out by trying every way to read it."""
    if not glob:
        return not path
    if glob.startswith("**/"):
        rest = glob[3:]
        starts = [0, *(at + 1 for at, char in enumerate(path) if char == "/")]
        return any(naive_match(rest, path[at:]) for at in starts)
    if glob.startswith("**"):
        return any(naive_match(glob[2:], path[at:]) for at in range(len(path) + 1))
    if glob[0] == "*":
        reach = len(path.split("/", 1)[0])
        return any(naive_match(glob[1:], path[at:]) for at in range(reach + 1))
    if not path:
        return False
    return (path[0] != "/" if glob[0] == "?" else path[0] == glob[0]) and naive_match(glob[1:], path[1:])


@given(st.text(ALPHABET, min_size=1, max_size=8), st.text(ALPHABET, max_size=8))
@example("**/a", "a")
@example("**/a", "b/b/a")
@example("a/**", "a/")
@example("***", "a/b")
@example("?", "☃")
def test_glob_means_what_the_naive_reading_means(glob: str, path: str) -> None:
    """'*' and '?' stay within a part, '**' crosses parts, everything else stands for itself."""
    assert glob_matcher([glob])(path) == naive_match(glob, path)


@pytest.mark.parametrize(
    "glob, path, expected",
    [
        ("src/**/*.py", "src/a.py", True),
        ("src/**/*.py", "src/x/y/a.py", True),
        ("src/**/*.py", "src/a.pyc", False),
        ("*.py", "x/a.py", False),
        ("a+b", "a+b", True),
        ("[ab]", "a", False),
    ],
)
def test_glob_examples(glob: str, path: str, *, expected: bool) -> None:
    """The usual uses; brackets are no special characters."""
    assert glob_matcher([glob])(path) is expected


def test_globs_are_alternatives() -> None:
    """Any of them suffices; none at all accept everything."""
    assert [path for path in ("a", "b", "c") if glob_matcher(["a", "b"])(path)] == ["a", "b"]
    assert glob_matcher([])("anything")


def test_pathological_glob_is_linear() -> None:
    """A glob that takes a backtracking matcher for ever costs milliseconds."""
    glob = "*a" * 100
    began = time.process_time()
    assert not glob_matcher([glob])("a" * 4_000 + "b")
    assert time.process_time() - began < 1.0
    # The same pattern really is pathological: a backtracking matcher takes exponential time already on little of it.
    assert re.fullmatch("[^/]*a" * 4, "a" * 50 + "b") is None


@pytest.mark.parametrize("piece", ["*a", "?", "**/", "**", "*", "[", "\\"])
def test_longest_globs_compile(piece: str) -> None:
    """No glob within its bound is too much for the matcher."""
    glob = (piece * limits.PATTERN_CHARS_MAX)[: limits.PATTERN_CHARS_MAX]
    glob_matcher([glob])("a" * 4_096)


@given(st.lists(st.integers(0, 9)), st.integers(1, 5))
def test_pages_give_every_row_once(rows: list[int], limit: int) -> None:
    """Following the cursors gives every accepted row once, in order, and no page is too long."""
    numbered = list(enumerate(rows, 1))
    seen: list[tuple[int, int]] = []
    cursor: str | None = None
    while True:
        page, cursor = take(
            numbered[cursor_number(cursor) :], limit, lambda pair: str(pair[0]), keep=lambda pair: pair[1] % 2 == 0
        )
        assert len(page) <= limit
        seen += page
        if cursor is None:
            break
    assert seen == [pair for pair in numbered if pair[1] % 2 == 0]


def test_page_that_ends_exactly_has_no_cursor() -> None:
    """A cursor promises that there are rows left to examine."""
    assert take("abc", 3, str) == (("a", "b", "c"), None)
    assert take("abc", 2, str) == (("a", "b"), "b")
    assert take("", 3, str) == ((), None)


def test_page_examines_a_bounded_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows are accepted; the page may then be empty, and has a cursor."""
    monkeypatch.setattr(limits, "SCAN_ROWS_MAX", 10)
    examined: list[int] = []

    def keep(row: int) -> bool:
        examined.append(row)
        return False

    assert take(range(100), 5, str, keep=keep) == ((), "9")
    assert examined == list(range(10))


def test_page_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends once it is full; a single row that is too heavy is still given, or nobody would get past it."""
    monkeypatch.setattr(limits, "REPLY_BODIES_BYTES_MAX", 100)
    assert take(range(9), 9, str, weigh=lambda _: 50) == ((0, 1), "1")
    assert take(range(9), 9, str, weigh=lambda _: 1_000) == ((0,), "0")


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1.0", "²", "१", " 1"])
def test_malformed_cursor(cursor: str) -> None:
    """A cursor is what the page before returned, and nothing else."""
    with pytest.raises(InvalidArgument, match="give a cursor as the page before returned it"):
        cursor_number(cursor)


def test_cursor_number() -> None:
    """Without a cursor one begins at the beginning."""
    assert cursor_number(None) == 0
    assert cursor_number("17") == 17
