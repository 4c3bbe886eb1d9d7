"""The command line on a real terminal: a pseudo-terminal for stdin, stdout and stderr."""

import os
import pty
import select
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.support.cli.processes import COMMAND, PATIENCE_SECONDS

_READ_BYTES = 65536


class Terminal:
    """A process on a terminal of its own, and all that it has written."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.written = b""
        self._descriptor = descriptor

    def read_until(self, wanted: bytes) -> bytes:
        """Read until the process has written something, and return all that was written."""
        while wanted not in self.written:
            assert self._read(), f"{wanted!r} was never written: {self.written!r}"
        return self.written

    def read_to_end(self) -> bytes:
        """Read until the process has ended, and return all that was written."""
        while self._read():
            pass
        self.process.wait(PATIENCE_SECONDS)
        return self.written

    def _read(self) -> bool:
        """Read what is there, or will be; False at the end."""
        ready, _, _ = select.select([self._descriptor], [], [], PATIENCE_SECONDS)
        assert ready, f"nothing more was written: {self.written!r}"
        try:
            more = os.read(self._descriptor, _READ_BYTES)
        except OSError:  # the last process has closed the terminal
            return False
        self.written += more
        return bool(more)


@contextmanager
def on_terminal(
    arguments: Sequence[str | bytes], environment: Mapping[str, str] | None = None, command: Sequence[str] = COMMAND
) -> Iterator[Terminal]:
    """Start a command on a terminal, and kill it at the end of the block."""
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [*command, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", **(environment or {})},
        ) as process:
            os.close(theirs)
            theirs = -1
            try:
                yield Terminal(process, ours)
            finally:
                process.kill()
    finally:
        os.close(ours)
        if theirs != -1:
            os.close(theirs)
