"""Three versions of a file are merged: by git where there is text, by stated rules elsewhere."""

import stat

import pytest

import stepwell as sw
from stepwell.domain.plans.conflicts import Side
from stepwell.trees.merge.file_merge import Version, merge, merge_modes
from stepwell.trees.merge.text_merge import Hunk, HunkKind

BASE = Version(b"1\n2\n3\n4\n5\n", stat.S_IFREG | 0o644)
OURS = Version(b"one\n2\n3\n4\n5\n", stat.S_IFREG | 0o644)
THEIRS = Version(b"1\n2\n3\n4\nfive\n", stat.S_IFREG | 0o755)
LINK = Version(b"target", stat.S_IFLNK)
BINARY = Version(b"\0\1", stat.S_IFREG | 0o644)


@pytest.mark.parametrize("side", [None, BASE, OURS, LINK, BINARY])
@pytest.mark.parametrize("base", [None, BASE, LINK])
def test_what_one_side_left_alone(side: Version | None, base: Version | None) -> None:
    """The other side's, be it gone, a link or binary; and what both made alike."""
    for merged in (merge(side, base, base), merge(base, base, side), merge(side, base, side)):
        assert (merged.is_clean, merged.resolved(), merged.reason) == (True, side, "")


def test_text_and_mode_merge() -> None:
    """Each from the side that changed it."""
    merged = merge(OURS, BASE, THEIRS)
    assert merged.is_clean
    assert merged.resolved() == Version(b"one\n2\n3\n4\nfive\n", stat.S_IFREG | 0o755)
    assert merged.marked() == b"one\n2\n3\n4\nfive\n"


def test_overlapping_changes() -> None:
    """Both sides are in the text, between markers that say whose they are; a choice takes one of them."""
    merged = merge(Version(b"a\n"), Version(b"b\n"), Version(b"c\n"))
    assert merged.hunks == (Hunk(HunkKind.LINES, b"a\n", b"c\n"),)
    assert merged.marked(("main", "child 1")) == b"<<<<<<< main\na\n=======\nc\n>>>>>>> child 1\n"
    assert (merged.accepted("ours"), merged.accepted("theirs")) == (Version(b"a\n"), Version(b"c\n"))
    assert "same lines" in merged.reason


def test_choice_for_each_hunk() -> None:
    """The edits outside of the hunks are in every resolution; a mode is a hunk of its own, behind the lines."""
    r, x, w = stat.S_IFREG | 0o644, stat.S_IFREG | 0o755, stat.S_IFREG | 0o666
    base = b"".join(b"%d\n" % number for number in range(1, 21))
    ours = base.replace(b"1\n2", b"one\n2", 1).replace(b"\n5\n", b"\nV\n").replace(b"\n20", b"\nXX")
    theirs = base.replace(b"1\n2", b"ONE\n2", 1).replace(b"\n10\n", b"\nX\n").replace(b"\n20", b"\ntwenty")
    merged = merge(Version(ours, x), Version(base, r), Version(theirs, w))
    assert [hunk.kind for hunk in merged.hunks] == [HunkKind.LINES, HunkKind.LINES, HunkKind.MODE]
    assert merged.hunks[-1] == Hunk(HunkKind.MODE, b"100755", b"100666")
    resolved = merged.resolved(["theirs", "ours", "theirs"])
    both = base.replace(b"\n5\n", b"\nV\n").replace(b"\n10\n", b"\nX\n")
    assert resolved == Version(both.replace(b"1\n2", b"ONE\n2", 1).replace(b"\n20", b"\nXX"), w)
    wrong: list[list[Side]] = [[], ["ours"], ["ours", "ours", "ours", "ours"]]
    for sides in wrong:
        with pytest.raises(sw.InvalidArgument, match=f"each of 3 hunks of the conflict, not {len(sides)}"):
            merged.resolved(sides)


def test_changed_and_deleted() -> None:
    """A conflict about the whole file."""
    for ours, theirs in ((OURS, None), (None, OURS)):
        merged = merge(ours, BASE, theirs)
        assert [hunk.kind for hunk in merged.hunks] == [HunkKind.CONTENT]
        assert (merged.accepted("ours"), merged.accepted("theirs"), merged.marked()) == (ours, theirs, None)
        assert "deleted" in merged.reason


def test_added_by_both() -> None:
    """As if there had been an empty file; nothing is lost."""
    merged = merge(Version(b"a\n"), None, Version(b"b\n"))
    assert merged.marked() == b"<<<<<<< ours\na\n=======\nb\n>>>>>>> theirs\n"


def test_what_is_no_text() -> None:
    """One side or the other, as a whole; a base that was a link counts as none."""
    for ours, base, theirs in ((BINARY, BASE, OURS), (OURS, BASE, BINARY), (LINK, BASE, OURS), (OURS, BASE, LINK)):
        merged = merge(ours, base, theirs)
        assert [hunk.kind for hunk in merged.hunks] == [HunkKind.CONTENT]
        assert (merged.accepted("ours"), merged.accepted("theirs"), merged.marked()) == (ours, theirs, None)
    assert not merge(OURS, LINK, THEIRS).is_clean


def test_mode_against_content() -> None:
    """One side changed the content, the other the mode: both changes count."""
    harder = Version(BASE.body, stat.S_IFREG | 0o755)
    changed = Version(OURS.body, stat.S_IFREG | 0o755)
    assert merge(OURS, BASE, harder).resolved() == merge(harder, BASE, OURS).resolved() == changed


def test_modes() -> None:
    """The changed one; where both changed it, ours, and no agreement; what is not known gives way."""
    r, x, w = stat.S_IFREG | 0o644, stat.S_IFREG | 0o755, stat.S_IFREG | 0o666
    assert merge_modes(r, r, x) == merge_modes(x, r, r) == merge_modes(x, r, x) == (x, True)
    assert merge_modes(x, None, r) == (x, True)
    assert merge_modes(None, r, x) == merge_modes(x, r, None) == (x, True)
    assert merge_modes(x, r, w) == (x, False)
    assert merge(Version(b"x", x), Version(b"x", r), Version(b"x", w)).reason == "both sides changed its mode"


def test_last_side_wins() -> None:
    """With one side for all hunks: of texts only the lines that overlap are that side's, of all else everything."""
    ours = Version(b"one\n2\n3\n4\n5\n6\n", stat.S_IFREG | 0o600)
    theirs = Version(b"ONE\n2\n3\n4\nfive\n", stat.S_IFREG | 0o755)
    assert merge(ours, BASE, theirs).accepted("theirs") == theirs
    first, last = Version(b"one\n2\n3\n4\n5\n"), Version(b"ONE\n2\n3\n4\nfive\n")
    assert merge(first, BASE, last).accepted("ours") == Version(b"one\n2\n3\n4\nfive\n")
    for ours_is, theirs_is in ((OURS, None), (None, OURS), (BINARY, OURS), (OURS, LINK), (LINK, OURS)):
        assert merge(ours_is, BASE, theirs_is).accepted("theirs") == theirs_is
