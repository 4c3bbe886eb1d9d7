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

from stepwell.pool.frames import HEADER, Call, Failure, Kind, bounded
from stepwell.pool.guard import Limits, guard
from stepwell.pool.pickling import PicklingError, dumps, loads

R = TypeVar("R")


class Duty(Struct, frozen=True, kw_only=True):
    """What a worker is started with."""

    socket_fd: int
    taken_fd: int  # counts the tasks that were taken; the program reads it when we are dead
    parent_pid: int
    path: list[str]


def main(settings: str) -> int:
    """Work until the program has nothing more to say."""
    duty = msgspec.json.decode(settings, type=Duty)
    guard(Limits(parent_pid=duty.parent_pid))
    sys.path[:] = duty.path
    for descriptor in (duty.socket_fd, duty.taken_fd):
        os.set_inheritable(descriptor, False)  # noqa: FBT003
    with socket.socket(fileno=duty.socket_fd) as line, contextlib.suppress(ConnectionError):
        _send(line, Kind.READY, b"")
        while call := _next(line, duty.taken_fd):
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


def _answer(call: bytearray) -> tuple[Kind, bytes]:
    try:
        function, positional, named = cast("Call", loads(call))
        call.clear()
        result = function(*positional, **named)
    except BaseException as error:  # noqa: BLE001 - a SystemExit too: the worker stays
        return Kind.FAILURE, _failure(error)
    try:
        return Kind.RESULT, bounded(dumps(result))
    except BaseException as error:  # noqa: BLE001
        told = f"the result, a {type(result).__name__}, cannot be sent back: {error}"
        return Kind.FAILURE, _failure(PicklingError(told), because=error)


def _failure(error: BaseException, because: BaseException | None = None) -> bytes:
    told = "".join(traceback.format_exception(because or error))
    failure: Failure = (f"{type(error).__name__}: {error}", told, None)
    with contextlib.suppress(Exception):  # then what is known of it is told in words
        failure = (*failure[:2], dumps(error))
    return dumps(failure)


def _next(line: socket.socket, taken_fd: int) -> bytearray | None:
    header = _read(line, HEADER.size)
    if header is None:
        return None
    os.eventfd_write(taken_fd, 1)  # before it is read: what it may do to us is its own fault
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


def _send(line: socket.socket, kind: Kind, data: bytes) -> None:
    line.sendall(HEADER.pack(len(data), kind))
    line.sendall(data)
