"""How much a diff changes: counted in hunks, whatever the lines in them look like."""

from pathlib import Path

from stepwell.cli.plan.common.diffstat import FileStat, file_stats
from stepwell.client.api.entry_diff import entry_diff
from stepwell.domain.changesets.model import Content, EntryRow, Operation
from stepwell.domain.tiers.body_refs import digest_of


def diff_of(path: str, before: bytes | None, after: bytes | None, source: str | None = None) -> str:
    sides = [None if body is None else Content(digest_of(body), len(body), held=True) for body in (before, after)]
    bodies = {digest_of(body): memoryview(body) for body in (before, after) if body is not None}
    entry = EntryRow("p", "c", 1, Operation.MODIFY, path, source, sides[0], sides[1], "tool", 0)
    return entry_diff(entry, bodies)


def test_one_for_each_file() -> None:
    """Created, deleted, changed, moved, binary, with names that git quotes; in the order of the diff."""
    diff = "".join(
        (
            diff_of("a file.txt", b"1\n2\n3\n", b"1\n3\n4"),
            diff_of("new", None, b"x\ny\n"),
            diff_of("old", b"x\n", None),
            diff_of("there", b"x\ny\n", b"x\nz\n", source="he re"),
            diff_of("as it was", b"x\n", b"x\n", source="elsewhere"),
            diff_of('qu"o\nte\x1b', None, b"x\n"),
            diff_of("bin", b"\0", b"\0\0"),
        )
    )
    assert file_stats(diff) == [
        FileStat("a file.txt", 1, 1, is_binary=False),
        FileStat("new", 2, 0, is_binary=False),
        FileStat("old", 0, 1, is_binary=False),
        FileStat("there", 1, 1, is_binary=False),
        FileStat("as it was", 0, 0, is_binary=False),
        FileStat('qu"o\nte\x1b', 1, 0, is_binary=False),
        FileStat("bin", 0, 0, is_binary=True),
    ]


def test_content_that_looks_like_a_diff() -> None:
    """A patch that is changed, say: nothing in it is taken for a header."""
    patch = diff_of("inner", b"1\n", b"2\n").encode()
    assert file_stats(diff_of("a.patch", patch, patch * 2)) == [FileStat("a.patch", 6, 0, is_binary=False)]
    assert file_stats(diff_of("a.patch", patch, None)) == [FileStat("a.patch", 0, patch.count(b"\n"), is_binary=False)]


def test_nothing() -> None:
    assert file_stats("") == []


def test_this_file() -> None:
    """Against a text of some length, with several hunks."""
    lines = Path(__file__).read_bytes().splitlines(keepends=True)
    changed = [b"first\n", *lines[1:30], b"new\n", b"new\n", *lines[30:]]
    assert file_stats(diff_of("x", b"".join(lines), b"".join(changed))) == [FileStat("x", 3, 1, is_binary=False)]
