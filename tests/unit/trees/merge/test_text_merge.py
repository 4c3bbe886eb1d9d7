"""Texts are merged by git, and each hunk is told apart."""

import pytest

import stepwell as sw
from stepwell.trees.merge.text_merge import Hunk, HunkKind, merge_text

SIDES = (b"o", b"b", b"t")


def lines(ours: bytes, theirs: bytes) -> Hunk:
    return Hunk(HunkKind.LINES, ours, theirs)


def test_parts() -> None:
    """Merged bytes and hunks, in order; no part is empty."""
    base = b"".join(b"%d\n" % number for number in range(20))
    merged = merge_text(base.replace(b"0\n1", b"a\n1", 1), base, base.replace(b"0\n1", b"b\n1", 1) + b"end\n")
    assert merged.parts == (lines(b"a\n", b"b\n"), base[2:] + b"end\n")
    assert merge_text(b"", b"", b"").parts == ()


def test_text_with_markers_of_its_own() -> None:
    """Lines of a text that look like markers, of any length, are lines."""
    for size in (7, 64, 200):
        ours, theirs = b"<" * size + b" a\n", b"=" * size + b"\n" + b">" * size + b" b\n"
        assert merge_text(ours, b"x\n", theirs).parts == (lines(ours, theirs),)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_last_line_without_an_end(newline: bytes) -> None:
    """A side is exactly its own; between markers every line has an end, that of the text."""
    before = b"1" + newline
    merged = merge_text(before + b"ours", before + b"base", before + b"theirs")
    assert merged.resolved(["ours"]) == before + b"ours"
    assert merged.resolved(["theirs"]) == before + b"theirs"
    marked = [b"<<<<<<< a", b"ours", b"=======", b"theirs", b">>>>>>> b", b""]
    assert merged.marked(("a", "b")) == before + newline.join(marked)


def test_side_without_lines() -> None:
    """One side removed what the other changed, at the end of a text without a last line end."""
    merged = merge_text(b"1\n", b"1\nbase", b"1\nchanged")
    assert (merged.resolved(["ours"]), merged.resolved(["theirs"])) == (b"1\n", b"1\nchanged")


def test_many_hunks() -> None:
    """More than git can count in its exit code."""
    ours, base, theirs = (b"".join(side + b"%d\nx\ny\nz\nw\n" % number for number in range(1_000)) for side in SIDES)
    assert merge_text(ours, base, theirs).hunks == tuple(
        lines(b"o%d\n" % each, b"t%d\n" % each) for each in range(1_000)
    )


def test_configuration_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's style of conflicts changes nothing."""
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "merge.conflictstyle")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "diff3")
    assert merge_text(b"a\n", b"b\n", b"c\n").parts == (lines(b"a\n", b"c\n"),)


def test_no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(sw.ToolMissing, match="install it"):
        merge_text(b"a\n", b"b\n", b"c\n")


def test_refusals() -> None:
    """An error of ours with the message of git; a label of two lines is refused as well."""
    with pytest.raises(sw.ToolMissing, match="binary"):
        merge_text(b"a\0", b"b\n", b"c\n")
    with pytest.raises(sw.InvalidArgument, match="one line"):
        merge_text(b"a\n", b"b\n", b"c\n").marked(("a\nb", ""))
