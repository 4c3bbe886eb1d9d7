"""Complete the future of a call: with its result, or with an error that says what happened in the worker.

A future runs its callbacks in the thread that completes it, which is the scheduler's. So nothing that a user's
callback or `__setstate__` raises may leave this module: the calls of other callers go on.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import cast

from stepwell.pool.functions.frames import Failure, FrameKind
from stepwell.pool.functions.worker_process import PendingCall
from stepwell.pool.pickling import PicklingError, loads


class RemoteTraceback(Exception):
    """The traceback of the worker, as text: the cause of the error that the future raises in the program."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def complete(call: PendingCall, kind: FrameKind, data: bytearray) -> None:
    """Complete the call's future with the RESULT or the FAILURE that its worker has sent."""
    if kind is FrameKind.FAILURE:
        fail(call, _remote_error(call, data))
        return
    try:
        result = loads(data)
    except BaseException as error:  # noqa: BLE001 - a `__setstate__` of the user's may raise anything
        unread = PicklingError(f"the result of {call.name} cannot be read here: {type(error).__name__}: {error}")
        unread.__cause__ = error
        fail(call, unread)
    else:
        _run_callbacks(lambda: call.future.set_result(result))


def fail(call: PendingCall, error: BaseException) -> None:
    """Complete the call's future with an error."""
    _run_callbacks(lambda: call.future.set_exception(error))


def _run_callbacks(complete_future: Callable[[], None]) -> None:
    """Complete a future. An exception of a callback, SystemExit included, goes to `threading.excepthook`."""
    try:
        complete_future()
    except BaseException:  # noqa: BLE001
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


def _remote_error(call: PendingCall, data: bytearray) -> BaseException:
    """Return the exception of a FAILURE, or a PicklingError that quotes it; its cause is the worker's traceback."""
    line, trace, pickled = cast("Failure", loads(data))
    error = _unpickled_error(pickled)
    if error is None:
        error = PicklingError(f"{call.name} raised {line}, which cannot be sent as itself")
    error.__cause__ = RemoteTraceback(trace)
    return error


def _unpickled_error(pickled: bytes | None) -> BaseException | None:
    """Return the exception, or None: many exceptions take other arguments than they keep, and do not unpickle."""
    if pickled is None:
        return None
    try:
        error = loads(pickled)
    except BaseException:  # noqa: BLE001 - as above
        return None
    return error if isinstance(error, BaseException) else None
