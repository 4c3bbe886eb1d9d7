"""A manager that is killed again and again, and started again each time on the same directory and address.

`Runtime` gives a manager up that dies five times within a minute, which is right for a program and too few for a proof.
So the restarts are done here. Clients wait for a restart because of the same lock that a `Runtime` holds.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from stepwell import limits
from stepwell.errors import StartFailed
from stepwell.manager.process import Settings
from stepwell.process import ChildProcess
from stepwell.protocol.messages import Refusal
from stepwell.storage.store import Durability
from stepwell.telemetry import LogLevel
from stepwell.transport import restart_lock
from stepwell.transport.restart_lock import RestartLock

_MODULE: Final = "stepwell.manager.process"
_SERVES: Final = b"{}"


class KillableManager:
    """A manager with a data directory, in a process of its own. One thread uses it.

    Writes survive the process and not a loss of power (`durability="process"`), because a kill can show no more.
    """

    def __init__(self, directory: Path, data_dir: str | None = None, *, read_index: bool = True) -> None:
        self.kills = 0
        self.address: Final = str(directory / "manager.sock")
        self._settings = Settings(
            address=self.address,
            budget=None,
            data_dir=data_dir or str(directory / "state"),
            durability=Durability.PROCESS,
            read_index=read_index,
            log_level=LogLevel.ERROR,
            parent_pid=os.getpid(),
        )
        self._lock = RestartLock(self.address)
        try:
            self._process = _started(self._settings)
        except BaseException:
            self._lock.release()
            raise

    def kill(self) -> None:
        """Kill the manager with SIGKILL, and start the next one."""
        self._process.kill()
        self._process.wait()
        self._process.close()
        self.kills += 1
        self._process = _started(self._settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _end(self._process)
        self._lock.release()
        restart_lock.remove(self.address)


def _started(settings: Settings) -> ChildProcess:
    """Start a manager, and return its process when it serves; raise the reason if it does not."""

    def encode(lifeline_fd: int) -> str:
        return msgspec.json.encode(msgspec.structs.replace(settings, lifeline_fd=lifeline_fd)).decode()

    process = ChildProcess(_MODULE, encode)
    try:
        _wait_until_served(process)
    except BaseException:
        _end(process)
        raise
    return process


def _wait_until_served(process: ChildProcess) -> None:
    """Wait for the report of a manager that has started; raise what it reports instead."""
    process.socket.settimeout(limits.MANAGER_START_SECONDS_MAX)
    try:
        report = process.socket.recv(limits.MANAGER_REPORT_BYTES_MAX).strip()
    except TimeoutError:
        raise StartFailed(f"the manager did not start within {limits.MANAGER_START_SECONDS_MAX:g} s") from None
    if not report:
        raise StartFailed("the manager ended while starting; see its output above")
    if report != _SERVES:
        raise msgspec.json.decode(report, type=Refusal).error()


def _end(process: ChildProcess) -> None:
    """Tell a manager to end, and kill it if it takes too long. A process that is closed already has ended."""
    process.disconnect()
    if process.exit_code() is None:
        process.end(time.monotonic() + limits.MANAGER_END_SECONDS_MAX)
    process.close()
