from collections.abc import Iterator

import pytest

import stepwell as sw
from stepwell.testing import LocalRuntime


@pytest.fixture
def runtime() -> Iterator[LocalRuntime | sw.Runtime]:
    """In this process, where a claim does not need another one: a module whose claims do has its own."""
    with LocalRuntime(workers=0, log_level=sw.LogLevel.ERROR) as started:
        yield started


@pytest.fixture
def client(runtime: LocalRuntime | sw.Runtime, request: pytest.FixtureRequest) -> Iterator[sw.Client]:
    """A client of a project that no other test uses."""
    project = "".join(letter if letter.isalnum() else "-" for letter in request.node.name).strip("-")
    with runtime.client(projects=[project[:100]]) as connected:
        yield connected


@pytest.fixture
def everything(runtime: LocalRuntime | sw.Runtime) -> Iterator[sw.Client]:
    """A client without a scope."""
    with runtime.client() as connected:
        yield connected
