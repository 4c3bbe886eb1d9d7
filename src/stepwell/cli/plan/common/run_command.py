"""Run another program as if the user had started it: with this terminal, with its signals and with its exit code."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final

_SIGNALLED: Final = 128  # and the number of the signal, as a shell says it
_STDERR: Final = 2


class CannotRun(Exception):
    """The program exists and cannot be run, for instance because it is not executable."""


def run(
    command: Sequence[str], on_interval: Callable[[], None], interval_s: float, *, stdout_to_stderr: bool = False
) -> int:
    """Run the command and return its exit code, or 128 plus the number of the signal that ended it.

    While it runs, `on_interval` is called every `interval_s` seconds. With `stdout_to_stderr` the command writes to
    stderr, because stdout is needed for a JSON object.
    """
    with _start_process(command, stdout_to_stderr=stdout_to_stderr) as process, _forwarded_signals(process):
        while True:
            try:
                # Waiting in intervals needs no second thread for `on_interval`.
                code = process.wait(interval_s)
            except subprocess.TimeoutExpired:
                on_interval()
            else:
                return code if code >= 0 else _SIGNALLED - code


def _start_process(command: Sequence[str], *, stdout_to_stderr: bool) -> subprocess.Popen[bytes]:
    """Start the command. Raise `CannotRun` if the kernel refuses."""
    try:
        return subprocess.Popen([*command], stdout=_STDERR if stdout_to_stderr else None)
    except OSError as error:
        raise CannotRun(f"{command[0]!r} cannot be run: {error.strerror or error}") from None


@contextmanager
def _forwarded_signals(process: subprocess.Popen[bytes]) -> Generator[None]:
    r"""Handle signals for the command's sake for the duration of the block.

    A terminal sends Ctrl-C and Ctrl-\ to the whole process group, so the command has them already: this process only
    has to survive them. SIGTERM and SIGHUP are sent to this process alone, so they are passed on.
    """

    def forward(number: int, _frame: object) -> None:
        process.send_signal(number)

    def ignore(_number: int, _frame: object) -> None:
        """Do nothing. `SIG_IGN` would be inherited by a process that is started meanwhile, a handler is not."""

    previous = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGHUP)}
    previous |= {number: signal.signal(number, ignore) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
