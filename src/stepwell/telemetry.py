"""Logging: events with fields, on standard error.

A manager and its workers log with `Logger`. The configuration of logging in a user's program is never touched: only
processes that stepwell itself started are configured. structlog is imported with the first line that is logged. A
process without a free descriptor can import nothing: it writes plain lines until it can.

A peer must not be able to fill the log. `LimitedLogger` logs a bounded number of events of each name in a time, and
says with the next one how many it has left out.
"""

from __future__ import annotations

import contextlib
import logging
import select
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Final, TextIO, cast

import msgspec

from stepwell import limits
from stepwell.terminal import escape_line, escape_terminal, is_terminal
from stepwell.text import PlainEnum

if TYPE_CHECKING:
    import structlog


class LogLevel(PlainEnum):
    """The lowest level of events that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_RANKS: Final = {level: rank for rank, level in enumerate(LogLevel)}
_WRITE_CHARS_MAX: Final = select.PIPE_BUF // 4
"""The number of characters that a pipe takes in one write without blocking, if it is ready.

The kernel promises that for `PIPE_BUF` bytes, and a character has up to four.
"""


class _Stderr:
    """Standard error that never blocks and never raises.

    A manager whose log is a pipe must go on serving when the reader of the pipe stops reading or ends. Lines that
    cannot be written are lost.
    """

    def write(self, text: str) -> None:
        """Write as much as can be written without waiting, and drop the rest."""
        with contextlib.suppress(AttributeError, OSError, ValueError):  # no stderr, a broken pipe, a closed one
            for start in range(0, len(text), _WRITE_CHARS_MAX):
                if not _is_ready(sys.stderr):
                    return
                sys.stderr.write(text[start : start + _WRITE_CHARS_MAX])
                sys.stderr.flush()

    def flush(self) -> None:
        """Do nothing: every write is flushed."""


def _is_ready(stream: TextIO) -> bool:
    """Return True if a write does not block."""
    ready = select.poll()
    try:
        ready.register(stream.fileno(), select.POLLOUT)
    except (OSError, ValueError):  # no descriptor: the capture of a test, for instance
        return True
    return bool(ready.poll(0))


class Logger:
    """A logger of events with fields, readable or as one JSON object a line.

    An event below the level costs one comparison. The first event above it imports structlog, which takes as long as
    the import of the rest of a manager, and which most managers never need. Any thread may use a logger; `fields` are
    part of every event.
    """

    def __init__(self, level: LogLevel, *, as_json: bool = False, **fields: object) -> None:
        self._level: Final = level
        self._as_json: Final = as_json
        self._fields: Final = fields
        self._structlog: structlog.typing.FilteringBoundLogger | None = None

    def debug(self, event: str, **fields: object) -> None:
        """Log a detail for a developer."""
        self._log(LogLevel.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Log a normal event."""
        self._log(LogLevel.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log a problem that no caller gets as an exception: one that stepwell has handled, or of an unknown peer."""
        self._log(LogLevel.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Log a problem that an operator has to solve."""
        self._log(LogLevel.ERROR, event, fields)

    def exception(self, event: str, **fields: object) -> None:
        """Log an error that is being handled, with its traceback."""
        self._log(LogLevel.ERROR, event, {**fields, "exc_info": True})

    def _log(self, level: LogLevel, event: str, fields: Mapping[str, object]) -> None:
        if _RANKS[level] < _RANKS[self._level]:
            return
        handled = sys.exception()
        try:
            if self._structlog is None:
                self._structlog = self._load()
            getattr(self._structlog, level)(event, **fields)
        except (ImportError, OSError):  # no descriptor is left to import structlog, or to read the code of a traceback
            self._write_plain(level, event, fields, handled)

    def _load(self) -> structlog.typing.FilteringBoundLogger:
        """Return the structlog logger. It is wrapped, not configured, so a program's own structlog is not affected."""
        import structlog  # noqa: PLC0415 - see above

        logger: structlog.typing.FilteringBoundLogger = structlog.wrap_logger(
            structlog.WriteLogger(cast("TextIO", _Stderr())),
            processors=_processors(as_json=self._as_json),
            wrapper_class=_wrapper(self._level),
            context_class=dict,
        )
        return logger.bind(**self._fields)

    def _write_plain(
        self, level: LogLevel, event: str, fields: Mapping[str, object], handled: BaseException | None
    ) -> None:
        """Write an event without structlog: no file is opened, and nothing is imported."""
        shown = {key: str(value) for key, value in (self._fields | dict(fields)).items() if key != "exc_info"}
        if "exc_info" in fields:
            shown["error"] = repr(handled or fields["exc_info"])
        if self._as_json:
            line = msgspec.json.encode({"event": event, "level": level, **shown}).decode()
        else:
            line = " ".join((f"[{level}]", event, *(f"{key}={value!r}" for key, value in shown.items())))
        _Stderr().write(f"{line}\n")


class LimitedLogger:
    """A logger of events that peers cause: a token bucket for each name of an event.

    At first `limits.LOG_EVENTS_BURST` events of a name are logged, then one each `limits.LOG_EVENT_SECONDS`. An event
    that is logged after others were left out has their number in `suppressed`. Only one thread uses it. The number of
    names is bounded by the code that logs.
    """

    def __init__(self, log: Logger, now_s: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now_s = now_s
        self._buckets: dict[str, _Bucket] = {}

    def info(self, event: str, **fields: object) -> None:
        """Log a normal event, unless there were too many of them."""
        if (suppressed := self._admit(event)) is not None:
            self._log.info(event, **fields, **suppressed)

    def warning(self, event: str, **fields: object) -> None:
        """Log a problem that stepwell has handled, unless there were too many of them."""
        if (suppressed := self._admit(event)) is not None:
            self._log.warning(event, **fields, **suppressed)

    def exception(self, event: str, **fields: object) -> None:
        """Log an error that is being handled, with its traceback, unless there were too many of them."""
        if (suppressed := self._admit(event)) is not None:
            self._log.exception(event, **fields, **suppressed)

    def _admit(self, event: str) -> dict[str, object] | None:
        """Return the additional fields of an event that may be logged, or None."""
        now_s = self._now_s()
        bucket = self._buckets.get(event)
        if bucket is None:
            bucket = self._buckets[event] = _Bucket(now_s)
        return bucket.admit(now_s)


class _Bucket:
    """The tokens of one name of an event: one for each event that may be logged now."""

    __slots__ = ("_filled_at_s", "_suppressed", "_tokens")

    def __init__(self, now_s: float) -> None:
        self._tokens = float(limits.LOG_EVENTS_BURST)
        self._filled_at_s = now_s
        self._suppressed = 0

    def admit(self, now_s: float) -> dict[str, object] | None:
        """Use a token and return the number of events that were left out since the last one, or return None."""
        gained = (now_s - self._filled_at_s) / limits.LOG_EVENT_SECONDS
        self._tokens = min(float(limits.LOG_EVENTS_BURST), self._tokens + gained)
        self._filled_at_s = now_s
        if self._tokens < 1:
            self._suppressed += 1
            return None
        self._tokens -= 1
        suppressed, self._suppressed = self._suppressed, 0
        return {"suppressed": suppressed} if suppressed else {}


def configure(level: LogLevel) -> None:
    """Configure structlog for this process, so that events of strategies look like those of stepwell.

    Only for processes that stepwell started: in a user's program this would replace the program's configuration.
    """
    import structlog  # noqa: PLC0415 - see `Logger`

    structlog.configure(
        processors=_processors(as_json=False),
        wrapper_class=_wrapper(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Stderr())),
        cache_logger_on_first_use=True,
    )


def _processors(*, as_json: bool) -> list[structlog.typing.Processor]:
    import structlog  # noqa: PLC0415 - see `Logger`

    has_terminal = is_terminal(sys.stderr)
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    if as_json:
        return [*processors, structlog.processors.JSONRenderer()]  # in ASCII
    if has_terminal:
        processors.append(_escape_fields)
    return [*processors, structlog.dev.ConsoleRenderer(colors=has_terminal)]


def _escape_fields(_logger: object, _method: str, event: MutableMapping[str, object]) -> Mapping[str, object]:
    """Escape names and values for a terminal. The renderer then adds its colours, and writes other values by `repr`."""
    return {
        escape_line(name): escape_terminal(value if isinstance(value, str) else repr(value))
        for name, value in event.items()
    }


def _wrapper(level: LogLevel) -> type[structlog.typing.FilteringBoundLogger]:
    import structlog  # noqa: PLC0415 - see `Logger`

    return structlog.make_filtering_bound_logger(getattr(logging, level.upper()))
