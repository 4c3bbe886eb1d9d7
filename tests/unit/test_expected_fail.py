"""`@tdd_expected_fail` in features/environment.py: what counts as the expected failure, by behave's exit code."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

ROOT = Path(__file__).parents[2]

STEPS = """
import threading
from behave import given, then, when

@given("nothing")
def step(context): pass

@when("something happens")
def step(context): pass

@when("an assertion fails")
def step(context): assert False, "too early"

@then("it holds")
def step(context): pass

@then("it does not hold")
def step(context): assert False, "as claimed"

@then("it breaks")
def step(context): raise ValueError("not a claim")

@then("a thread is left behind and it does not hold")
def step(context):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    assert False, "as claimed"
"""


@pytest.fixture
def features(tmp_path: Path) -> Path:
    """A directory of features with the project's own environment."""
    shutil.copy(ROOT / "features" / "environment.py", tmp_path)
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "steps.py").write_text(STEPS)
    return tmp_path


def behave(features: Path, tag: str, when: str, then: str, *options: str) -> subprocess.CompletedProcess[str]:
    (features / "one.feature").write_text(
        f"Feature: one\n  {tag}\n  Scenario: one\n    Given nothing\n    When {when}\n    Then {then}\n"
    )
    command = [sys.executable, "-m", "behave", "-D", "leak_seconds=0.1", *options, str(features)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_fails_as_expected(features: Path) -> None:
    """The claim was reached and did not hold: this is what the tag asks for."""
    result = behave(features, "@tdd_expected_fail", "something happens", "it does not hold")
    assert result.returncode == 0, result.stdout
    assert "failed, as it has to" in result.stderr
    assert "1 scenario passed, 0 failed" in result.stdout


@pytest.mark.parametrize(
    "when, then",
    [
        pytest.param("something happens", "it holds", id="passes"),
        pytest.param("something happens", "it breaks", id="no assertion"),
        pytest.param("something happens", "it is nowhere defined", id="undefined"),
        pytest.param("an assertion fails", "it does not hold", id="an assertion in When"),
        pytest.param("something happens", "a thread is left behind and it does not hold", id="leaks"),
    ],
)
def test_anything_else_is_a_failure(features: Path, when: str, then: str) -> None:
    """An unexpected pass fails, and so does whatever kept the scenario from its claim."""
    result = behave(features, "@tdd_expected_fail", when, then)
    assert result.returncode == 1, result.stdout
    assert "@tdd_expected_fail" in result.stderr


@pytest.mark.parametrize("then, code", [("it holds", 0), ("it does not hold", 1)])
def test_others_are_left_alone(features: Path, then: str, code: int) -> None:
    """Without the tag a pass is a pass and a failure a failure."""
    assert behave(features, "@tdd_issue", "something happens", then).returncode == code


def test_what_is_not_selected_is_not_judged(features: Path) -> None:
    """A scenario that did not run has neither failed nor passed."""
    result = behave(features, "@tdd_expected_fail", "something happens", "it holds", "--tags=not tdd_expected_fail")
    assert result.returncode == 0, result.stdout
