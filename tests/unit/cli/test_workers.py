"""`stepwell workers`, as a process."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest

import stepwell as sw
from tests.support.cli.processes import COMMAND, PATIENCE_SECONDS, started

WITHOUT_INTERRUPT = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh", *COMMAND)
"""A command as a shell script starts it with `&`: it ignores SIGINT, and what it executes inherits that."""


def is_ignored(process: Popen[str], number: signal.Signals) -> bool:
    """Return True if a process ignores a signal now, as the kernel knows it."""
    (mask,) = [
        line.split()[1]
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
        if line.startswith("SigIgn:")
    ]
    return bool(int(mask, 16) >> (number - 1) & 1)


@contextmanager
def in_the_background(name: str, tmp_path: Path) -> Iterator[Popen[str]]:
    """Start `serve` or `workers` without SIGINT, wait until it is at work, and end it with SIGTERM."""
    tmp_path.chmod(0o700)
    with sw.Runtime.start(workers=0) as runtime:
        arguments = {
            "serve": ["serve", "--address", str(tmp_path / "s"), "--workers", "0"],
            "workers": ["workers", "--connect", runtime.address, "--workers", "1"],
        }[name]
        with started(*arguments, command=WITHOUT_INTERRUPT) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            said = process.stdout if name == "serve" else process.stderr
            wanted = "listening at " if name == "serve" else "1 of 1 worker ready"
            assert any(wanted in line for line in said), "it has ended"
            yield process
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize("name", ["serve", "workers"])
def test_an_ignored_interrupt_stays_ignored(name: str, tmp_path: Path) -> None:
    """Ctrl-C in the terminal of a script is not for what the script runs in the background."""
    with in_the_background(name, tmp_path) as process:
        assert is_ignored(process, signal.SIGINT)
        process.send_signal(signal.SIGINT)
