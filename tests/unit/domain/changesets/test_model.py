"""A change that exists is valid: its paths are safe, and its operation follows from its digests."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.changesets.model import Change, Content, Operation, check_path, derive_operation
from stepwell.domain.tiers.body_refs import Digest
from stepwell.errors import InvalidArgument

GOOD = ["a", "a.py", "src/a.py", "..a", "a..", ".git", "a b", "é", "日本/語", "a\\b", "~", "a:b"]
BAD = {
    "": "has 0 characters, 1 to 4,096 are allowed",
    "x" * 4097: "has 4,097 characters, 1 to 4,096 are allowed",
    "/etc/passwd": "is absolute",
    "/": "is absolute",
    "a\0b": "contains a NUL character",
    "..": "leaves its root by '..'",
    "../a": "leaves its root by '..'",
    "a/../b": "leaves its root by '..'",
    "a/..": "leaves its root by '..'",
    ".": "is not normalised",
    "./a": "is not normalised",
    "a//b": "is not normalised",
    "a/": "is not normalised",
    "e\u0301": "is not in Unicode's normal form C",
}


@pytest.mark.parametrize("path", GOOD)
def test_good_path(path: str) -> None:
    """Relative and normalised; dots inside a name are no steps."""
    check_path(path)


@pytest.mark.parametrize("path, problem", BAD.items(), ids=[repr(path[:9]) for path in BAD])
def test_bad_path(path: str, problem: str) -> None:
    """The refusal says what is wrong, and what to give."""
    with pytest.raises(InvalidArgument) as caught:
        check_path(path)
    assert problem in caught.value.message
    assert "give it relative to the project's root, normalised" in caught.value.message
    assert len(caught.value.message) < 400


@given(st.text("ab./\0é", max_size=12))
def test_accepted_path_stays_below_its_root(path: str) -> None:
    """Whatever is accepted names a file below the root, in one way only."""
    try:
        check_path(path)
    except InvalidArgument:
        return
    assert path == "/".join(part for part in path.split("/") if part not in {"", ".", ".."})
    assert path


def side(digest: bytes | None, mode: int | None = None) -> Content | None:
    return None if digest is None else Content(digest, None, held=False, mode=mode)


@pytest.mark.parametrize(
    "before, after, source_path, expected",
    [
        (None, b"x", None, Operation.CREATE),
        (b"x", None, None, Operation.DELETE),
        (b"x", b"y", None, Operation.MODIFY),
        (b"x", b"x", "from", Operation.MOVE),
        (b"x", b"y", "from", Operation.MOVE),
    ],
)
def test_operation(before: bytes | None, after: bytes | None, source_path: str | None, expected: Operation) -> None:
    """It is what the digests show, never what a tool is called."""
    assert derive_operation(side(before), side(after), "to", source_path) is expected


@pytest.mark.parametrize(
    "before, after, source_path, message",
    [
        (None, None, None, "before and after are the same, so nothing changed"),
        (b"x", b"x", None, "before and after are the same, so nothing changed"),
        (None, b"x", "from", "a move needs another source_path, the content there before"),
        (b"x", None, "from", "a move needs another source_path, the content there before"),
        (b"x", b"x", "to", "a move needs another source_path"),
    ],
)
def test_no_operation(before: bytes | None, after: bytes | None, source_path: str | None, message: str) -> None:
    """Digests that show no change, or half a move, are refused."""
    with pytest.raises(InvalidArgument, match=message):
        derive_operation(side(before), side(after), "to", source_path)


def test_change() -> None:
    """Bytes, a digest, or nothing."""
    change = Change(path="a", before=Digest.of(b"x"), after=b"y", tool="editor")
    assert change.before == Digest.of(b"x")
    assert Change(path="new", after=b"y").before is None
    assert Change(path="to", before=b"x", after=b"x", source_path="from").tool == "unknown"


SOUND = Change(path="a", before=b"x", after=b"y")


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"path": "../a"}, "leaves its root"),
        ({"path": Path("a")}, "^path is a str, not a PosixPath$"),
        ({"path": b"a"}, "^path is a str, not a bytes$"),
        ({"path": None}, "^path is a str, not a NoneType$"),
        ({"source_path": "../b"}, "leaves its root"),
        ({"tool": ""}, "tool is malformed"),
        ({"before": "text"}, r"before is bytes \(text.encode\(\)\), a Digest or None, not a str"),
        ({"after": 3}, r"after is bytes .*, a Digest or None, not a int"),
        ({"after": bytes(limits.BODY_BYTES_MAX + 1)}, "after has 67,108,865 bytes, at most 67,108,864"),
        ({"after": Digest.of(b"x")}, "nothing changed"),
    ],
)
def test_change_that_exists_is_valid(fields: dict[str, object], message: str) -> None:
    """Each part is checked where the change is made."""
    with pytest.raises(InvalidArgument, match=message):
        replace(SOUND, **fields)
