"""A seal is accepted for one key, root, name, stage and log, and for nothing else."""

import os
from pathlib import Path

import pytest

from stepwell import limits
from stepwell.trees.sealed_name import RootIdentity, Sealer, Stage

KEY = bytes(range(limits.TREE_KEY_BYTES))
ROOT = RootIdentity(inode=7, device=8, file_system=9)
SEALER = Sealer(KEY, ROOT)
LOG_TAG = SEALER.tag_log(b"log")
FOUND = SEALER.seal("01K4-1", Stage.OPEN, LOG_TAG)
NAME = FOUND.directory


def test_its_own() -> None:
    for stage in Stage:
        found = SEALER.seal("01K4-1", stage, LOG_TAG)
        assert (found.name, found.stage, found.log_tag) == ("01K4-1", stage, LOG_TAG)
        assert SEALER.open(found.directory) == found


@pytest.mark.parametrize("at", range(len(NAME)))
def test_no_other_character(at: int) -> None:
    """Every character of the name counts, except that either hash of the root is enough."""
    other = "0" if NAME[at] != "0" else "1"
    hashes = range(len("01K4-1.") + 32, len(NAME) - len(".open"))
    assert (SEALER.open(f"{NAME[:at]}{other}{NAME[at + 1 :]}") is not None) == (at in hashes)


def test_neither_hash() -> None:
    start = len("01K4-1.") + 32
    for end in (start, start + 24):
        assert SEALER.open(f"{NAME[:start]}{'0' * 48}.open") is None
        assert SEALER.open(NAME[:end] + NAME[end + 24 :]) is None


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage is not Stage.OPEN])
def test_another_stage(stage: Stage) -> None:
    assert SEALER.open(f"{NAME.removesuffix('.open')}.{stage}") is None


def test_another_key() -> None:
    assert Sealer(KEY[::-1], ROOT).open(NAME) is None
    assert Sealer(KEY[::-1], ROOT).tag_log(b"log") != LOG_TAG


@pytest.mark.parametrize(
    "root, is_accepted",
    [
        (RootIdentity(7, 8, 9), True),
        (RootIdentity(7, 80, 9), True),  # another number of the device after a start of the machine
        (RootIdentity(7, 8, 90), True),  # another id of the file system, as after a change of its driver
        (RootIdentity(7, 80, 90), False),
        (RootIdentity(70, 8, 9), False),  # a copy of the tree on the same file system
        (RootIdentity(7, 9, 8), False),
    ],
)
def test_another_root(root: RootIdentity, is_accepted: bool) -> None:  # noqa: FBT001
    assert (Sealer(KEY, root).open(NAME) == FOUND) == is_accepted


def test_a_file_system_without_an_id() -> None:
    """Its device decides alone: two file systems without an id are not the same one."""
    found = Sealer(KEY, RootIdentity(7, 8, 0)).seal("x", Stage.OPEN, LOG_TAG)
    assert Sealer(KEY, RootIdentity(7, 8, 0)).open(found.directory) == found
    assert Sealer(KEY, RootIdentity(7, 80, 0)).open(found.directory) is None


@pytest.mark.parametrize("name", ["", "x.open", ".open", "lock", f".{NAME}", NAME.upper(), f"{NAME}\n", f"../{NAME}"])
def test_names_without_a_seal(name: str) -> None:
    assert SEALER.open(name) is None


def test_the_longest_name_is_a_name(tmp_path: Path) -> None:
    longest = SEALER.seal("x" * limits.TREE_TRANSACTION_NAME_CHARS_MAX, Stage.STAGING, LOG_TAG)
    (tmp_path / longest.directory).mkdir()
    assert [SEALER.open(each.name) for each in tmp_path.iterdir()] == [longest]


def test_identity_of_a_directory(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        found = RootIdentity.of(descriptor)
    finally:
        os.close(descriptor)
    status = tmp_path.stat()
    assert (found.inode, found.device) == (status.st_ino, status.st_dev)
    assert found.file_system == os.statvfs(tmp_path).f_fsid
