"""The command line as a process of its own."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event

PATIENCE_SECONDS = 60.0
COMMAND = (sys.executable, "-m", "stepwell")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


@contextmanager
def started(*arguments: str, command: Sequence[str] = COMMAND) -> Iterator[subprocess.Popen[str]]:
    """Start a command in a process group of its own, as a shell does, and kill it at the end of the block."""
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def interrupt(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Send Ctrl-C as a terminal does, to the whole process group, and return the output until the end."""
    os.killpg(process.pid, signal.SIGINT)
    return process.communicate(timeout=PATIENCE_SECONDS)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    never = Event()
    while not condition():
        assert process.poll() is None, process.communicate()
        never.wait(0.01)


def is_listening(address: Path) -> Callable[[], bool]:
    """Return a condition that holds once a connection is accepted: the socket file appears a moment earlier."""

    def listens() -> bool:
        with socket.socket(socket.AF_UNIX) as visitor:
            try:
                visitor.connect(str(address))
            except OSError:
                return False
            return True

    return listens
