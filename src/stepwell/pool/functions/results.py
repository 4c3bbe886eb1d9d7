"""What becomes of a future: a result, or an error that says what happened in the worker."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import cast

from stepwell.pool.functions.frames import Failure, FrameKind
from stepwell.pool.functions.worker_process import PendingCall
from stepwell.pool.pickling import PicklingError, loads


class RemoteTraceback(Exception):
    """Where it happened in the worker, as the cause of the error that is raised here."""

    def __init__(self, told: str) -> None:
        super().__init__(told)
        self.told = told

    def __str__(self) -> str:
        return f'\n"""\n{self.told}"""'


def answer(task: PendingCall, kind: FrameKind, data: bytearray) -> None:
    """Give whoever waits what the worker has sent."""
    if kind is FrameKind.FAILURE:
        fail(task, _error(task, data))
        return
    try:
        result = loads(data)
    except BaseException as error:  # noqa: BLE001 - whatever somebody's `__setstate__` raises
        told = PicklingError(f"the result of {task.name} cannot be read here: {type(error).__name__}: {error}")
        told.__cause__ = error
        fail(task, told)
    else:
        _complete(lambda: task.future.set_result(result))


def fail(task: PendingCall, error: BaseException) -> None:
    """Give whoever waits the error."""
    _complete(lambda: task.future.set_exception(error))


def _complete(deed: Callable[[], None]) -> None:
    """Callbacks run here. What one of them raises, be it SystemExit, is not the end of everybody else's work."""
    try:
        deed()
    except BaseException:  # noqa: BLE001
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


def _error(task: PendingCall, data: bytearray) -> BaseException:
    line, told, pickled = cast("Failure", loads(data))
    error = _loaded(pickled)
    if error is None:
        error = PicklingError(f"{task.name} raised {line}, which cannot be sent as itself")
    error.__cause__ = RemoteTraceback(told)
    return error


def _loaded(pickled: bytes | None) -> BaseException | None:
    """Many an error takes other arguments than it keeps, and cannot be made again."""
    if pickled is None:
        return None
    try:
        error = loads(pickled)
    except BaseException:  # noqa: BLE001 - as above
        return None
    return error if isinstance(error, BaseException) else None
