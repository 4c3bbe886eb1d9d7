"""The boot of the machine, which ends what only its memory holds."""

from __future__ import annotations

from pathlib import Path


def boot_id() -> str:
    """Return the id of the machine's present boot.

    Data that reached no disk are lost with the boot in which they were written.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
