"""A log that is decoded cannot lead out of its root, whatever wrote it."""

import stat

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.trees import undo_log
from stepwell.trees.entry import TreeEntry
from stepwell.trees.undo_log import UndoItem, UndoLog
from tests.unit.trees.test_root import ESCAPES

ENTRY = TreeEntry(stat.S_IFREG | 0o644, digest_of(b""))
PATHS = [path.encode() for path in ESCAPES if (path and path.isprintable()) or "\0" in path]


def decoded(log: UndoLog) -> UndoLog:
    return undo_log.decode(undo_log.encode(log), "here")


def test_there_and_back() -> None:
    log = UndoLog(
        undo_log.VERSION,
        (UndoItem(b"a/\xff", ENTRY, None), UndoItem(b"l", None, TreeEntry(stat.S_IFLNK, digest_of(b"x")))),
        (b"made",),
        ((b"removed", 0o2775),),
        ((b"", 0o555), (b"a", 0o500)),
        b"nonce",
    )
    assert decoded(log) == log


@pytest.mark.parametrize("path", PATHS, ids=lambda path: repr(path[:20]))
def test_paths_that_leave_the_root(path: bytes) -> None:
    """They are refused wherever a log has a path, by the rule of a change."""
    for log in (
        UndoLog(undo_log.VERSION, (UndoItem(path, ENTRY, None),), (), (), ()),
        UndoLog(undo_log.VERSION, (), (path,), (), ()),
        UndoLog(undo_log.VERSION, (), (), ((path, 0o755),), ()),
        UndoLog(undo_log.VERSION, (), (), (), ((path, 0o755),)),
    ):
        with pytest.raises(sw.StoreDamaged, match="'here' is not the log"):
            decoded(log)


@pytest.mark.parametrize(
    "log",
    [
        UndoLog(undo_log.VERSION, (UndoItem(b"a", ENTRY, None), UndoItem(b"a", None, ENTRY)), (), (), ()),
        UndoLog(undo_log.VERSION, (), (b"a", b"a"), (), ()),
        UndoLog(undo_log.VERSION, (), (), ((b"a", 0), (b"a", 0)), ()),
        UndoLog(undo_log.VERSION, (), (), ((b"a", 0o10000),), ()),
        UndoLog(undo_log.VERSION, (), (), (), ((b"a", -1),)),
        UndoLog(undo_log.VERSION, (), (), (), ((b"", 0), (b"", 0))),
        *(
            UndoLog(undo_log.VERSION, (UndoItem(b"a", TreeEntry(mode, digest), None),), (), (), ())
            for mode, digest in (
                (None, digest_of(b"")),
                (stat.S_IFREG | 0o4755, digest_of(b"")),
                (stat.S_IFIFO | 0o644, digest_of(b"")),
                (stat.S_IFDIR, digest_of(b"")),
                (stat.S_IFREG | 0o644, b"short"),
            )
        ),
    ],
)
def test_values_that_no_transaction_writes(log: UndoLog) -> None:
    with pytest.raises(sw.StoreDamaged, match="'here' is not the log"):
        decoded(log)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x90"])
def test_bytes_that_are_no_log(data: bytes) -> None:
    with pytest.raises(sw.StoreDamaged, match="'here' is not the log"):
        undo_log.decode(data, "here")


def test_another_version() -> None:
    with pytest.raises(sw.StoreDamaged, match="version 99"):
        decoded(UndoLog(99, (), (), (), ()))


def test_a_log_that_could_not_be_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before it is written."""
    log = UndoLog(undo_log.VERSION, (), (b"made",), (), ())
    monkeypatch.setattr(limits, "TREE_LOG_BYTES_MAX", len(undo_log.encode(log)))
    undo_log.encode(log)
    monkeypatch.setattr(limits, "TREE_LOG_BYTES_MAX", limits.TREE_LOG_BYTES_MAX - 1)
    with pytest.raises(sw.InvalidArgument, match="fewer paths"):
        undo_log.encode(log)
