import time
from collections.abc import Iterator

import pytest

from tests.managers import Stage, staged
from tests.unit.manager.support import Clock


@pytest.fixture
def stage() -> Iterator[Stage]:
    with staged() as made:
        yield made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made.monotonic)
    return made
