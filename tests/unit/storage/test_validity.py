"""The validity file: what the next manager has to wait for, whatever it finds there."""

import os
from pathlib import Path

import pytest

from stepwell.storage.files.validity import VALIDITY, ValidityFile

FOR_EVER_NS = 2**62
"""Longer than any machine runs: so long as a manager ever waits."""


def left(directory: Path) -> int:
    """The time that the next manager finds."""
    file = ValidityFile(directory)
    file.close()
    return file.found


def test_first_start(tmp_path: Path) -> None:
    """There is nothing to wait for, and no file before it is needed; closing what was not opened does nothing."""
    assert left(tmp_path) == 0
    assert [*tmp_path.iterdir()] == []


def test_time_survives(tmp_path: Path) -> None:
    """The latest one counts, and the file never grows, so that a full disk does not matter."""
    file = ValidityFile(tmp_path)
    sizes = set()
    for until_ns in (5, 10**19, 7_000):
        file.write(until_ns)
        sizes.add((tmp_path / VALIDITY).stat().st_size)
    file.close()
    assert left(tmp_path) == 7_000
    assert len(sizes) == 1
    assert (tmp_path / VALIDITY).stat().st_mode & 0o777 == 0o600


def test_clean_end(tmp_path: Path) -> None:
    """Zero: the next manager need not wait."""
    file = ValidityFile(tmp_path)
    file.write(123)
    file.write(0)
    file.close()
    assert left(tmp_path) == 0


def test_next_manager_writes_over_it(tmp_path: Path) -> None:
    """A file that is there is used as it is."""
    for until_ns in (1, 2):
        file = ValidityFile(tmp_path)
        file.write(until_ns)
        file.close()
    assert left(tmp_path) == 2


@pytest.mark.parametrize("content", [b"", b"garbage", b"12x", bytes(20), b"\xff" * 20])
def test_garbage(tmp_path: Path, content: bytes) -> None:
    """Nobody knows what it was: the manager waits as long as it ever does, and then writes it anew."""
    (tmp_path / VALIDITY).write_bytes(content)
    (tmp_path / VALIDITY).chmod(0o600)
    file = ValidityFile(tmp_path)
    assert file.found > FOR_EVER_NS
    file.write(9)
    file.close()
    assert left(tmp_path) == 9


def test_symbolic_link(tmp_path: Path) -> None:
    """It is neither read nor written through; without a file no client may read."""
    (tmp_path / "target").write_bytes(b"0" * 20)
    (tmp_path / VALIDITY).symlink_to(tmp_path / "target")
    file = ValidityFile(tmp_path)
    assert file.found > FOR_EVER_NS
    with pytest.raises(OSError):  # noqa: PT011 - which one is the kernel's choice
        file.write(5)
    file.close()
    assert (tmp_path / "target").read_bytes() == b"0" * 20


def test_written_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk that is full: an error, so that no client reads."""
    file = ValidityFile(tmp_path)
    monkeypatch.setattr(os, "pwrite", lambda _descriptor, data, _offset: len(data) - 1)
    with pytest.raises(OSError, match="in part"):
        file.write(5)
    file.close()
