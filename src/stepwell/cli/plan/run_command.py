"""A command that is run for somebody else, with the terminal, signals and exit code that it would have alone."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final

_SIGNALLED: Final = 128  # and the number of the signal, as a shell says it
_STDERR: Final = 2


class CannotRun(Exception):
    """It is there, and is no program that this user may run."""


def run(
    command: Sequence[str], on_interval: Callable[[], None], interval_s: float, *, stdout_to_stderr: bool = False
) -> int:
    """Its exit code. While it runs `beat` is called again and again; aside, what it writes goes to stderr."""
    with _start_process(command, stdout_to_stderr=stdout_to_stderr) as process, _forwarded_signals(process):
        while True:
            try:
                code = process.wait(interval_s)
            except subprocess.TimeoutExpired:
                on_interval()
            else:
                return code if code >= 0 else _SIGNALLED - code


def _start_process(command: Sequence[str], *, stdout_to_stderr: bool) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen([*command], stdout=_STDERR if stdout_to_stderr else None)
    except OSError as error:
        raise CannotRun(f"{command[0]!r} cannot be run: {error.strerror or error}") from None


@contextmanager
def _forwarded_signals(process: subprocess.Popen[bytes]) -> Generator[None]:
    """Ctrl-C is the command's, which has it from the terminal already; what would end us alone is passed on."""

    def forward(number: int, _frame: object) -> None:
        process.send_signal(number)

    def ignore(_number: int, _frame: object) -> None:
        """Not SIG_IGN, which what is started meanwhile would inherit."""

    previous = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGHUP)}
    previous |= {number: signal.signal(number, ignore) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
