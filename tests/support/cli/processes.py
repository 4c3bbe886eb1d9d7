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
    """A command that is running, in a process group of its own as a shell would give it."""
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def interrupt(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Ctrl-C, which a terminal sends to the whole group; then what was said until the end."""
    os.killpg(process.pid, signal.SIGINT)
    return process.communicate(timeout=PATIENCE_SECONDS)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    never = Event()
    while not condition():
        assert process.poll() is None, process.communicate()
        never.wait(0.01)


def is_listening(address: Path) -> Callable[[], bool]:
    """Not only that there is a socket: it can be dialled a moment later."""

    def listens() -> bool:
        with socket.socket(socket.AF_UNIX) as visitor:
            try:
                visitor.connect(str(address))
            except OSError:
                return False
            return True

    return listens
