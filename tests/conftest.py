import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.support.signals import restore_keyboard_signals
from tests.support.trees import own_state_directory

restore_keyboard_signals()
os.environ.pop("STEPWELL_ADDRESS", None)  # that of a manager of yours, which no test uses
os.environ["DISABLE_TQDM"] = "1"  # read by bm25s when it is imported: a bar that nobody sees has a thread for ever

# What makes a process that a test starts measure itself; empty where nothing is measured.
MEASUREMENT = {
    name: os.environ[name] for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG") if name in os.environ
}

# Repeatable by default. To soak: STEPWELL_HYPOTHESIS_PROFILE=long pytest tests/property -o faulthandler_timeout=0
# takes other examples each time, and many more; what fails is printed with the line that repeats it.
# Explaining the failure of a state machine takes longer than a test may.
# How long an example takes to make says how busy the machine is.
settings.register_profile(
    "base",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
base = settings.get_profile("base")
settings.register_profile("short", base, max_examples=40, derandomize=True, database=None, stateful_step_count=30)
settings.register_profile("long", base, max_examples=2_000, stateful_step_count=200)
# Where a test has to fail, which it does in python -m tests.promises, nobody waits for the smallest example.
settings.register_profile("unshrunk", settings.get_profile("short"), phases=(Phase.explicit, Phase.generate))
settings.load_profile(os.environ.get("STEPWELL_HYPOTHESIS_PROFILE", "short"))


@pytest.fixture(autouse=True, scope="session")
def state_directory() -> Iterator[None]:
    """A key for trees that is made before any test counts steps, in no directory of the user who runs the tests."""
    with own_state_directory():
        yield


@pytest.fixture
def unmeasured() -> Iterator[None]:
    """A process that is kept from writing cannot write down either what of it was covered."""
    with _processes_unmeasured():
        yield


@pytest.fixture(scope="module")
def processes_unmeasured() -> Iterator[None]:
    """The processes that a file's tests start do what others measure; measuring takes as long as all else they do.

    What this process does itself, as a client say, is measured all the same.
    """
    with _processes_unmeasured():
        yield


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of one test are measured, in a file whose others are not: only they run certain lines."""
    for name, value in MEASUREMENT.items():
        monkeypatch.setenv(name, value)


@contextmanager
def _processes_unmeasured() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        for name in MEASUREMENT:
            environment.delenv(name, raising=False)
        yield


def pytest_collection_finish() -> None:
    """Exempt the collected tests from garbage collection.

    Thousands of tests are a quarter of a million objects that live until the end. Each full collection would look at
    all of them, which takes longer than most tests do.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def freezing_refused() -> Iterator[None]:
    """Refuse `gc.freeze()` in this process: cycles that a later test drops would then hold what they hold for ever.

    A forked child may call it. The refusal takes no time. To count the frozen objects after each test would, because
    there are many of them.
    """
    freeze, tests_pid = gc.freeze, os.getpid()

    def refuse() -> None:
        assert os.getpid() != tests_pid, "call gc.freeze() in a process of its own"
        freeze()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "freeze", refuse)
        yield
