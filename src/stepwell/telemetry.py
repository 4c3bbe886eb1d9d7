"""Logs, as events with fields. Configured only in processes that are ours; a user's program is left alone."""

from __future__ import annotations

import contextlib
import logging
import select
import sys
from enum import StrEnum
from typing import Final, TextIO, cast

import structlog


class LogLevel(StrEnum):
    """What is worth a line."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_PIECE_CHARS: Final = select.PIPE_BUF // 4
"""What a pipe that is ready takes whole, however many bytes a character has."""


class _Stderr:
    """Standard error for as long as somebody reads it: that nobody does is no reason to stop serving."""

    def write(self, text: str) -> None:
        """Write what can be written without waiting, and drop the rest."""
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, a broken pipe, closed
            for start in range(0, len(text), _PIECE_CHARS):
                if not _is_ready(sys.stderr):
                    return
                sys.stderr.write(text[start : start + _PIECE_CHARS])
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


def configure(level: LogLevel, *, as_json: bool = False) -> None:
    """Send this process's events to stderr: readable, or one JSON object a line."""
    structlog.configure(
        processors=_processors(as_json=as_json),
        wrapper_class=_wrapper(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Stderr())),
        cache_logger_on_first_use=True,
    )


def detached_logger(level: LogLevel, **fields: object) -> structlog.typing.FilteringBoundLogger:
    """A logger for a program that is not ours: it writes to stderr like ours, and configures nothing."""
    logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(cast("TextIO", _Stderr())),
        processors=_processors(as_json=False),
        wrapper_class=_wrapper(level),
        context_class=dict,
    )
    return logger.bind(**fields)


def _processors(*, as_json: bool) -> list[structlog.typing.Processor]:
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
    return structlog.make_filtering_bound_logger(getattr(logging, level.upper()))


def get_logger(**fields: object) -> structlog.typing.FilteringBoundLogger:
    """A logger whose every event carries these fields."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger(**fields)
    return logger
