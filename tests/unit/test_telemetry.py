"""Logging never holds up the manager."""

import os
import sys
from pathlib import Path

import pytest

from stepwell.telemetry import LogLevel, configure, get_logger
from tests.processes import in_forked_child


def test_full_pipe_that_nobody_reads_stops_nobody() -> None:
    """Lines that cannot be written at once are dropped."""
    reader, writer = os.pipe()

    def talk() -> None:
        os.dup2(writer, 2)
        sys.stderr = os.fdopen(2, "w")
        configure(LogLevel.INFO)
        for number in range(5_000):
            get_logger().info("line.written", number=number)

    try:
        in_forked_child(talk)
    finally:
        os.close(reader)
        os.close(writer)


def test_lines_arrive(tmp_path: Path) -> None:
    """Where there is room, every line is written whole."""
    log = tmp_path / "log"

    def talk() -> None:
        with log.open("w") as file:
            os.dup2(file.fileno(), 2)
            sys.stderr = os.fdopen(2, "w")
            configure(LogLevel.INFO, as_json=True)
            get_logger(pid=1).info("line.written", text="x" * 10_000)
            get_logger().debug("line.dropped")

    in_forked_child(talk)
    (line,) = log.read_text().splitlines()
    assert '"event": "line.written"' in line
    assert "x" * 10_000 in line


@pytest.mark.parametrize("level", LogLevel)
def test_levels_are_levels(level: LogLevel) -> None:
    """Each name is one that the standard library knows."""
    assert level.upper() in {"DEBUG", "INFO", "WARNING", "ERROR"}
