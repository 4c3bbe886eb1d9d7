import time
from collections.abc import Iterator

import pytest

from stepwell.transport.kernel import Kernel
from tests.support.manager.peers import Clock, joined
from tests.support.manager.tasks import following, joined_worker, no_pidfd_of_ours
from tests.support.managers import Stage, staged
from tests.support.peers import RawPeer


@pytest.fixture
def stage() -> Iterator[Stage]:
    with staged() as made:
        yield made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made.monotonic)
    return made


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are played by the test: their end must not be its own."""
    monkeypatch.setattr(Kernel, "open_pidfd", no_pidfd_of_ours)


@pytest.fixture
def client(stage: Stage) -> Iterator[RawPeer]:
    with joined(stage, "alice") as peer:
        yield peer


@pytest.fixture
def worker(stage: Stage) -> Iterator[RawPeer]:
    with joined_worker(stage) as peer:
        yield peer


@pytest.fixture
def follower(stage: Stage) -> Iterator[RawPeer]:
    with following(stage) as peer:
        yield peer
