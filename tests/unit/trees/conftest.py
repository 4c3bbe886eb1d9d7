import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.trees import steps
from tests.unit.trees.support import discard


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for a tree. Nobody cuts the power here, and waiting for a disk is most of a test's time."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    yield tmp_path / "root"
    assert steps.on_step is steps._nothing
    discard(tmp_path / "root")
