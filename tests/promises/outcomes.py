"""A pytest plugin that writes each test's outcome as a line of JSON, in the file that an environment variable names."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

VARIABLE = "STEPWELL_TEST_OUTCOMES"


class Outcome(msgspec.Struct, frozen=True):
    """A phase of a test: `setup`, `call` or `teardown`. `message` is the first line of what it failed with."""

    test: str
    phase: str
    is_failed: bool
    message: str = ""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the outcome of a call, and of any other phase that failed."""
    if report.skipped or (report.when != "call" and not report.failed):
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    message = str(crash.message if crash is not None else report.longrepr or "")
    outcome = Outcome(report.nodeid, str(report.when), report.failed, (message.splitlines() or [""])[0])
    with Path(os.environ[VARIABLE]).open("ab") as file:
        file.write(msgspec.json.encode(outcome) + b"\n")
