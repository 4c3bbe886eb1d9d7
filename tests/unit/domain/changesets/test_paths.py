"""Modes: those of a file, a link or an empty directory, as git and `stat` have them, and no others."""

import stat

import pytest

from stepwell.domain.changesets.model import Change, Content, Operation, derive_operation, is_same
from stepwell.domain.changesets.paths import DIRECTORY, EMPTY_DIGEST, EXECUTABLE, LINK, REGULAR, check_mode, git_mode
from stepwell.domain.tiers.body_refs import Digest, digest_of
from stepwell.errors import InvalidArgument


@pytest.mark.parametrize("mode", [None, REGULAR, EXECUTABLE, stat.S_IFREG, stat.S_IFREG | 0o777, LINK])
def test_mode_of_a_leaf(mode: int | None) -> None:
    """A file with any permissions, a link, or what is not known."""
    check_mode(mode, digest_of(b"x"), "after")
    Change(path="a", after=b"x", after_mode=mode)


@pytest.mark.parametrize(
    "mode",
    [0, 0o644, 0o7777, stat.S_IFREG | 0o4755, stat.S_IFREG | 0o1644, LINK | 0o777, DIRECTORY | 0o755, stat.S_IFIFO],
    ids=oct,
)
def test_mode_of_no_leaf(mode: int) -> None:
    """Permissions alone, a set-user-id, a pipe: refused, with what to give."""
    with pytest.raises(InvalidArgument, match=r"after_mode is 0o?.*: give 0o100000 with permissions"):
        Change(path="a", after=b"", after_mode=mode)


@pytest.mark.parametrize("mode", [-1, 2**17, "0o644"])
def test_mode_out_of_bounds(mode: int) -> None:
    """Whatever it is, it is a number that a file system could have."""
    with pytest.raises(InvalidArgument, match=r"before_mode was refused .*: a mode is 0o100000 with permissions"):
        Change(path="a", before=b"x", before_mode=mode)


def test_directory_is_empty() -> None:
    """Its content is b"", given as bytes or as a digest."""
    Change(path="a", after=b"", after_mode=DIRECTORY)
    Change(path="a", after=Digest(EMPTY_DIGEST), after_mode=DIRECTORY)
    for content in (b"x", Digest.of(b"x")):
        with pytest.raises(InvalidArgument, match="after is a directory by its mode, and has content"):
            Change(path="a", after=content, after_mode=DIRECTORY)


def test_what_is_absent_has_no_mode() -> None:
    """Nor permissions."""
    with pytest.raises(InvalidArgument, match="before_mode is given, but before is absent"):
        Change(path="a", after=b"x", before_mode=REGULAR)


def side(digest: bytes, mode: int | None) -> Content:
    return Content(digest, None, held=False, mode=mode)


def test_mode_alone_is_a_change() -> None:
    """If both are known, and differ: nobody can tell from one that is not."""
    assert derive_operation(side(b"x", REGULAR), side(b"x", EXECUTABLE), "a", None) is Operation.MODIFY
    Change(path="a", before=b"x", after=b"x", before_mode=REGULAR, after_mode=EXECUTABLE)
    for before, after in ((REGULAR, REGULAR), (None, REGULAR), (REGULAR, None)):
        with pytest.raises(InvalidArgument, match="nothing changed"):
            Change(path="a", before=b"x", after=b"x", before_mode=before, after_mode=after)


def test_is_same() -> None:
    """By content, and by mode where both sides know it."""
    assert is_same(None, None)
    assert not is_same(None, side(b"x", None))
    assert is_same(side(b"x", None), side(b"x", REGULAR))
    assert not is_same(side(b"x", LINK), side(b"x", REGULAR))
    assert not is_same(side(b"x", None), side(b"y", None))


def test_git_mode() -> None:
    """Of permissions git keeps whether the owner may execute."""
    given = (None, stat.S_IFREG | 0o600, stat.S_IFREG | 0o711, stat.S_IFREG | 0o677, LINK, DIRECTORY)
    assert [*map(git_mode, given)] == [REGULAR, REGULAR, EXECUTABLE, REGULAR, LINK, DIRECTORY]
