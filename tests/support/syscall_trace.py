"""What a process asks of the kernel, in order; and what a power cut at any of those moments would leave on disk.

A process that says "stored" before the disk does cannot be caught by killing it: what it wrote outlives it in the
kernel's cache. So its system calls are followed, and the disk is computed from them at its worst: of each file only
what a flush covers that has come back.

A call happens somewhere between `began` and `ended`. The caller stands still while either is counted, so one call
came before another only if it ended before the other began; no other order is relied on.

Not seen: what is written through mapped memory, by io_uring, by sendfile and its like, and by child processes. Not
modelled: the names of files (a new one is there once flushed, a removed one stays), and unflushed parts that survive.

While a process is traced, its parent must not wait for it, nor poll it (`Popen.kill` polls, `os.kill` does not): the
kernel hands the traced stops to whichever thread of the parent waits. `Trace.join` does without.
"""

import ctypes
import errno
import itertools
import math
import os
import signal
import stat
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

STOP_SECONDS = 60.0
RING_SECONDS = 0.01
"""How often the tracer is told to end: a signal that comes just before it waits does not wake it."""

_MACHINES = ("x86_64", "aarch64")
# The number of each call, in the order of the machines.
_WRITES = {"write": (1, 64), "writev": (20, 66)}
_WRITES_AT = {"pwrite64": (18, 68), "pwritev": (296, 70), "pwritev2": (328, 287)}
_RESIZES = {"ftruncate": (77, 46), "fallocate": (285, 47)}
_SENDS = {"sendto": (44, 206), "sendmsg": (46, 211)}
_RECEIVES = {"recvfrom": (45, 207), "recvmsg": (47, 212)}
_FLUSHES = {"fsync": (74, 82), "fdatasync": (75, 83)}
# The first promises neither the file's length nor what is in the disk's own cache; the second empties and makes files.
_OTHERS = {"sync_file_range": (277, 84), "openat": (257, 56)}
_OUTGOING = _WRITES | _WRITES_AT | _SENDS
_CHANGES = _WRITES | _WRITES_AT | _RESIZES
# Which arguments are the offset and the length, where the length is not that of some memory.
_EXTENTS = {"sync_file_range": (1, 2), "ftruncate": (None, 1), "fallocate": (2, 3)} | dict.fromkeys(
    _WRITES_AT, (3, None)
)

_CONTINUE, _DETACH, _SEIZE, _INTERRUPT, _LISTEN, _GET_SYSCALL_INFO = 24, 17, 0x4206, 0x4207, 0x4208, 0x420E
_OPTIONS = 0x1 | 0x8  # TRACESYSGOOD tells a call from a trap; TRACECLONE: new threads are traced from their start.
_AT_SYSCALL = signal.SIGTRAP | 0x80
_EVENT_STOP = 128
_INFO_BYTES, _INFO_UNION, _ENTRY, _EXIT = 88, 24, 1, 2
_OURS = 0x40000000 | 0x20000000  # __WALL | __WNOTHREAD: whatever this thread traces, no child of another.
_RESTARTS = range(-516, -511)
"""Results that no program sees: the kernel makes the call again."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_BELL = signal.SIGURG


class TracingForbidden(Exception):
    """The machine forbids tracing, or another process traces this one already."""


class SystemCall(NamedTuple):
    name: str
    thread: int
    fd: int
    path: str
    """What the descriptor stood for: a path, or such as `socket:[123]`."""
    is_file: bool
    """A regular file with a name, of which something is left after a power cut."""
    offset: int | None
    length: int
    returned: int
    """The result, or an error's number, negated."""
    data: bytes
    """What was really written, sent or received."""
    began: int
    ended: int

    @property
    def is_send(self) -> bool:
        return self.name in _SENDS or (self.name in _WRITES and self.path.startswith("socket:"))

    @property
    def is_receive(self) -> bool:
        return self.name in _RECEIVES

    @property
    def is_change(self) -> bool:
        """Whether a file has changed of which the disk may not know."""
        return self.name in _CHANGES and self.returned >= 0 and self.is_file and not _is_shared_memory(self.path)

    @property
    def is_flush(self) -> bool:
        return self.name in _FLUSHES and self.returned == 0


def unflushed_at(calls: Sequence[SystemCall], index: int) -> set[str]:
    """The files with a change that began before this call did, and that no flush had covered by then."""
    moment = calls[index].began
    flushed = _flushed(calls, moment)
    changes = (call for call in calls if call.is_change and call.began < moment)
    return {call.path for call in changes if call.ended > flushed.get(call.path, -1)}


def _flushed(calls: Iterable[SystemCall], moment: float) -> dict[str, int]:
    """For each file the time such that what ended before it is on disk at the moment."""
    flushes = (call for call in calls if call.is_flush and call.ended < moment)
    return {call.path: call.began for call in sorted(flushes, key=lambda call: call.began)}


class Disk(NamedTuple):
    """The files below a directory: what they were, and what was done."""

    root: Path
    initial: Mapping[str, bytes]
    calls: Sequence[SystemCall]

    def at(self, index: int, directory: Path) -> None:
        """Write to a directory what a power cut just before this call would leave; past the last, after all."""
        moment = self.calls[index].began if index < len(self.calls) else math.inf
        flushed = _flushed(self.calls, moment)
        contents = {path: bytearray(content) for path, content in self.initial.items()}
        for call in self.calls:
            is_here = (call.is_change or call.name == "openat") and Path(call.path).is_relative_to(self.root)
            if is_here and call.ended < flushed.get(call.path, -1):
                _apply(call, contents.setdefault(call.path, bytearray()))
        for path, content in contents.items():
            file = directory / Path(path).relative_to(self.root)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)


def _apply(call: SystemCall, content: bytearray) -> None:
    match call.name:
        case "openat" | "ftruncate":
            del content[call.length :]
            content.extend(bytes(call.length - len(content)))
        case _ if call.offset is None:
            raise NotImplementedError(f"it is not known how to repeat {call}")
        case "fallocate":
            content.extend(bytes(max(0, call.offset + call.length - len(content))))
        case _:
            content.extend(bytes(max(0, call.offset - len(content))))
            content[call.offset : call.offset + len(call.data)] = call.data


def _is_shared_memory(path: str) -> bool:
    """SQLite makes its -shm anew from the -wal; a segment is on no disk."""
    return path.endswith("-shm") or path.startswith("/dev/shm/")  # noqa: S108 - nothing is made there


@contextmanager
def traced(pid: int, directory: Path | None = None) -> Iterator["Trace"]:
    """Follow a descendant of ours through the block, from the main thread; afterwards it goes on by itself.

    The directory's files are remembered as they were when the process stood still to be traced.
    """
    trace = Trace(pid, directory and directory.resolve())
    # For good: a thread that has ended may still get its last signal, and Python complains of one without a handler.
    # Without this handler the kernel would ignore the signal, so that it disturbs nothing.
    signal.signal(_BELL, _wake)
    trace.start()
    try:
        trace.wait_for_start()
        yield trace
    finally:
        trace.stop()
    trace.raise_failure()


def _wake(_number: int, _frame: object) -> None:
    """Do nothing: the signal has interrupted the tracer's wait."""


class Trace(threading.Thread):
    """What is seen of a process; and the one thread that may ask anything of those it traces.

    It sleeps until one of them stops, records why, and lets it go on. It ends with the process, whose exit status it
    leaves to the parent. To end earlier it is sent a signal itself: the process may be stopped, and not take any.
    """

    def __init__(self, pid: int, directory: Path | None) -> None:
        super().__init__(name=f"tracer of {pid}")
        self.calls: list[SystemCall] = []
        """In the order in which they ended; all of them only after the block, inside it a little behind."""
        self._pid = pid
        self._directory = directory
        self._initial: dict[str, bytes] = {}
        self._recorder = _Recorder(pid)
        self._is_tracing = threading.Event()
        self._is_ending = threading.Event()
        self._is_detaching = False
        self._failure: Exception | None = None

    @property
    def disk(self) -> Disk:
        """What was in the directory when tracing began counts as flushed."""
        assert self._directory is not None, "no directory was given"
        return Disk(self._directory, self._initial, list(self.calls))

    def wait_for_start(self) -> None:
        is_tracing = self._is_tracing.wait(STOP_SECONDS)
        self.raise_failure()
        assert is_tracing, f"process {self._pid} did not stop within {STOP_SECONDS:g} s"

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Let the process go; if it cannot be reached, kill it and say why that may be."""
        self._is_ending.set()
        for _ in range(int(STOP_SECONDS / RING_SECONDS)):
            _LIBC.tgkill(os.getpid(), self.native_id, _BELL)
            self.join(RING_SECONDS)
            if not self.is_alive():
                return
        os.kill(self._pid, signal.SIGKILL)
        self.join()
        self._failure = AssertionError(f"lost sight of process {self._pid}: did its parent wait for it, or poll it?")

    def run(self) -> None:
        try:
            held = self._attach()
            files = self._directory.rglob("*") if self._directory else ()
            kept = (path for path in files if path.is_file() and not _is_shared_memory(str(path)))
            self._initial = {str(path): path.read_bytes() for path in kept}
            for thread, status in held.items():
                self._let_go_on(thread, status)
            self._is_tracing.set()
            while stop := self._next_stop():
                self._let_go_on(*stop)
        except Exception as error:  # noqa: BLE001 - it is raised in the caller's thread
            self._failure = error
        # Whatever is still traced is let go by the kernel when this thread ends.
        self._is_tracing.set()

    def _attach(self) -> dict[int, int]:
        """Have all threads stop, for whatever reason; one that was just being made is found when its maker stands."""
        held: dict[int, int] = {}
        while new := {thread for thread in _threads(self._pid) - held.keys() if _seize(thread)}:
            for thread in new:
                _ptrace(_INTERRUPT, thread)
            while new - held.keys():
                if self._is_ending.is_set() or not (stop := self._next_stop()):
                    raise ProcessLookupError(f"process {self._pid} has ended, or does not stop")
                held[stop[0]] = stop[1]
        if not held:
            raise ProcessLookupError(f"process {self._pid} has ended")
        return held

    def _next_stop(self) -> tuple[int, int] | None:
        """Wait for a thread to stop or, with a status of 0, to end; the end of all is for the parent to see."""
        info = (ctypes.c_int * 32)()
        while _LIBC.waitid(os.P_ALL, 0, info, os.WEXITED | os.WSTOPPED | os.WNOWAIT | _OURS):
            if ctypes.get_errno() == errno.ECHILD:
                return None
            if self._is_ending.is_set():
                return 0, 0
        code, thread, status = info[2], info[4], info[6]
        if code != os.CLD_TRAPPED and thread == self._pid:
            return None
        # What had stopped may have been killed since.
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, thread, (os.WSTOPPED | os.WNOHANG if code == os.CLD_TRAPPED else os.WEXITED) | _OURS)
        return thread, status if code == os.CLD_TRAPPED else 0

    def _let_go_on(self, thread: int, status: int) -> None:
        if self._is_ending.is_set() and not self._is_detaching:
            # Each stops once more, for whatever reason; a call that it is in ends before that.
            self._is_detaching = True
            for other in _threads(self._pid):
                _ptrace(_INTERRUPT, other)
        if not status:
            return
        stopped_by, event = status & 0xFF, status >> 8
        if stopped_by == _AT_SYSCALL and (call := self._recorder.record(thread)):
            self.calls.append(call)
        if self._is_detaching:
            request = _DETACH
        elif event == _EVENT_STOP and stopped_by != signal.SIGTRAP:
            # What a signal has stopped stays so, and is watched for its going on.
            request = _LISTEN
        else:
            request = _CONTINUE
        _ptrace(request, thread, data=0 if event or stopped_by == _AT_SYSCALL else stopped_by)


class _Recorder:
    """Reads what a call means from the process that makes it, while the caller stands still."""

    def __init__(self, pid: int) -> None:
        machine = os.uname().machine
        if machine not in _MACHINES:
            raise TracingForbidden(f"how {machine} numbers its system calls is not known here")
        calls = _CHANGES | _SENDS | _RECEIVES | _FLUSHES | _OTHERS
        self._names = {numbers[_MACHINES.index(machine)]: name for name, numbers in calls.items()}
        self._pid = pid
        self._ticks = itertools.count()
        self._begun: dict[int, tuple[SystemCall, list[tuple[int, int]]]] = {}

    def record(self, thread: int) -> SystemCall | None:
        """The call that this thread has ended, if that is why it stopped and the call is of interest."""
        info = ctypes.create_string_buffer(_INFO_BYTES)
        _ptrace(_GET_SYSCALL_INFO, thread, _INFO_BYTES, ctypes.addressof(info))
        if info.raw[0] == _ENTRY:
            number, *arguments = struct.unpack_from("<7Q", info, _INFO_UNION)
            if name := self._names.get(number):
                self._begun[thread] = self._begin(thread, name, arguments)
        elif info.raw[0] == _EXIT and (begun := self._begun.pop(thread, None)):
            (returned,) = struct.unpack_from("<q", info, _INFO_UNION)
            return None if returned in _RESTARTS else self._end(*begun, returned)
        return None

    def _begin(self, thread: int, name: str, arguments: list[int]) -> tuple[SystemCall, list[tuple[int, int]]]:
        fd = ctypes.c_int(arguments[0]).value
        path, is_file, _ = self._file(fd)
        pieces = self._pieces(name, arguments) if name in _OUTGOING or name in _RECEIVES else []
        data = self._read(pieces) if name in _OUTGOING else b""
        at, of = _EXTENTS.get(name, (None, None))
        # Of the modes of fallocate only the plain one is known.
        offset = None if at is None or (name == "fallocate" and arguments[1]) else arguments[at]
        length = sum(size for _, size in pieces) if of is None else arguments[of]
        began = next(self._ticks)
        return SystemCall(name, thread, fd, path, is_file, offset, length, 0, data, began, began), pieces

    def _end(self, begun: SystemCall, pieces: list[tuple[int, int]], returned: int) -> SystemCall | None:
        call = begun._replace(returned=returned)
        if call.name == "openat":
            path, is_file, size = self._file(returned)
            if not is_file or size:
                return None
            call = call._replace(fd=returned, path=path, is_file=is_file)
        elif call.name in _WRITES and call.is_file:
            # Where it began is not known any more if the descriptor has been closed in the meantime.
            with suppress(FileNotFoundError, ProcessLookupError):
                position = Path(f"/proc/{self._pid}/fdinfo/{call.fd}").read_bytes().split()[1]
                call = call._replace(offset=int(position) - max(returned, 0))
        elif call.name in _RECEIVES:
            call = call._replace(data=self._read(pieces))
        return call._replace(data=call.data[: max(returned, 0)], ended=next(self._ticks))

    def _file(self, fd: int) -> tuple[str, bool, int]:
        """What a descriptor stands for now, whether that is a file with a name, and its size."""
        with suppress(OSError):
            link = Path(f"/proc/{self._pid}/fd/{fd}")
            status = link.stat()
            return str(link.readlink()), stat.S_ISREG(status.st_mode) and status.st_nlink > 0, status.st_size
        return "", False, 0

    def _pieces(self, name: str, arguments: list[int]) -> list[tuple[int, int]]:
        address, length = arguments[1:3]
        if name.endswith("msg"):
            # In a msghdr the peer's name comes first, then the vector.
            address, length = struct.unpack("<16x2Q", self._read([(address, 32)]).ljust(32, b"\0"))
        elif not name.rstrip("2").endswith("v"):
            return [(address, length)]
        return list(struct.iter_unpack("<2Q", self._read([(address, 16 * length)])))

    def _read(self, pieces: list[tuple[int, int]]) -> bytes:
        """Nothing, where nothing is: the kernel will not find it either."""
        with suppress(OSError), Path(f"/proc/{self._pid}/mem").open("rb", buffering=0) as memory:
            return b"".join(os.pread(memory.fileno(), length, address) for address, length in pieces)
        return b""


def _ptrace(request: int, thread: int, address: int = 0, data: int = 0) -> bool:
    """Whether the thread was there to be asked: it may be killed at any moment."""
    if _LIBC.ptrace(request, thread, ctypes.c_void_p(address), ctypes.c_void_p(data)) >= 0:
        return True
    if ctypes.get_errno() == errno.ESRCH:
        return False
    raise OSError(ctypes.get_errno(), f"ptrace request {request:#x}: {os.strerror(ctypes.get_errno())}")


def _seize(thread: int) -> bool:
    """Whether the thread is ours now; its maker being ours already, it may have been from its start."""
    try:
        return _ptrace(_SEIZE, thread, data=_OPTIONS)
    except PermissionError as error:
        with suppress(FileNotFoundError, ProcessLookupError):
            lines = Path(f"/proc/{thread}/status").read_text().splitlines()
            status = dict(line.split(":\t") for line in lines)
            if status["State"][0] in "ZX":
                return False
            if status["TracerPid"] != str(threading.get_native_id()):
                raise TracingForbidden(
                    f"may not trace {thread} ({status['Name']}), whose tracer is {status['TracerPid']}: if that is 0, "
                    "see /proc/sys/kernel/yama/ptrace_scope (at most 1) and the container's seccomp profile"
                ) from error
            return True
        return False


def _threads(pid: int) -> set[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        return {int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()}
    return set()
