from collections.abc import Iterator
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.manager.process import Settings
from tests.support.data_directories import durable_settings
from tests.support.programs.steady_client import Bystander


@pytest.fixture(scope="module")
def runtime() -> Iterator[sw.Runtime]:
    """A manager that has served before, so that what it needs once is not counted as growth."""
    with sw.Runtime.start(workers=0, log_level="error") as started:
        with started.client(projects=["good"]) as client:
            client.tiers.store(sw.Fragment(fragment_id="a", body=b"x"))
            client.tiers.get("a")
        yield started


@pytest.fixture
def bystander(runtime: sw.Runtime) -> Iterator[Bystander]:
    """A good client that works all the time; whatever it met is raised at the end."""
    with Bystander(runtime.address) as working:
        working.progresses()
        yield working
        working.progresses()


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """The settings of a manager with a data directory of this test."""
    with durable_settings(tmp_path / "data") as made:
        yield made
