"""Shared memory as the kernel reports it, independent of our own counters."""

import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from stepwell.limits import KIB

_GONE = {errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM}
"""What it answers about a process that has ended, or is not ours."""


def shared_bytes() -> int:
    """All shared memory of the machine."""
    return _kilobytes(Path("/proc/meminfo"), "Shmem")


class Resident(NamedTuple):
    """The memory that a process has, in bytes, without the files that it runs from."""

    private: int
    shared: int


def resident(pid: int) -> Resident:
    """As it is now."""
    status = Path(f"/proc/{pid}/status")
    return Resident(_kilobytes(status, "RssAnon"), _kilobytes(status, "RssShmem"))


def _kilobytes(path: Path, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", path.read_text(), re.MULTILINE)
    assert found, f"{path} does not say {name}"
    return int(found[1]) * KIB


def mapped_files(pid: int | str) -> dict[int, range]:
    """The memory files of ours that a process maps, by inode, and where."""
    found: dict[int, range] = {}
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        where, _, _, _, inode, *name = line.split(maxsplit=5)
        if name and name[0].startswith("/memfd:stepwell"):
            start, end = (int(each, 16) for each in where.split("-"))
            found[int(inode)] = range(start, end)
    return found


def open_files(pid: int | str) -> Iterator[int]:
    """The memory files of ours that a process has open, by inode."""
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            if str(entry.readlink()).startswith("/memfd:stepwell"):
                yield entry.stat().st_ino


def keepers(inodes: Iterable[int]) -> set[str]:
    """The processes that map any of these memory files, or have them open."""
    wanted = set(inodes)
    found: set[str] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                has = {*mapped_files(entry.name), *open_files(entry.name)}
            except OSError as error:
                if error.errno not in _GONE:
                    raise
            else:
                found |= {entry.name} if has & wanted else set()
    return found
