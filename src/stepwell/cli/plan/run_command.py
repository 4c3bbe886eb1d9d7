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


def run(command: Sequence[str], beat: Callable[[], None], every_s: float, *, is_aside: bool = False) -> int:
    """Its exit code. While it runs `beat` is called again and again; aside, what it writes goes to stderr."""
    with _started(command, is_aside=is_aside) as process, _passing_on(process):
        while True:
            try:
                code = process.wait(every_s)
            except subprocess.TimeoutExpired:
                beat()
            else:
                return code if code >= 0 else _SIGNALLED - code


def _started(command: Sequence[str], *, is_aside: bool) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen([*command], stdout=_STDERR if is_aside else None)
    except OSError as error:
        raise CannotRun(f"{command[0]!r} cannot be run: {error.strerror or error}") from None


@contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Generator[None]:
    """Ctrl-C is the command's, which has it from the terminal already; what would end us alone is passed on."""

    def pass_on(number: int, _frame: object) -> None:
        process.send_signal(number)

    def leave(_number: int, _frame: object) -> None:
        """Not SIG_IGN, which what is started meanwhile would inherit."""

    previous = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGHUP)}
    previous |= {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
