"""`@tdd_expected_fail`: the scenario has to fail, and in the way that it is about.

behave takes its exit code from what `Scenario.run` returns, and not from a status that a hook sets; so `run` is
wrapped. Only an `AssertionError` in a Then step counts as the expected failure: anything else, an error in a Given or
When, an exception that is no assertion, a leak, says that the scenario never came to its claim, and stays a failure.
"""

from __future__ import annotations

import functools
import sys
from unittest import mock

from behave.model import Scenario, Step
from behave.model_type import Status
from behave.runner import ModelRunner

TAG = "tdd_expected_fail"


def install() -> None:
    """Invert the scenarios that have the tag."""
    run = Scenario.run
    if hasattr(run, "__wrapped__"):
        return

    @functools.wraps(run)
    def inverted(self: Scenario, runner: ModelRunner) -> bool:
        failed = run(self, runner)
        if TAG not in self.effective_tags or self.status in {Status.skipped, Status.untested}:
            return failed
        if not failed:
            return _fail(self, "it passed, and has to fail: remove the tag, or find out why it no longer can")
        # A failed hook or cleanup, of which the search for leaks is one, has a status of its own.
        broken = next((step for step in self.all_steps if step.status is not Status.passed), None)
        if broken is None or self.status is not Status.failed or not _is_claim(broken):
            return _fail(self, "it failed, but not by an assertion in a Then step: it never came to its claim")
        broken.set_status(Status.passed)  # behave's summary has no word for a failure that was expected
        self.set_status(Status.passed)
        _say(self, "failed, as it has to")
        return False

    mock.patch.object(Scenario, "run", inverted).start()


def _is_claim(step: Step) -> bool:
    return step.step_type == "then" and isinstance(step.exception, AssertionError)


def _fail(scenario: Scenario, reason: str) -> bool:
    _say(scenario, reason)
    if not scenario.status.has_failed():
        scenario.set_status(Status.failed)
    return True


def _say(scenario: Scenario, what: str) -> None:
    """To stderr: a formatter may be writing JSON to stdout."""
    print(f"    @{TAG} {scenario.filename}:{scenario.line}: {what}", file=sys.stderr)
