from collections.abc import Iterator

import pytest

from tests.leaks import no_leaks, private_runtime_directory


@pytest.fixture(scope="session", autouse=True)
def _wide_fixtures_leave_nothing() -> Iterator[None]:
    """A fixture wider than a test is there before the test is looked at, and has to be looked at here."""
    with private_runtime_directory(), no_leaks():
        yield


@pytest.fixture(autouse=True)
def _each_test_leaves_nothing(_wide_fixtures_leave_nothing: None) -> Iterator[None]:
    with no_leaks():
        yield
