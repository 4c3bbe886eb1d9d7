"""The named tests, run in a copy of the repository, and their outcomes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.promises.model import Defect
from tests.promises.outcomes import VARIABLE, Outcome
from tests.promises.repository_copy import RepositoryCopy

RUN_SECONDS = 400.0
"""The time limit of a run that has to end by itself."""
HANG_SECONDS = 60.0
"""The time limit of the run of a defect that may hang."""
WRONG_REASONS = ("NameError", "ImportError", "ModuleNotFoundError", "SyntaxError", "UnboundLocalError")
"""Errors of a defect that is badly written. A test that fails with one says nothing about the promise."""

Outcomes = dict[str, list[Outcome]]
"""By test as it is named: the outcomes of its phases, of all its parameters."""


class Steps(msgspec.Struct, rename={"kind": "type"}):
    """A scenario, as behave writes it."""

    kind: str
    name: str
    status: str = "untested"


class Feature(msgspec.Struct):
    """A feature, as behave writes it."""

    elements: list[Steps] = []


def run_tests(copy: RepositoryCopy, tests: Sequence[str], defect: Defect | None = None) -> tuple[Outcomes, bool]:
    """Run the tests with the defect; return their outcomes, and whether the time limit ended the run."""
    limit_s = HANG_SECONDS if defect is not None and defect.may_hang else RUN_SECONDS
    scenarios = [each for each in tests if each.startswith("features/")]
    others = [each for each in tests if each not in scenarios]
    outcomes: Outcomes = {}
    is_late = False
    with copy.broken(defect):
        if others:
            found, is_late = run_pytest(copy, others, limit_s)
            outcomes |= found
        for each in scenarios:
            found, is_scenario_late = run_scenario(copy, each, limit_s)
            outcomes |= found
            is_late |= is_scenario_late
    return outcomes, is_late


def run_pytest(copy: RepositoryCopy, tests: list[str], limit_s: float) -> tuple[Outcomes, bool]:
    """Run tests of pytest. A test has the outcomes of all ids that begin with its name."""
    written = copy.place / "outcomes"
    written.write_bytes(b"")
    arguments = ["-p", "tests.promises.outcomes", "-p", "no:cacheprovider", "-o", f"faulthandler_timeout={2 * limit_s}"]
    settings = {VARIABLE: str(written), "STEPWELL_HYPOTHESIS_PROFILE": "unshrunk"}
    is_late = execute(copy, ["pytest", "-q", *arguments, *tests], settings, limit_s)
    found = [msgspec.json.decode(line, type=Outcome) for line in written.read_bytes().splitlines()]
    return {test: [each for each in found if is_named(each.test, test)] for test in tests}, is_late


def is_named(test_id: str, name: str) -> bool:
    """Return True if a name stands for the test with this id."""
    return test_id == name or test_id.startswith((f"{name}[", f"{name}::", f"{name}/"))


def run_scenario(copy: RepositoryCopy, test: str, limit_s: float) -> tuple[Outcomes, bool]:
    """Run a scenario of behave; the examples of an outline have its name and more."""
    feature, _, name = test.partition(": ")
    written = copy.place / "outcomes"
    written.write_bytes(b"")
    named = ["--name", f"^{re.escape(name)}( -- @|$)"] if name else []
    arguments = ["--format", "json", "--outfile", str(written), *named, feature]
    is_late = execute(copy, ["behave", *arguments], {}, limit_s)
    with contextlib.suppress(msgspec.DecodeError):
        features = msgspec.json.decode(written.read_bytes(), type=list[Feature])
        ended = [each for feature in features for each in feature.elements if each.kind == "scenario"]
        counted = [each for each in ended if each.status not in {"skipped", "untested"}]
        return {test: [Outcome(each.name, "call", each.status != "passed", each.status) for each in counted]}, is_late
    return {test: []}, is_late


def execute(copy: RepositoryCopy, command: list[str], settings: dict[str, str], limit_s: float) -> bool:
    """Run a module in the copy, and return True if the time limit ended it."""
    log = copy.place / "log"
    with copy.environment() as environment, log.open("wb") as file:
        running = subprocess.Popen(
            [copy.python, "-m", *command],
            cwd=copy.root,
            env=environment | settings,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            running.wait(limit_s)
        except subprocess.TimeoutExpired:
            return True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    return False


def log_of(copy: RepositoryCopy) -> str:
    """Return the end of what the last run printed."""
    return "\n".join(Path(copy.place / "log").read_text(errors="replace").splitlines()[-40:])


def trouble(outcomes: list[Outcome]) -> str:
    """Return why a test has not passed, or nothing if it has."""
    if not outcomes:
        return "it did not run"
    return next((each.message or "failed" for each in outcomes if each.is_failed), "")


def failure(outcomes: list[Outcome], *, is_late: bool) -> tuple[bool, str]:
    """Return whether a test failed as it should with a defect, and with what, or what it did instead."""
    failed = [each for each in outcomes if each.is_failed]
    for each in failed:
        if each.phase != "setup" and not each.message.startswith(WRONG_REASONS):
            return True, each.message
    if failed:
        return False, f"it failed in its {failed[0].phase}: {failed[0].message}"
    if is_late:
        return False, "its run was ended by the time limit"
    return False, "it passed" if outcomes else "it did not run"
