"""The pytest plugin of stepwell: fixtures, a marker and options.

    stepwell_runtime    a `LocalRuntime`; `@pytest.mark.stepwell_runtime(budget=…)` gives it options
    stepwell_clock      its `Clock`, which stands still until the test advances it
    no_leaks            as a marker or as a fixture: the test must leave nothing behind
    stepwell_leak_check = true      in the configuration of pytest: no test may, and neither may the whole run
    stepwell_leak_seconds = 3       how long ending resources may take to end

pytest loads it wherever stepwell is installed. A test that uses none of it is not affected, and nothing else of
stepwell is imported for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from types import ModuleType
from typing import TYPE_CHECKING, Final, cast

import pytest

if TYPE_CHECKING:
    from stepwell.testing.clock import Clock
    from stepwell.testing.runtime import LocalRuntime

_OPTION: Final = "stepwell_leak_check"
_SECONDS: Final = "stepwell_leak_seconds"
_LEAK_CHECK: Final = pytest.StashKey[contextlib.ExitStack]()
"""The open leak check of a test, from its first fixture to its teardown."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options. By default there is no check."""
    checks = "fail tests that leave processes, threads, descriptors or the like behind"
    parser.addini(_OPTION, checks, "bool", default=False)
    parser.addini(_SECONDS, "how long what a test has left may take to end by itself", default="3")


def pytest_configure(config: pytest.Config) -> None:
    """Add the markers and, if the option is on, the check of the whole run."""
    for marker in (
        "no_leaks: fail if the test leaves processes, threads, descriptors, sockets or shared memory behind",
        "stepwell_runtime(**options): with what the fixture of that name makes its LocalRuntime",
    ):
        config.addinivalue_line("markers", marker)
    if config.getini(_OPTION):
        config.pluginmanager.register(_whole_run_plugin(), "stepwell-whole-run")


def _whole_run_plugin() -> ModuleType:
    """Return a pytest plugin that has the fixture for the whole run, and nothing else.

    A fixture of this module itself would be active in every test run on the machine, because pytest loads this module
    wherever stepwell is installed. pytest takes a session's fixtures from modules only, so the plugin is a module.
    """
    plugin = ModuleType("stepwell_whole_run")
    vars(plugin)["stepwell_whole_run"] = pytest.fixture(scope="session", autouse=True)(_whole_run)
    return plugin


def _whole_run(pytestconfig: pytest.Config) -> Generator[None]:
    """Fail if the whole run leaves anything behind. Its sockets are in a directory of their own.

    The check of a test begins with its first fixture of function scope. Fixtures of a wider scope exist before that,
    so only this check finds what they leave behind.
    """
    from stepwell.testing.leaks import no_leaks, private_runtime_directory  # noqa: PLC0415

    with private_runtime_directory(), no_leaks(float(pytestconfig.getini(_SECONDS))):
        yield


@pytest.fixture
def no_leaks() -> None:
    """Request the leak check of a test, whatever the order of its fixtures. The hooks below do the work."""


@pytest.fixture
def stepwell_clock() -> Clock:
    """Return the clock of `stepwell_runtime`."""
    from stepwell.testing.clock import Clock  # noqa: PLC0415

    return Clock()


@pytest.fixture
def stepwell_runtime(request: pytest.FixtureRequest, stepwell_clock: Clock) -> Generator[LocalRuntime]:
    """Yield a runtime for one test. Its clients are closed with it, and a fault that did not happen is an error."""
    from stepwell.testing.runtime import LocalRuntime  # noqa: PLC0415

    options: dict[str, object] = {"clock": stepwell_clock}
    for marker in request.node.iter_markers("stepwell_runtime"):
        options = {**marker.kwargs, **options}
    with cast("Callable[..., LocalRuntime]", LocalRuntime)(**options) as runtime:
        yield runtime


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> None:
    """Begin the leak check of a test before its first fixture of function scope."""
    if fixturedef.scope == "function":
        _begin_leak_check(request.node)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Begin the leak check of a test that has no such fixture. A failing test is not checked."""
    _begin_leak_check(item)
    with _no_leak_check_after_error(item):
        yield


def _begin_leak_check(item: pytest.Item) -> None:
    """Take the first snapshot of a test, unless that was done before or the test is not to be checked."""
    if _LEAK_CHECK in item.stash or not _is_leak_check_requested(item):
        return
    from stepwell.testing import leaks  # noqa: PLC0415

    item.stash[_LEAK_CHECK] = stack = contextlib.ExitStack()
    stack.enter_context(leaks.no_leaks(float(item.config.getini(_SECONDS))))


def _is_leak_check_requested(item: pytest.Item) -> bool:
    """Return True if the option, a marker or a fixture requests the check."""
    names: tuple[str, ...] | list[str] = getattr(item, "fixturenames", ())
    return bool(item.config.getini(_OPTION)) or item.get_closest_marker("no_leaks") is not None or "no_leaks" in names


@contextlib.contextmanager
def _no_leak_check_after_error(item: pytest.Item) -> Generator[None]:
    """Drop the leak check if the block raises: the error comes first, and it explains the leak."""
    try:
        yield
    except BaseException:
        if (stack := item.stash.get(_LEAK_CHECK, None)) is not None:
            stack.pop_all()
        raise


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """End the leak check of a test after all fixtures that are not needed any more are gone."""
    with _no_leak_check_after_error(item):
        yield
    if (stack := item.stash.get(_LEAK_CHECK, None)) is not None:
        del item.stash[_LEAK_CHECK]
        stack.close()
