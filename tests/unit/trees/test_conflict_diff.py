"""The diff of a conflict is short, harmless on a terminal, and shows only what differs."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell import limits
from stepwell.errors import NotFound
from stepwell.trees import conflict_diff
from stepwell.trees.conflict_diff import short_diff
from stepwell.trees.root import Root

LINES = [f"line {number}\n" for number in range(1_000)]


def diff_of(root: Path, before: bytes | str, after: bytes | str, name: str = "a.txt") -> list[str]:
    """Return the lines of the diff of one file."""
    expected, found = (each.encode() if isinstance(each, str) else each for each in (before, after))
    (root / name).write_bytes(found)
    with Root(root) as opened:
        return short_diff(opened, {name: b"digest"}, lambda _: expected).splitlines()


def test_one_difference(tmp_path: Path) -> None:
    """With a little of what is around it, and the number of its line, wherever it is."""
    changed = [*LINES]
    changed[500] = "changed\n"
    assert diff_of(tmp_path, "".join(LINES), "".join(changed)) == [
        "--- a.txt (expected)",
        "+++ a.txt (found)",
        "@@ -499,5 +499,5 @@",
        " line 498",
        " line 499",
        "-line 500",
        "+changed",
        " line 501",
        " line 502",
    ]


def test_differences_far_apart(tmp_path: Path) -> None:
    """The first one is shown. What is cut off does not look like a difference, and is said to be missing."""
    changed = [*LINES]
    changed.insert(5, "inserted\n")
    changed[800] = "changed\n"
    shown = diff_of(tmp_path, "".join(LINES), "".join(changed))
    assert [line for line in shown[2:] if line[0] != " "] == ["@@ -4,4 +4,5 @@", "+inserted", "…"]


def test_long_differences_are_cut(tmp_path: Path) -> None:
    """In lines and in their length; the last line says so."""
    shown = diff_of(tmp_path, "a\n", "".join(f"{'x' * 1_000}{number}\n" for number in range(1_000)))
    assert (len(shown), shown[-1]) == (limits.CONFLICT_DIFF_LINES_MAX + 1, "…")
    assert max(map(len, shown)) == limits.CONFLICT_DIFF_LINE_CHARS_MAX + 1


@pytest.mark.parametrize(
    "before, after, expected",
    [
        ("a\n", "a", ["-a", "+a", r"\ No newline at end of file"]),
        ("a\n", "a\r\n", ["-a", r"+a\x0d"]),
        ("a\n", "\x1b[2J\u202e\n", ["-a", r"+\x1b[2J\u202e"]),
        ("", "a\n", ["+a"]),
    ],
)
def test_what_is_hard_to_see(tmp_path: Path, before: str, after: str, expected: list[str]) -> None:
    """Line ends, and characters that act on a terminal, are written out."""
    assert diff_of(tmp_path, before, after)[3:] == expected


def test_name_is_one_line(tmp_path: Path) -> None:
    assert diff_of(tmp_path, "a\n", "b\n", "a\n\x1b")[:2] == [r"--- a\n\x1b (expected)", r"+++ a\n\x1b (found)"]


@pytest.mark.parametrize(
    "before, after",
    [("a\n", b"\xff"), (b"\xff", "a\n"), ("a\n", "\0"), ("a\n", "x" * (limits.CONFLICT_DIFF_BYTES_MAX + 1))],
    ids=["no text now", "no text before", "a null", "large"],
)
def test_what_cannot_be_shown(tmp_path: Path, before: bytes | str, after: bytes | str) -> None:
    assert diff_of(tmp_path, before, after) == []


def test_what_cannot_be_read(tmp_path: Path) -> None:
    """A body that the manager does not hold, a file that is gone, a pipe, a link: the others are shown."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("z")
    for name in ("not held", "z"):
        (tmp_path / name).write_text("found\n")

    def read_body(digest: bytes) -> bytes:
        if digest == b"not held":
            raise NotFound("only its digest was recorded")
        return b"expected\n"

    names = ("gone", "link", "not held", "pipe", "z")
    with Root(tmp_path) as root:
        shown = short_diff(root, {name: name.encode() for name in names}, read_body)
    assert [line for line in shown.splitlines() if line.startswith("---")] == ["--- z (expected)"]


def test_first_files_only(tmp_path: Path) -> None:
    names = [f"{number}" for number in range(10)]
    for name in names:
        (tmp_path / name).write_text("found\n")
    with Root(tmp_path) as root:
        shown = short_diff(root, dict.fromkeys(names, b"digest"), lambda _: b"expected\n")
    assert re.findall(r"(?m)^--- (\w+)", shown) == names[: limits.CONFLICT_DIFF_FILES_MAX]


TEXTS = st.lists(st.sampled_from(["a\n", "b\n", "c\n"]), max_size=12)


@given(TEXTS, TEXTS)
def test_small_files_are_compared_as_a_whole(before: list[str], after: list[str]) -> None:
    """The lines that go and come lead from one text to the other."""
    shown = [*conflict_diff._hunks(before, after)]
    assert bool(shown) == (before != after)
    kept, position = [*before], 0
    for line in shown:
        if found := re.match(r"@@ -\d+,\d+ \+(\d+),\d+ @@", line):
            position = int(found[1]) - 1
        elif line[0] == "-":
            assert kept.pop(position) == f"{line[1:]}\n"
        elif line[0] == "+":
            kept.insert(position, f"{line[1:]}\n")
            position += 1
        else:
            assert kept[position] == f"{line[1:]}\n"
            position += 1
    assert kept == after
