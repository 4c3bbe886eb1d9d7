"""What the kernel knows of a manager's process: its CPU time, its memory, and whether it is at rest."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Final

_REST_LOOKS: Final = 10
_REST_PAUSE_SECONDS: Final = 0.003
_REST_SECONDS_MAX: Final = 900.0


def resident_bytes(pid: int) -> int:
    """Return the memory of a process, private and shared, without its program files."""
    status = Path(f"/proc/{pid}/status").read_text()
    return sum(map(int, re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", status, re.MULTILINE))) * 1024


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, which the kernel counts in steps of 10 ms."""
    user, system = _fields(pid)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def wait_for_rest(pid: int) -> None:
    """Wait until a manager has no background work left, so that it does not disturb the next measurement."""
    until, looks = time.monotonic() + _REST_SECONDS_MAX, 0
    while looks < _REST_LOOKS:
        if time.monotonic() > until:
            raise TimeoutError("the manager was not at rest in time")
        looks = looks + 1 if _fields(pid)[0] == "S" else 0  # "R" is one that would run if it had a core
        time.sleep(_REST_PAUSE_SECONDS)


def _fields(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
