"""The main program of a function worker: it runs one call after the other for the program that started it.

The worker ends when its socket ends. No exception of a call ends it, not even SystemExit. The worker counts a call
before it reads the call, so that the program knows whether a death was the call's.

The worker is bound to its parent before it imports anything of the program's, and only then takes over the program's
path. So a module beside the program's script cannot shadow one that this package imports, but functions find the same
modules as in the program.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import traceback
from collections.abc import Callable
from typing import TypeVar, cast

import msgspec
from msgspec import Struct

from stepwell.pool.functions.frames import HEADER, Call, Failure, FrameKind, require_fits
from stepwell.pool.pickling import PicklingError, dumps, loads
from stepwell.pool.process_limits import ProcessLimits, restrict_process

R = TypeVar("R")


class FunctionWorkerSettings(Struct, frozen=True, kw_only=True):
    """The settings of one function worker, as its program sends them."""

    socket_fd: int
    begun_fd: int  # an eventfd that counts the calls that were begun; the program reads it when the worker is dead
    parent_pid: int
    path: list[str]  # the program's `sys.path`, because functions import what the program can import


def main(encoded: str) -> int:
    """Run calls until the socket ends; return the exit code."""
    settings = msgspec.json.decode(encoded, type=FunctionWorkerSettings)
    restrict_process(ProcessLimits(parent_pid=settings.parent_pid))
    # Only now, behind the imports of this package, may the program's directories come first.
    sys.path[:] = settings.path
    for descriptor in (settings.socket_fd, settings.begun_fd):
        os.set_inheritable(descriptor, False)  # noqa: FBT003
    with socket.socket(fileno=settings.socket_fd) as connection, contextlib.suppress(ConnectionError):
        _send(connection, FrameKind.READY, b"")
        while call := _next_call(connection, settings.begun_fd):
            _run_call(connection, call)
            del call  # it may be large, and the next one may be long in coming
    return 0


def run_chunk(function: Callable[..., R], calls: list[tuple[object, ...]]) -> list[R]:
    """Call the function with each tuple of arguments; `FunctionExecutor.map` sends chunks of calls this way."""
    return [function(*each) for each in calls]


def _run_call(connection: socket.socket, call: bytearray) -> None:
    """Run a pickled call and send its answer."""
    own_pid = os.getpid()
    kind, answer = _answer(call)
    if os.getpid() != own_pid:  # the function forked and this is the child: its parent sends the answer
        os._exit(0)
    _send(connection, kind, answer)


def _answer(call: bytearray) -> tuple[FrameKind, bytes]:
    """Run a pickled call and return its answer. The pickle is freed first, because it may be as large as the data."""
    try:
        function, positional, named = cast("Call", loads(call))
        call.clear()
        result = function(*positional, **named)
    except BaseException as error:  # noqa: BLE001 - a SystemExit belongs to the future, and the worker goes on
        return FrameKind.FAILURE, _failure(error)
    try:
        return FrameKind.RESULT, require_fits(dumps(result))
    except BaseException as error:  # noqa: BLE001 - a `__reduce__` of the user's may raise anything
        message = f"the result, a {type(result).__name__}, cannot be sent back: {error}"
        return FrameKind.FAILURE, _failure(PicklingError(message), because=error)


def _failure(error: BaseException, because: BaseException | None = None) -> bytes:
    """Return the pickled `Failure` of an error; `because` is the error whose traceback says where."""
    trace = "".join(traceback.format_exception(because or error))
    failure: Failure = (f"{type(error).__name__}: {error}", trace, None)
    with contextlib.suppress(Exception):  # an error that cannot be pickled is sent in words alone
        failure = (*failure[:2], dumps(error))
    return dumps(failure)


def _next_call(connection: socket.socket, begun_fd: int) -> bytearray | None:
    """Return the next pickled call, or None at the end of the socket."""
    header = _read(connection, HEADER.size)
    if header is None:
        return None
    os.eventfd_write(begun_fd, 1)  # before the call is read, because reading a huge one may already kill the worker
    return _read(connection, HEADER.unpack(header)[0])


def _read(connection: socket.socket, count: int) -> bytearray | None:
    """Return that many bytes, or None if the socket ends before."""
    data = bytearray(count)
    with memoryview(data) as view:
        filled = 0
        while filled < count:
            received = connection.recv_into(view[filled:])
            if received == 0:
                return None
            filled += received
    return data


def _send(connection: socket.socket, kind: FrameKind, data: bytes) -> None:
    connection.sendall(HEADER.pack(len(data), kind))
    connection.sendall(data)
