"""A worker that runs functions, one at a time, for the program that spawned it."""

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

from stepwell.pool.functions.frames import HEADER, Call, Failure, FrameKind, bounded
from stepwell.pool.pickling import PicklingError, dumps, loads
from stepwell.pool.process_limits import ProcessLimits, restrict_process

R = TypeVar("R")


class FunctionWorkerSettings(Struct, frozen=True, kw_only=True):
    """What a worker is started with."""

    socket_fd: int
    begun_fd: int  # counts the tasks that were begun; the program reads it when we are dead
    parent_pid: int
    path: list[str]


def main(encoded: str) -> int:
    """Work until the program has nothing more to say."""
    settings = msgspec.json.decode(encoded, type=FunctionWorkerSettings)
    restrict_process(ProcessLimits(parent_pid=settings.parent_pid))
    sys.path[:] = settings.path
    for descriptor in (settings.socket_fd, settings.begun_fd):
        os.set_inheritable(descriptor, False)  # noqa: FBT003
    with socket.socket(fileno=settings.socket_fd) as line, contextlib.suppress(ConnectionError):
        _send(line, FrameKind.READY, b"")
        while call := _next(line, settings.begun_fd):
            _work(line, call)
            del call  # what nobody needs any more, while we wait
    return 0


def run_chunk(function: Callable[..., R], calls: list[tuple[object, ...]]) -> list[R]:
    """Several calls that travel together."""
    return [function(*each) for each in calls]


def _work(line: socket.socket, call: bytearray) -> None:
    own_pid = os.getpid()
    kind, answer = _answer(call)
    if os.getpid() != own_pid:  # the function forked, and this is the child: the answer is its parent's
        os._exit(0)
    _send(line, kind, answer)


def _answer(call: bytearray) -> tuple[FrameKind, bytes]:
    try:
        function, positional, named = cast("Call", loads(call))
        call.clear()
        result = function(*positional, **named)
    except BaseException as error:  # noqa: BLE001 - a SystemExit too: the worker stays
        return FrameKind.FAILURE, _failure(error)
    try:
        return FrameKind.RESULT, bounded(dumps(result))
    except BaseException as error:  # noqa: BLE001
        told = f"the result, a {type(result).__name__}, cannot be sent back: {error}"
        return FrameKind.FAILURE, _failure(PicklingError(told), because=error)


def _failure(error: BaseException, because: BaseException | None = None) -> bytes:
    told = "".join(traceback.format_exception(because or error))
    failure: Failure = (f"{type(error).__name__}: {error}", told, None)
    with contextlib.suppress(Exception):  # then what is known of it is told in words
        failure = (*failure[:2], dumps(error))
    return dumps(failure)


def _next(line: socket.socket, begun_fd: int) -> bytearray | None:
    header = _read(line, HEADER.size)
    if header is None:
        return None
    os.eventfd_write(begun_fd, 1)  # before it is read: what it may do to us is its own fault
    return _read(line, HEADER.unpack(header)[0])


def _read(line: socket.socket, count: int) -> bytearray | None:
    data = bytearray(count)
    with memoryview(data) as view:
        filled = 0
        while filled < count:
            received = line.recv_into(view[filled:])
            if received == 0:
                return None
            filled += received
    return data


def _send(line: socket.socket, kind: FrameKind, data: bytes) -> None:
    line.sendall(HEADER.pack(len(data), kind))
    line.sendall(data)
