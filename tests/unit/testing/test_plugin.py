"""The pytest plugin: there for whoever asks, and not noticed by anybody else."""

import re
import subprocess
import sys
from pathlib import Path

ALONE = ("--strict-markers", *(f"-pno:{name}" for name in ("cacheprovider", "hypothesispytest", "xdist")))
"""What other plugins do is not looked at, and takes time."""

AT_ONCE = ("-o", "stepwell_leak_seconds=0.05")
"""Nothing in here ends by itself."""

SUITE = '''
import socket
import pytest
import stepwell as sw
from stepwell.testing import Clock, LocalRuntime, leaks

leaks._shared_memory = lambda: iter(())  # the machine's: a test that runs beside this one may leave some on purpose
kept = []

@pytest.fixture
def leaky():
    """Left by a fixture, and found all the same."""
    kept.extend(socket.socketpair())

@pytest.fixture(scope="module")
def wide():
    """Wider than a test, and nothing that the test has left."""
    pair = socket.socketpair()
    yield
    for each in pair:
        each.close()

@pytest.mark.no_leaks
def test_marked_and_leaking(leaky): pass

def test_asked_and_leaking(leaky, no_leaks): pass

@pytest.mark.no_leaks
def test_left_by_the_test_itself():
    kept.extend(socket.socketpair())

def test_nobody_asked(leaky): pass

@pytest.mark.no_leaks
def test_tidy(wide, stepwell_runtime, stepwell_clock):
    assert isinstance(stepwell_runtime, LocalRuntime) and isinstance(stepwell_clock, Clock)
    tiers = stepwell_runtime.client(projects=["p"]).tiers
    tiers.store(sw.Fragment(fragment_id="a", body="x", tokens=1))
    stepwell_clock.advance(3600)
    assert tiers.list().rows[0].tier is sw.Tier.WARM

@pytest.mark.stepwell_runtime(budget=sw.TierBudget(hot_tokens=5))
class TestOptions:
    @pytest.mark.stepwell_runtime(workers=0)
    def test_options(self, stepwell_runtime):
        client = stepwell_runtime.client()
        assert client.tiers.metrics().budget.hot_tokens == 5
        assert client.strategies.list().offers == ()

def test_fault_that_does_not_happen(stepwell_runtime):
    stepwell_runtime.faults.drop_reply()

@pytest.fixture
def broken():
    kept.extend(socket.socketpair())
    yield
    raise ZeroDivisionError

@pytest.mark.no_leaks
def test_that_fails(leaky):
    raise ZeroDivisionError

@pytest.mark.no_leaks
def test_error_of_a_fixture_comes_first(broken): pass
'''

INDIFFERENT = '''
import sys

def test_is_left_alone(request):
    """Nothing of stepwell is loaded but the plugin, and no fixture of its has been used."""
    loaded = {name for name in sys.modules if name.startswith("stepwell")}
    assert loaded == {"stepwell", "stepwell.testing", "stepwell.testing.plugin"}
    assert not [name for name in request.fixturenames if "stepwell" in name or "leak" in name]

def test_second(): pass
'''


def run(directory: Path, suite: str, *options: str) -> str:
    """What pytest says of a suite in a directory of its own."""
    (directory / "test_suite.py").write_text(suite)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-rA",
            "-p",
            "no:cacheprovider",
            "--strict-markers",
            *AT_ONCE,
            *options,
            str(directory),
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def outcomes(output: str) -> set[tuple[str, str]]:
    return set(re.findall(r"^(PASSED|FAILED|ERROR) .*::(\w+)", output, re.MULTILINE))


def test_who_asks_is_told(tmp_path: Path) -> None:
    """A marker, or a fixture: what stays is an error of the test that left it, and of no other."""
    output = run(tmp_path, SUITE)
    errors = {name for kind, name in outcomes(output) if kind == "ERROR"}
    assert errors == {
        "test_marked_and_leaking",
        "test_asked_and_leaking",
        "test_left_by_the_test_itself",
        "test_fault_that_does_not_happen",
        "test_error_of_a_fixture_comes_first",
    }, output
    assert {name for kind, name in outcomes(output) if kind == "FAILED"} == {"test_that_fails"}, output
    assert len(re.findall(r"^E .*left behind:", output, re.MULTILINE)) == 3, output
    assert "drop_reply(nth=1, times=1) happened 0 times" in output
    assert "ZeroDivisionError" in output


def test_whole_run(tmp_path: Path) -> None:
    """With the option every test is held to it, and so are the fixtures that are wider."""
    suite = """
import socket, pytest
kept = []

@pytest.fixture(scope="module")
def wide():
    kept.extend(socket.socketpair())

def test_leaking(): kept.extend(socket.socketpair())
def test_wide(wide): pass
"""
    output = run(tmp_path, suite, "-o", "stepwell_leak_check=true")
    assert {each for each in outcomes(output) if each[0] == "ERROR"} == {
        ("ERROR", "test_leaking"),
        ("ERROR", "test_wide"),
    }, output
    assert len(re.findall(r"^E .*left behind:", output, re.MULTILINE)) == 2, output


def test_who_does_not_ask_notices_nothing(tmp_path: Path) -> None:
    """No module is imported, no fixture used, no option needed."""
    output = run(tmp_path, INDIFFERENT)
    assert outcomes(output) == {("PASSED", "test_is_left_alone"), ("PASSED", "test_second")}, output


def test_package_does_not_need_pytest() -> None:
    """Neither stepwell nor its doubles import it, and the package names them without importing them."""
    script = (
        "import sys; import stepwell.testing; "
        "assert not {'pytest', 'stepwell.testing.runtime', 'stepwell.manager'} & {*sys.modules}; "
        "assert 'LocalRuntime' in dir(stepwell.testing); "
        "stepwell.testing.LocalRuntime, stepwell.testing.Clock, stepwell.testing.no_leaks; "
        "assert 'pytest' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
