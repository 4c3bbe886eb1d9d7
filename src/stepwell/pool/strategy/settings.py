"""What a worker and whoever starts it agree on."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from stepwell.telemetry import LogLevel

READY: Final = b"ready"
EXIT_RECYCLED: Final = 64  # exit code: it has done its task, and should not do another
EXIT_NO_MANAGER: Final = 69  # exit code: there is no manager, or it has no work for us


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """How a worker is started."""

    address: str
    parent_pid: int
    lifeline_fd: int
    strategies: tuple[str, ...] = ()  # `module:attr`
    pickled_strategies_fd: int | None = None  # a file with pickled strategies, from whoever started us and nobody else
    max_memory_bytes: int | None = None
    nice: int | None = None
    log_level: LogLevel = LogLevel.WARNING
