"""Start a process, watch it and end it: the one way for the manager, the workers and the tests.

A process is a `multiprocess` process of the spawn kind: a new interpreter that reads its `Process` object from an
inherited pipe and runs it. `SpawnedProcess` changes what `multiprocess` does where the promises of this package ask
for more. No child process runs the user's `__main__` again, so an unguarded script, `python -` and a notebook work.
The interpreter's own path comes first in the child and the program's path last, because a `queue.py` beside a script
must not shadow the standard library's. The child has a process group of its own, because a Ctrl-C in the
terminal is for the program. Neither side has a resource tracker, because nothing here has a name in the system.

`ChildProcess` is such a process that runs `main(settings)` of a module, together with a socket to it. When the socket
ends, the module's `main` has to return. It is no pipe of `multiprocess`: `shutdown` ends a socket although a forked
child holds a copy of it, and a `Connection` can close its own copy only.

Functions travel in these pipes only from a program to the processes that it starts itself.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from multiprocess import popen_spawn_posix, reduction, spawn, util
from multiprocess.context import SpawnProcess, set_spawning_popen

# The path has to be complete before the first import that is not the standard library's. The second argument is the
# mark by which `multiprocess` knows its own children; the name behind it is for readers of `ps`.
_BOOT: Final = (
    "import json, sys; sys.path += [each for each in json.loads(sys.argv[3]) if each not in sys.path]; "
    "from multiprocess.spawn import spawn_main; spawn_main(pipe_handle={descriptor})"
)
_MARK: Final = "--multiprocessing-fork"


def search_path() -> list[str]:
    """Return the program's `sys.path` with absolute directories, so that it means the same in any directory.

    An entry that stands for the working directory is left out if that directory has been deleted.
    """
    found: list[str] = []
    for each in sys.path:
        with contextlib.suppress(FileNotFoundError):
            found.append(str(Path(each).absolute()))
    return found


class SpawnedProcess(SpawnProcess):
    """A `multiprocess.Process` that keeps this package's promises; `join`, `exitcode` and `kill` work as usual.

    `descriptors` are open in the child under the same numbers. `stderr` is the child's standard error, by default the
    program's own. The kernel reports the end of the starting thread as the death of the child's parent, so a process
    that asks for that signal has to be started from a thread that lives as long as the process should.

    `multiprocess.active_children()` does not list it. `multiprocess` joins its children when the program ends, while
    our processes end because the program has ended: each would wait for the other.
    """

    _start_method: str | None = None
    """None leaves the default of `multiprocess` in the child alone: functions of the user may start processes there."""
    _popen: _Popen | None
    _sentinel: int
    _target: object
    _args: tuple[object, ...]
    _kwargs: dict[str, object]

    def __init__(
        self,
        target: Callable[..., object],
        args: Sequence[object] = (),
        *,
        name: str | None = None,
        descriptors: Sequence[int] = (),
        stderr: int | None = None,
    ) -> None:
        # A daemonic program starts processes that are not daemonic, because functions of the user may start children.
        super().__init__(target=target, args=tuple(args), name=name, daemon=False)
        self.descriptors = tuple(descriptors)
        self.stderr = stderr

    def start(self) -> None:
        """Start the process; raise OSError if there is no interpreter, or no room for another process."""
        assert self._popen is None, "a process is started once"
        self._popen = _Popen(self)
        self._sentinel = self._popen.sentinel
        del self._target, self._args, self._kwargs  # they travel once, and may refer to this object


class _Popen(popen_spawn_posix.Popen):
    """The child of a `SpawnedProcess`, as the operating system has it.

    `multiprocess` launches with `fork_exec`, which can set neither a process group nor standard streams, and with a
    resource tracker. So `subprocess` starts the child and waits for it, which is also safe from several threads.

    The sentinel is a pidfd. The sentinel of `multiprocess` is a pipe, and it stays open for as long as any process
    that the child has forked.
    """

    def __init__(self, process: SpawnedProcess) -> None:
        # The inherited constructor is left out: it flushes the program's streams, which may block or fail.
        self._fds = [*process.descriptors]  # unpickled connections and sockets add theirs
        self.returncode = None
        pickled = self._pickled(process)
        reader, writer = os.pipe()
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, writer)
            try:
                self._child = subprocess.Popen(
                    _command(process.name, reader),
                    stdin=subprocess.DEVNULL,
                    stderr=process.stderr,
                    pass_fds=(*self._fds, reader),
                    process_group=0,
                )
            finally:
                os.close(reader)
            stack.callback(self._child.wait)
            stack.callback(self._child.kill)
            self.pid = self._child.pid
            self.sentinel = os.pidfd_open(self.pid)
            stack.pop_all()
        # The child sees from the end of this pipe that its parent has ended, so it stays open.
        self.finalizer = util.Finalize(self, util.close_fds, (writer, self.sentinel))
        with contextlib.suppress(BrokenPipeError), open(writer, "wb", closefd=False) as file:
            file.write(pickled)  # a child that has died already is noticed by its sentinel

    def _pickled(self, process: SpawnedProcess) -> memoryview:
        """Return what the child reads: how to prepare itself, and the process to run.

        Of the preparation that `multiprocess` knows only the name and the arguments are sent. The child must not
        import `__main__`, replaces no path, and inherits the working directory, which may have no name any more.
        """
        file = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump({"name": process.name, "sys_argv": sys.argv}, file)
            reduction.dump(process, file)
        finally:
            set_spawning_popen(None)
        return file.getbuffer()

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return the exit code, or None while the child runs; without the flag, wait for it."""
        if self.returncode is None:
            self.returncode = self._child.poll() if flag else self._child.wait()
        return self.returncode

    def _send_signal(self, sig: int) -> None:
        self._child.send_signal(sig)  # which never signals another process that has the number by now


def _command(name: str, descriptor: int) -> list[str]:
    """Return the command line of a child that reads its process from the descriptor."""
    boot = _BOOT.format(descriptor=descriptor)
    return [os.fsdecode(spawn.get_executable()), "-P", "-c", boot, _MARK, name, json.dumps(search_path())]


def _run_module(module: str, settings: str) -> NoReturn:
    """Run in the child: its exit code is what the module's `main` returns."""
    sys.exit(importlib.import_module(module).main(settings))


class ChildProcess:
    """A process that runs `main(settings)` of a module, and a socket between the process and its owner.

    `settings` is called with the number that the process's end of the socket has there. The owner may use the methods
    from any thread; only the owner's process may use them, and not a child that it forks.
    """

    def __init__(
        self,
        module: str,
        settings: Callable[[int], str],
        *,
        descriptors: Sequence[int] = (),
        stderr: int | None = None,
    ) -> None:
        self._guard = threading.RLock()  # reentrant, because a finalizer may call `disconnect` while it is held
        self._exit_code: int | None = None
        self.socket, theirs = socket.socketpair()
        try:
            with theirs:
                descriptor = theirs.fileno()
                self._process = SpawnedProcess(
                    _run_module,
                    (module, settings(descriptor)),
                    name=module,
                    descriptors=(descriptor, *descriptors),
                    stderr=stderr,
                )
                self._process.start()
        except BaseException:
            self.socket.close()
            raise
        self.pid: Final = self._process.pid or 0
        self.sentinel: Final = self._process.sentinel
        """A pidfd: it becomes readable when the process has ended."""

    def exit_code(self) -> int | None:
        """Return the exit code, or None while the process runs. A negative one is the number of a signal."""
        with self._guard:
            if self._exit_code is None:
                self._exit_code = self._process.exitcode
            return self._exit_code

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the end of the process and return its exit code, or None if it has not ended in time."""
        if self._exit_code is None:
            try:
                self._process.join(timeout_s)
            except (AssertionError, OSError, ValueError):
                if self._exit_code is None:  # otherwise another thread has seen the end and closed the process
                    raise
        return self.exit_code()

    def disconnect(self) -> None:
        """Tell the process to end: its end of the socket is at its end, even while a forked child holds a copy."""
        with self._guard, contextlib.suppress(OSError):  # the process may have ended, and the socket be closed
            self.socket.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """Kill the process; `wait` returns its exit code."""
        with self._guard:
            if self.exit_code() is None:
                self._process.kill()

    def end(self, until_s: float) -> int:
        """Wait for the process, kill it if it still runs at that moment of `time.monotonic()`, return its exit code."""
        code = self.wait(max(0.0, until_s - time.monotonic()))
        if code is None:
            self.kill()
            code = self.wait()
            assert code is not None
        return code

    def close(self) -> None:
        """Close the socket and the sentinel of a process that has ended. A second call does nothing."""
        with self._guard:
            self.socket.close()
            self._process.close()


def describe_exit(code: int) -> str:
    """Return how a process with this exit code ended, as a clause without its subject."""
    if code >= 0:
        return f"ended with exit code {code}"
    hint = ", perhaps for want of memory" if code == -signal.SIGKILL else ""
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}{hint}"
    return f"was killed by signal {-code}"
