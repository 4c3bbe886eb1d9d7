"""Options of the commands that start worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated

import typer
from typer.models import OptionInfo

from stepwell import limits
from stepwell.cli.common.parameters import choice, option
from stepwell.telemetry import LogLevel

Level = Annotated[LogLevel, choice("--log-level", values=LogLevel, about="lowest level of events that are logged")]


def usable_cores() -> int:
    """Return the number of cores that this process may use, which a container or `taskset` can restrict."""
    return len(os.sched_getaffinity(0))


def workers_option(about: str, *, least: int = 1) -> OptionInfo:
    """Return the option `--workers N`, a number from `least` on."""
    return option("--workers", metavar="N", about=about, parse=_worker_count(least))


def _worker_count(least: int) -> Callable[[str], int]:
    """Return a function that converts a number of workers."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= limits.WORKERS_MAX:
            raise typer.BadParameter(f"{text!r} is not a number from {least} to {limits.WORKERS_MAX}")
        return int(text)

    return parse
