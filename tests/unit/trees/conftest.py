import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.trees import syscalls
from tests.support.trees import discard


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for a tree. Nobody cuts the power here, and waiting for a disk is most of a test's time."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    yield tmp_path / "root"
    assert syscalls.on_step is syscalls._no_hook
    discard(tmp_path / "root")
