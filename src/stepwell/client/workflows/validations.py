"""Run a plan's validations: commands in the changed tree, each with a time limit and bounded output.

`failure_of` makes the error of a plan that a validation has constrained. It reads the plan only, so that the caller
that ran the validations and all later ones get the same error.

Each command runs in a session of its own (`setsid`), so that the whole process group can be killed: at the time limit,
when the lease is lost, and also when the command ends and leaves other processes behind. A process that starts another
session in there escapes that.
"""

from __future__ import annotations

import os
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from typing import Final

from stepwell import limits
from stepwell.domain.plans.model import Plan
from stepwell.domain.plans.validations import Validation, ValidationResult, not_passed
from stepwell.errors import ValidationFailed

_OUTPUT_BYTES_MAX: Final = 4 * limits.VALIDATION_OUTPUT_CHARS_MAX  # a character has at most four bytes
_LAST_READS: Final = limits.MIB // limits.RECEIVE_BYTES_CLIENT  # a pipe holds at most one MiB


def run_all(validations: Iterable[Validation], root: str, check: Callable[[], None]) -> tuple[ValidationResult, ...]:
    """Run every validation in declared order, also after a failed one, so that one run shows all that is wrong.

    `check` is called regularly and may raise, to stop the run.
    """
    return tuple(run(validation, root, check) for validation in validations)


def run(validation: Validation, root: str, check: Callable[[], None]) -> ValidationResult:
    """Run one validation and return its result. A command that cannot be started has failed, too."""
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
            output, is_ended = _run_until(process, begun_s + validation.timeout_s, check)
        finally:  # before `wait`: as long as the process is not reaped, its id cannot belong to another process
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    return ValidationResult.of(
        validation, code if is_ended else None, _passed_ms(begun_s), output, timed_out=not is_ended
    )


def _run_until(process: subprocess.Popen[bytes], until_s: float, check: Callable[[], None]) -> tuple[bytes, bool]:
    """Return the end of a command's output, and True if the command ended in time.

    Output is read all the while, because a command that fills its pipe would block.
    """
    assert process.stdout is not None
    tail = bytearray()
    with ExitStack() as stack:
        stdout = process.stdout.fileno()
        os.set_blocking(stdout, False)
        exit_event = os.pidfd_open(process.pid)
        stack.callback(os.close, exit_event)
        selector = stack.enter_context(selectors.DefaultSelector())
        selector.register(exit_event, selectors.EVENT_READ)
        selector.register(stdout, selectors.EVENT_READ)
        while (rest_s := until_s - time.monotonic()) > 0:
            ready = {key.fd for key, _ in selector.select(min(rest_s, limits.VALIDATION_POLL_SECONDS))}
            check()
            if stdout in ready and _read_output(stdout, tail) == 0:
                selector.unregister(stdout)
            if exit_event in ready:
                for _ in range(_LAST_READS):  # bounded, because a process that it left behind may write for ever
                    if not _read_output(stdout, tail):
                        break
                return bytes(tail), True
    return bytes(tail), False


def _read_output(stdout: int, tail: bytearray) -> int | None:
    """Append available output to `tail`, and cut `tail` to the last bytes that are stored.

    Returns the number of bytes read: 0 at the end of the output, None if nothing is available now.
    """
    try:
        part = os.read(stdout, limits.RECEIVE_BYTES_CLIENT)
    except BlockingIOError:
        return None
    tail += part
    del tail[:-_OUTPUT_BYTES_MAX]
    return len(part)


def _passed_ms(begun_s: float) -> int:
    return int((time.monotonic() - begun_s) * 1000)


def failure_of(plan: Plan) -> ValidationFailed:
    """Return the error of a constrained plan: the first required validation that failed, and the end of its output.

    A session may constrain a plan by hand without any result; then the error has its reason only.
    """
    constrained = plan.constrained
    assert constrained is not None
    names = not_passed(plan.validations, constrained.validations)
    first = next((each for each in constrained.validations if each.name in names), None)
    begun = f"plan {plan.plan_id!r} is constrained, and nothing of it is applied: "
    advice = "; revert_plan leads back to strategize, cancel_plan ends it"
    if first is None:
        return ValidationFailed(f"{begun}{constrained.reason}{advice}", plan_id=plan.plan_id, validations=names)
    command = shlex.join(first.command)[: limits.VALIDATION_COMMAND_CHARS_SHOWN]
    others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return ValidationFailed(
        f"{begun}the required validation {first.name!r}{others}, `{command}`, {first.summary}{advice}{_tail(first)}",
        plan_id=plan.plan_id,
        validations=names,
        command=[*first.command],
        exit_code=first.exit_code,
        output=first.output,
    )


def _tail(result: ValidationResult) -> str:
    """Return the last lines of a result's output as a message ends with them; nothing if it wrote nothing."""
    shown = result.output.rstrip()[-limits.VALIDATION_OUTPUT_CHARS_SHOWN :]
    lines = shown.split("\n")[-limits.OUTPUT_LINES_SHOWN :]
    return "".join(["\nthe end of its output:", *(f"\n    {line}" for line in lines)]) if shown else ""
