"""The boot of the machine, which ends what only its memory holds."""

from __future__ import annotations

import os
from pathlib import Path


def boot_id() -> str:
    """Return the id of the machine's present boot.

    Data that reached no disk are lost with the boot in which they were written.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def clock_namespace() -> str:
    """Return the id of this process's time namespace. Two processes agree on the time since the boot only within one.

    A kernel without time namespaces has one clock, and the id is empty.
    """
    try:
        return os.readlink("/proc/self/ns/time")  # noqa: PTH115 - a Path would make a path of the id
    except OSError:
        return ""
