from collections.abc import Iterator

import pytest

import stepwell as sw


@pytest.fixture(scope="module")
def runtime() -> Iterator[sw.Runtime]:
    with sw.Runtime.start(workers=0, log_level="error") as started:
        yield started


@pytest.fixture
def client(runtime: sw.Runtime, request: pytest.FixtureRequest) -> Iterator[sw.Client]:
    """A client of a project that no other test uses."""
    project = "".join(letter if letter.isalnum() else "-" for letter in request.node.name).strip("-")
    with runtime.client(projects=[project[:100]]) as connected:
        yield connected


@pytest.fixture
def everything(runtime: sw.Runtime) -> Iterator[sw.Client]:
    """A client without a scope."""
    with runtime.client() as connected:
        yield connected
