"""Three versions made one: by git where there is text, by stated rules elsewhere."""

import stat

import pytest

import stepwell as sw
from stepwell.trees.merge3 import Merged, Version, merge, merge_modes, merge_text

BASE = Version(b"1\n2\n3\n4\n5\n", stat.S_IFREG | 0o644)
OURS = Version(b"one\n2\n3\n4\n5\n", stat.S_IFREG | 0o644)
THEIRS = Version(b"1\n2\n3\n4\nfive\n", stat.S_IFREG | 0o755)
LINK = Version(b"target", stat.S_IFLNK)
BINARY = Version(b"\0\1", stat.S_IFREG | 0o644)


@pytest.mark.parametrize("side", [None, BASE, OURS, LINK, BINARY])
@pytest.mark.parametrize("base", [None, BASE, LINK])
def test_what_one_side_left_alone(side: Version | None, base: Version | None) -> None:
    """The other side's, be it gone, a link or binary; and what both made alike."""
    assert merge(side, base, base) == Merged(side, is_clean=True)
    assert merge(base, base, side) == Merged(side, is_clean=True)
    assert merge(side, base, side) == Merged(side, is_clean=True)


def test_text_and_mode_merge() -> None:
    """Each from the side that changed it."""
    merged = merge(OURS, BASE, THEIRS)
    assert merged == Merged(Version(b"one\n2\n3\n4\nfive\n", stat.S_IFREG | 0o755), is_clean=True)


def test_overlapping_changes() -> None:
    """Both sides are in the text, between markers that say whose they are."""
    merged = merge(Version(b"a\n"), Version(b"b\n"), Version(b"c\n"), ("main", "base", "child 1"))
    assert not merged.is_clean
    assert merged.version == Version(b"<<<<<<< main\na\n=======\nc\n>>>>>>> child 1\n")
    assert "same lines" in merged.reason


def test_changed_and_deleted() -> None:
    """A conflict that shows what is there."""
    for ours, theirs in ((OURS, None), (None, OURS)):
        merged = merge(ours, BASE, theirs)
        assert (merged.version, merged.is_clean) == (OURS, False)
        assert "deleted" in merged.reason


def test_added_by_both() -> None:
    """As if there had been an empty file; nothing is lost."""
    merged = merge(Version(b"a\n"), None, Version(b"b\n"))
    assert not merged.is_clean
    assert merged.version is not None
    assert b"a\n" in merged.version.body
    assert b"b\n" in merged.version.body


def test_what_is_no_text() -> None:
    """Ours is shown; a base that was a link counts as none."""
    for ours, base, theirs in ((BINARY, BASE, OURS), (OURS, BASE, BINARY), (LINK, BASE, OURS), (OURS, BASE, LINK)):
        merged = merge(ours, base, theirs)
        assert (merged.version, merged.is_clean) == (ours, False)
    assert not merge(OURS, LINK, THEIRS).is_clean


def test_mode_against_content() -> None:
    """One side changed the content, the other the mode: both changes count."""
    harder = Version(BASE.body, stat.S_IFREG | 0o755)
    changed = Version(OURS.body, stat.S_IFREG | 0o755)
    assert merge(OURS, BASE, harder) == merge(harder, BASE, OURS) == Merged(changed, is_clean=True)


def test_modes() -> None:
    """The changed one; where both changed it, ours, and no agreement; what is not known gives way."""
    r, x, w = stat.S_IFREG | 0o644, stat.S_IFREG | 0o755, stat.S_IFREG | 0o666
    assert merge_modes(r, r, x) == merge_modes(x, r, r) == merge_modes(x, r, x) == (x, True)
    assert merge_modes(x, None, r) == (x, True)
    assert merge_modes(None, r, x) == merge_modes(x, r, None) == (x, True)
    assert merge_modes(x, r, w) == (x, False)
    assert merge(Version(b"x", x), Version(b"x", r), Version(b"x", w)).reason == "both sides changed its mode"


def test_configuration_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same everywhere, whatever style of conflicts somebody likes."""
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "merge.conflictstyle")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "diff3")
    assert b"|||||||" not in merge_text(b"a\n", b"b\n", b"c\n").body


def test_no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(sw.ToolMissing, match="install it"):
        merge_text(b"a\n", b"b\n", b"c\n")


def test_what_git_refuses() -> None:
    """An error of ours with what git says; a label of two lines is refused before."""
    with pytest.raises(sw.ToolMissing, match="binary"):
        merge_text(b"a\0", b"b\n", b"c\n")
    with pytest.raises(sw.InvalidArgument, match="one line"):
        merge_text(b"", b"", b"", ("a\nb", "", ""))


def test_theirs_wins() -> None:
    """There is no conflict then: of texts only the lines that overlap are theirs, of all else everything."""
    ours = Version(b"one\n2\n3\n4\n5\n6\n", stat.S_IFREG | 0o600)
    theirs = Version(b"ONE\n2\n3\n4\nfive\n", stat.S_IFREG | 0o755)
    both = Version(b"ONE\n2\n3\n4\nfive\n", stat.S_IFREG | 0o755)
    assert merge(ours, BASE, theirs, theirs_wins=True) == Merged(both, is_clean=True)
    first, last = Version(b"one\n2\n3\n4\n5\n"), Version(b"ONE\n2\n3\n4\nfive\n")
    assert merge(first, BASE, last, theirs_wins=True).version == Version(last.body)
    for ours_is, theirs_is in ((OURS, None), (None, OURS), (BINARY, OURS), (OURS, LINK), (LINK, OURS)):
        assert merge(ours_is, BASE, theirs_is, theirs_wins=True) == Merged(theirs_is, is_clean=True)
    assert merge(OURS, BASE, THEIRS, theirs_wins=True) == merge(OURS, BASE, THEIRS)
