"""`Runtime`: a manager of one's own, for as long as a program or a `with` block lasts.

The manager is started as a process of its own from this package's own module, so that the user's `__main__` is never
imported again: the same lines work in an unguarded script, from `python -`, in a notebook and under pytest. It ends
when it is released, and when the program that started it dies, however that happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from stepwell import limits
from stepwell.client.client import Client, connect
from stepwell.client.tokens import DEFAULT_ENCODING, counter
from stepwell.domain.checks import require_instance
from stepwell.domain.fragment import TierBudget
from stepwell.errors import InvalidArgument, NotOwner, StartFailed
from stepwell.manager.process import Settings
from stepwell.protocol.messages import Refusal
from stepwell.telemetry import LogLevel
from stepwell.transport.address import private_directory

_START_SECONDS_MAX: Final = 30.0
_END_SECONDS_MAX: Final = limits.DRAIN_SECONDS_MAX + 5.0

# `-P` keeps the working directory off the path, where a user's `queue.py` would shadow the standard library's.
# What the program has on its path comes behind what the interpreter has by itself.
_BOOT: Final = (
    "import json, sys; sys.path += [each for each in json.loads(sys.argv[2]) if each not in sys.path]; "
    "from stepwell.manager.process import main; sys.exit(main(sys.argv[1]))"
)


class Runtime:
    """A running manager, owned by this process. Make one with `Runtime.start()`; safe from any number of threads."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: socket.socket, settings: Settings) -> None:
        self._process = process
        self._lifeline = lifeline
        self._settings = settings
        self._owner = os.getpid()

    @classmethod
    def start(
        cls,
        *,
        budget: TierBudget | None = None,
        address: str | None = None,
        encoding: str = DEFAULT_ENCODING,
        log_level: LogLevel | str = LogLevel.WARNING,
        spin_s: float = limits.SPIN_SECONDS,
    ) -> Self:
        """Start a manager and wait until it serves.

        It logs to this program's stderr. `address` is the path of its socket, by default a new one in a private
        directory. `encoding` names the vocabulary in which its clients count tokens. `spin_s` is how long it looks for
        more requests before it sleeps.
        """
        level = _log_level(log_level)
        counter(encoding)  # or say now that there is no such encoding
        require_instance(budget, (TierBudget, type(None)), "budget is a stepwell.TierBudget")
        settings = Settings(
            address=str(Path(address).absolute()) if address else str(private_directory() / "manager.sock"),
            budget=budget or TierBudget(),
            encoding=encoding,
            log_level=level,
            spin_s=spin_s,
            private_directory=address is None,
            parent_pid=os.getpid(),
        )
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = _spawn(msgspec.structs.replace(settings, lifeline_fd=theirs.fileno()))
        except BaseException:
            ours.close()
            _remove_directory(settings)
            raise
        runtime = cls(process, ours, settings)
        try:
            runtime._await_start()
        except BaseException:
            runtime.close()
            raise
        return runtime

    @property
    def address(self) -> str:
        """Where the manager listens: give it to other processes on this machine."""
        return self._settings.address

    @property
    def pid(self) -> int:
        """The manager's process."""
        return self._process.pid

    def client(self, projects: Iterable[str] | None = None) -> Client:
        """A client, as `stepwell.connect(runtime.address, projects)` gives it."""
        client = connect(self.address, projects)
        client.runtime = self
        return client

    def is_alive(self) -> bool:
        """Whether the manager is running."""
        self._guard()
        return self._process.poll() is None

    def close(self) -> None:
        """Stop the manager, after it has answered what has arrived, and remove its socket. Twice is as good as once."""
        if self._owner != os.getpid():
            return  # a forked child has no say in its parent's runtime
        with contextlib.suppress(OSError):
            self._lifeline.shutdown(socket.SHUT_RDWR)  # seen even while a forked child holds a copy
        self._lifeline.close()
        try:
            self._process.wait(_END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _remove_directory(self._settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        raise NotOwner("a Runtime stays in the process that started it: send runtime.address and use stepwell.connect")

    def __repr__(self) -> str:
        return f"<stepwell.Runtime at {self.address!r}, process {self.pid}>"

    def _guard(self) -> None:
        if self._owner != os.getpid():
            raise NotOwner("this Runtime belongs to the process that started it: use stepwell.connect(address)")

    def _await_start(self) -> None:
        self._lifeline.settimeout(_START_SECONDS_MAX)
        try:
            told = self._lifeline.recv(64 * limits.KIB)
        except TimeoutError:
            raise StartFailed(f"the manager did not start within {_START_SECONDS_MAX:g} s") from None
        self._lifeline.settimeout(None)
        if not told:
            code = self._process.wait(_END_SECONDS_MAX)
            raise StartFailed(f"the manager ended while starting, with exit code {code}; see its output above")
        if told != b"{}":
            raise msgspec.json.decode(told, type=Refusal).error()


def _spawn(settings: Settings) -> subprocess.Popen[bytes]:
    assert settings.lifeline_fd is not None
    path = json.dumps([str(Path(each).absolute()) for each in sys.path if each])
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _BOOT, msgspec.json.encode(settings).decode(), path],
        stdin=subprocess.DEVNULL,
        pass_fds=(settings.lifeline_fd,),
        process_group=0,  # a terminal's Ctrl-C is for the program; when that ends, so does the manager
    )


def _remove_directory(settings: Settings) -> None:
    if settings.private_directory:
        shutil.rmtree(Path(settings.address).parent, ignore_errors=True)


def _log_level(given: LogLevel | str) -> LogLevel:
    try:
        return LogLevel(given)
    except ValueError:
        raise InvalidArgument(f"log_level is one of {', '.join(LogLevel)}, not {given!r}") from None
