"""The part of the pytest plugin that looks at a whole run; registered where `stepwell_leak_check` is on."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from stepwell.testing.leaks import no_leaks, private_runtime_directory


@pytest.fixture(scope="session", autouse=True)
def stepwell_whole_run(pytestconfig: pytest.Config) -> Generator[None]:
    """A fixture wider than a test is there before the test is looked at, and has to be looked at here."""
    with private_runtime_directory(), no_leaks(float(pytestconfig.getini("stepwell_leak_seconds"))):
        yield
