"""Logs, as events with fields. A user's program, and what it logs itself, is left alone."""

from __future__ import annotations

import contextlib
import logging
import select
import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TextIO, cast

if TYPE_CHECKING:
    import structlog


class LogLevel(StrEnum):
    """What is worth a line."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_RANKS: Final = {level: rank for rank, level in enumerate(LogLevel)}
_WRITE_CHARS_MAX: Final = select.PIPE_BUF // 4
"""What a pipe that is ready takes whole, however many bytes a character has."""


class _Stderr:
    """Standard error for as long as somebody reads it: that nobody does is no reason to stop serving."""

    def write(self, text: str) -> None:
        """Write what can be written without waiting, and drop the rest."""
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, a broken pipe, closed
            for start in range(0, len(text), _WRITE_CHARS_MAX):
                if not _is_ready(sys.stderr):
                    return
                sys.stderr.write(text[start : start + _WRITE_CHARS_MAX])
                sys.stderr.flush()

    def flush(self) -> None:
        """Every write is flushed."""


def _is_ready(stream: TextIO) -> bool:
    ready = select.poll()
    try:
        ready.register(stream.fileno(), select.POLLOUT)
    except (OSError, ValueError):  # not a descriptor at all: a test's capture, say
        return True
    return bool(ready.poll(0))


class Logger:
    """Events with fields, on standard error: readable, or one JSON object a line.

    What is not worth a line costs a comparison. The first that is loads structlog, which takes as long as loading all
    the rest of a manager, and which most managers never need.
    """

    def __init__(self, level: LogLevel, *, as_json: bool = False, **fields: object) -> None:
        self._level: Final = level
        self._as_json: Final = as_json
        self._fields: Final = fields
        self._structlog: structlog.typing.FilteringBoundLogger | None = None

    def debug(self, event: str, **fields: object) -> None:
        """For whoever looks into it."""
        self._log(LogLevel.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """As it should be."""
        self._log(LogLevel.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """As it should not be, and taken care of."""
        self._log(LogLevel.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Somebody has to do something."""
        self._log(LogLevel.ERROR, event, fields)

    def exception(self, event: str, **fields: object) -> None:
        """An error that is being handled, with its traceback."""
        self._log(LogLevel.ERROR, event, {**fields, "exc_info": True})

    def _log(self, level: LogLevel, event: str, fields: Mapping[str, object]) -> None:
        if _RANKS[level] < _RANKS[self._level]:
            return
        if self._structlog is None:
            self._structlog = self._load()
        getattr(self._structlog, level)(event, **fields)

    def _load(self) -> structlog.typing.FilteringBoundLogger:
        import structlog  # noqa: PLC0415 - see above

        logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
            structlog.WriteLogger(cast("TextIO", _Stderr())),
            processors=_processors(as_json=self._as_json),
            wrapper_class=_wrapper(self._level),
            context_class=dict,
        )
        return logger.bind(**self._fields)


def configure(level: LogLevel) -> None:
    """Have everybody's events in this process, which is ours, look like our own and go where they go."""
    import structlog  # noqa: PLC0415 - see `Logger`

    structlog.configure(
        processors=_processors(as_json=False),
        wrapper_class=_wrapper(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Stderr())),
        cache_logger_on_first_use=True,
    )


def _processors(*, as_json: bool) -> list[structlog.typing.Processor]:
    import structlog  # noqa: PLC0415 - see `Logger`

    is_terminal = False
    with contextlib.suppress(AttributeError, OSError, ValueError):  # none, or not ours and closed
        is_terminal = sys.stderr.isatty()
    return [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=is_terminal),
    ]


def _wrapper(level: LogLevel) -> type[structlog.typing.FilteringBoundLogger]:
    import structlog  # noqa: PLC0415 - see `Logger`

    return structlog.make_filtering_bound_logger(getattr(logging, level.upper()))
