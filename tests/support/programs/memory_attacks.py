"""A process that has a body mapped and tries to change it, in every way that the kernel offers."""

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from multiprocess.connection import Connection

import stepwell as sw
from tests.support.programs.memory_readers import PROJECT

_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)


class Target(NamedTuple):
    """The access that a reader has to a segment."""

    body: memoryview
    descriptor: int
    mapped_at: int
    size: int


def _assign(target: Target) -> None:
    target.body[0] = 0


def _write(target: Target) -> None:
    os.pwrite(target.descriptor, b"x", 0)


def _truncate(target: Target) -> None:
    os.ftruncate(target.descriptor, 0)


def _map_to_write(target: Target) -> None:
    mmap.mmap(target.descriptor, target.size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE).close()


def _protect(target: Target) -> None:
    _check(
        _libc.mprotect(
            ctypes.c_void_p(target.mapped_at), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_WRITE
        )
    )


def _punch_hole(target: Target) -> None:
    mode = _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE
    _check(_libc.fallocate(target.descriptor, mode, ctypes.c_long(0), ctypes.c_long(mmap.PAGESIZE)))


def _force(target: Target) -> None:
    """Through /proc/self/mem a process can write even to what it has mapped for reading, if it could have had more."""
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(target.mapped_at)
        memory.write(b"x")


def _unseal(target: Target) -> None:
    fcntl.fcntl(target.descriptor, fcntl.F_ADD_SEALS, 0)


def _reopen(target: Target) -> None:
    reopened = os.open(f"/proc/self/fd/{target.descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.pwrite(reopened, b"x", 0)
    finally:
        os.close(reopened)


ATTEMPTS: dict[str, Callable[[Target], None]] = {
    "assign": _assign,
    "write": _write,
    "truncate": _truncate,
    "map to write": _map_to_write,
    "protect": _protect,
    "punch a hole": _punch_hole,
    "force": _force,
    "unseal": _unseal,
    "reopen": _reopen,
}

_MEMORY = {
    "assign": "TypeError",
    "write": "EPERM",
    "truncate": "EPERM",
    "map to write": "EPERM",
    "protect": "EACCES",
    "punch a hole": "EPERM",
    "force": "EIO",
    "unseal": "EPERM",
    "reopen": "EPERM",
}
_FILE = {
    "assign": "TypeError",
    "write": "EBADF",
    "truncate": "EINVAL",
    "map to write": "EACCES",
    "protect": "EACCES",
    "punch a hole": "EBADF",
    "force": "EIO",
    "unseal": "EPERM",
}
COLD_NAME = "/#"
"""What the name of a file without one begins with. A cold body is expanded, so that it lies elsewhere."""

REFUSED = {False: _MEMORY, True: _FILE}
"""What each attempt meets in memory, and in a file of cold bodies, which its owner could open anew, to write."""


def vandalise(address: str, is_cold: bool, turn: Connection) -> None:  # noqa: FBT001
    """Make all attempts, and report the outcome of each."""
    with sw.connect(address, [PROJECT]) as client:
        fragment = client.tiers.get("a")
        turn.send(attempt_all(fragment.body, fragment.stored, is_cold=is_cold))


def attempt_all(body: memoryview, stored: memoryview, *, is_cold: bool) -> dict[str, str]:
    """Return the outcome of each attempt on the segment in which a body is stored."""
    target = _target(body, stored, COLD_NAME if is_cold else "/memfd:stepwell")
    return {name: _outcome(ATTEMPTS[name], target) for name in REFUSED[is_cold]}


def place_of(body: memoryview) -> int:
    """Where in memory a body begins. ctypes gives the address of nothing that is read-only, but of its elements."""
    holder = (ctypes.c_void_p * 12)()  # a Py_buffer, whose first field that is
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(body), holder, 0)
    try:
        return holder[0] or 0
    finally:
        ctypes.pythonapi.PyBuffer_Release(holder)


def _outcome(attempt: Callable[[Target], None], target: Target) -> str:
    try:
        attempt(target)
    except TypeError:
        return "TypeError"
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def _target(body: memoryview, stored: memoryview, name: str) -> Target:
    """The descriptor that came with the segment is closed, but a mapping keeps a copy."""
    place = place_of(stored)
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, *_, path = line.split(maxsplit=5)
        start, end = (int(each, 16) for each in where.split("-"))
        if name in path and (name == COLD_NAME or start <= place < end):
            break
    else:
        raise AssertionError(f"no segment has the body at {place:#x}")
    descriptor = next(
        int(entry.name)
        for entry in Path("/proc/self/fd").iterdir()
        if entry.is_symlink() and str(entry.readlink()) == path
    )
    return Target(body, descriptor, start, end - start)


def _check(result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
