"""Logging never holds up the manager."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stepwell import limits
from stepwell.telemetry import LimitedLogger, Logger, LogLevel
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
        in_forked_child(talk, is_measured=True)
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

    in_forked_child(talk, is_measured=True)
    (line,) = path.read_text().splitlines()
    assert '"event": "line.written"' in line
    assert "x" * 10_000 in line


def test_events_of_peers_are_limited(capfd: pytest.CaptureFixture[str]) -> None:
    """After a burst one event of a name is logged in a time, with the number of those left out; other names are not."""
    now_s = 0.0
    log = LimitedLogger(Logger(LogLevel.WARNING, as_json=True), lambda: now_s)
    for number in range(limits.LOG_EVENTS_BURST + 100):
        log.warning("peer.rejected", number=number)
    log.warning("peer.refused")
    now_s += limits.LOG_EVENT_SECONDS
    log.warning("peer.rejected", number=-1)
    log.warning("peer.rejected", number=-2)
    now_s += limits.LOG_EVENT_SECONDS
    log.exception("peer.rejected", number=-3)  # noqa: LOG004
    log.exception("peer.rejected", number=-4)  # noqa: LOG004
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    rejected = [(line["number"], line.get("suppressed")) for line in lines if line["event"] == "peer.rejected"]
    assert rejected == [*((number, None) for number in range(limits.LOG_EVENTS_BURST)), (-1, 100), (-3, 1)]
    assert [line["event"] for line in lines].count("peer.refused") == 1


@pytest.mark.parametrize("as_json", [True, False])
def test_without_a_descriptor_lines_are_plain(*, as_json: bool) -> None:
    """Nothing can be imported then; the line comes all the same, and a later one is as usual."""
    script = """
        import os, resource, sys
        from stepwell.telemetry import Logger, LogLevel
        log = Logger(LogLevel.WARNING, as_json=AS_JSON, pid=1)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        log.warning("peer.not_accepted", reason="none left")
        try:
            raise ValueError("a defect")
        except ValueError:
            log.exception("peer.met_a_defect")
        assert "structlog" not in sys.modules
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        log.warning("peer.rejected")
        assert "structlog" in sys.modules
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script).replace("AS_JSON", str(as_json))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second, third = done.stderr.splitlines()
    assert "peer.not_accepted" in first
    assert "none left" in first
    assert "a defect" in second
    assert "peer.rejected" in third
    if as_json:
        assert [json.loads(line)["event"] for line in (first, second)] == ["peer.not_accepted", "peer.met_a_defect"]


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
