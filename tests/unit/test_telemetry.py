"""Logging never holds up the manager."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stepwell.telemetry import Logger, LogLevel
from tests.support.processes import in_forked_child


def test_full_pipe_that_nobody_reads_stops_nobody() -> None:
    """Lines that cannot be written at once are dropped."""
    reader, writer = os.pipe()

    def talk() -> None:
        os.dup2(writer, 2)
        sys.stderr = os.fdopen(2, "w")
        log = Logger(LogLevel.INFO)
        for number in range(5_000):
            log.info("line.written", number=number)

    try:
        in_forked_child(talk)
    finally:
        os.close(reader)
        os.close(writer)


def test_lines_arrive(tmp_path: Path) -> None:
    """Where there is room, every line is written whole."""
    path = tmp_path / "log"

    def talk() -> None:
        with path.open("w") as file:
            os.dup2(file.fileno(), 2)
            sys.stderr = os.fdopen(2, "w")
            log = Logger(LogLevel.INFO, as_json=True, pid=1)
            log.info("line.written", text="x" * 10_000)
            log.debug("line.dropped")

    in_forked_child(talk)
    (line,) = path.read_text().splitlines()
    assert '"event": "line.written"' in line
    assert "x" * 10_000 in line


def test_what_nobody_reads_loads_nothing() -> None:
    """A manager that has nothing to say does not load what it would say it with; the first event does."""
    script = """
        import sys
        import stepwell.manager.process
        from stepwell.telemetry import Logger, LogLevel
        log = Logger(LogLevel.WARNING, pid=1)
        log.info("line.dropped")
        assert "structlog" not in sys.modules
        try:
            1 / 0
        except ZeroDivisionError:
            log.exception("line.written")
        assert "structlog" in sys.modules
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert "line.written" in told
    assert "ZeroDivisionError" in told
    assert "line.dropped" not in told


@pytest.mark.parametrize("level", LogLevel)
def test_levels_are_levels(level: LogLevel) -> None:
    """Each name is one that the standard library knows."""
    assert level.upper() in {"DEBUG", "INFO", "WARNING", "ERROR"}
