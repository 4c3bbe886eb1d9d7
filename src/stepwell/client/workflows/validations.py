"""Running a plan's validations: commands in the changed tree, each with a time limit, their output bounded.

A command is a session of its own, so that all it started ends with it: at its time limit, when it is not needed any
more, and also when it ends itself and leaves something behind. What begins a session of its own in there escapes that.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from typing import Final

from stepwell import limits
from stepwell.domain.plans.validations import Validation, ValidationResult

_KEPT_BYTES: Final = 4 * limits.VALIDATION_OUTPUT_CHARS_MAX  # of which each is a character of at most four
_LAST_READS: Final = limits.MIB // limits.RECEIVE_BYTES_CLIENT  # a pipe holds no more


def run_all(validations: Iterable[Validation], root: str, check: Callable[[], None]) -> tuple[ValidationResult, ...]:
    """Every validation, in declared order, also behind one that failed: one look shows all that is wrong.

    `check` is called all the while, and may raise.
    """
    return tuple(run(validation, root, check) for validation in validations)


def run(validation: Validation, root: str, check: Callable[[], None]) -> ValidationResult:
    """One validation. One that cannot be started has failed, too."""
    check()
    begun_s = time.monotonic()
    try:
        process = subprocess.Popen(
            validation.command,
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return ValidationResult.of(validation, None, _passed_ms(begun_s), f"it cannot be run: {error}".encode())
    with process:
        try:
            output, is_ended = _follow(process, begun_s + validation.timeout_s, check)
        finally:  # not waited for yet: its number is still its own
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    return ValidationResult.of(
        validation, code if is_ended else None, _passed_ms(begun_s), output, timed_out=not is_ended
    )


def _follow(process: subprocess.Popen[bytes], until_s: float, check: Callable[[], None]) -> tuple[bytes, bool]:
    """The end of what it writes, and whether it ends in time."""
    assert process.stdout is not None
    kept = bytearray()
    with ExitStack() as stack:
        stdout = process.stdout.fileno()
        os.set_blocking(stdout, False)
        ending = os.pidfd_open(process.pid)
        stack.callback(os.close, ending)
        selector = stack.enter_context(selectors.DefaultSelector())
        selector.register(ending, selectors.EVENT_READ)
        selector.register(stdout, selectors.EVENT_READ)
        while (rest_s := until_s - time.monotonic()) > 0:
            ready = {key.fd for key, _ in selector.select(min(rest_s, limits.VALIDATION_LOOK_SECONDS))}
            check()
            if stdout in ready and _take(stdout, kept) == 0:
                selector.unregister(stdout)
            if ending in ready:
                for _ in range(_LAST_READS):  # of what it wrote last; somebody else may go on for ever
                    if not _take(stdout, kept):
                        break
                return bytes(kept), True
    return bytes(kept), False


def _take(stdout: int, kept: bytearray) -> int | None:
    """How many bytes there were, of which only the end is kept. 0: there will be no more; None: not now."""
    try:
        part = os.read(stdout, limits.RECEIVE_BYTES_CLIENT)
    except BlockingIOError:
        return None
    kept += part
    del kept[:-_KEPT_BYTES]
    return len(part)


def _passed_ms(begun_s: float) -> int:
    return int((time.monotonic() - begun_s) * 1000)
