from collections.abc import Iterator

import pytest

import stepwell as sw


@pytest.fixture(scope="module")
def runtime() -> Iterator[sw.Runtime]:
    with sw.Runtime.start(workers=0, log_level="error", encoding="estimate") as started:
        yield started


@pytest.fixture
def address(runtime: sw.Runtime) -> str:
    return runtime.address


@pytest.fixture
def project(request: pytest.FixtureRequest) -> str:
    """A project that no other test uses."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name).strip("-")[:100]
