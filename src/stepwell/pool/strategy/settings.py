"""The values that a supervisor, its owner and its worker processes agree on: settings, status and exit codes."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from stepwell.domain.tasks.model import StrategyProblems
from stepwell.telemetry import LogLevel

EXIT_RECYCLED: Final = 64
"""The exit code of a worker that has finished its task and should not run another, because it ran out of memory."""

EXIT_NO_MANAGER: Final = 69
"""The exit code of a worker without a manager: there is none, or it refused the worker."""


class PoolSettings(Struct, frozen=True, kw_only=True):
    """The settings of a pool of strategy workers. The workers have the built-in and installed strategies too."""

    address: str  # of the manager
    workers: int
    strategies: tuple[str, ...] = ()  # `module:attr`
    pickled_strategies: bytes | None = None  # objects of the program that starts the workers
    max_memory_bytes: int | None = None
    nice: int | None = None
    log_level: LogLevel = LogLevel.WARNING


class PoolStatus(Struct, frozen=True):
    """The state of a pool at one moment. `problem` says why the supervisor has given up, and is empty otherwise."""

    wanted: int
    ready: int
    restarts: int
    pids: tuple[int, ...]
    problem: str = ""


class WorkerReady(Struct, frozen=True):
    """The one report that a worker sends over its lifeline, when the manager has accepted it: a line of JSON."""

    problems: StrategyProblems = ()

    def encode(self) -> bytes:
        """Return the report as the worker sends it."""
        return msgspec.json.encode(self) + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> WorkerReady:
        """Return the report of a line. Raise `msgspec.MsgspecError` or `UnicodeDecodeError` if it is none."""
        return msgspec.json.decode(line, type=cls)


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """The settings of one strategy worker, as its supervisor sends them to the process."""

    address: str
    parent_pid: int
    lifeline_fd: int  # a socket: its end tells the worker to end
    strategies: tuple[str, ...] = ()  # `module:attr`
    pickled_strategies_fd: int | None = None  # a file without a name, which only this worker inherits
    max_memory_bytes: int | None = None
    nice: int | None = None
    log_level: LogLevel = LogLevel.WARNING
