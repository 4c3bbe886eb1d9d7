"""A flipped bit in a row gives right data or is found, with the table and the row; never wrong data."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from stepwell.domain.events import AnyEvent
from stepwell.errors import StepwellError
from stepwell.manager.check.doctor import CheckReport, examine
from stepwell.protocol.codec import encode_frame
from stepwell.protocol.messages import Response
from stepwell.storage.rows import use_values
from stepwell.storage.store import Durability, StoredState
from tests.support.measurement import untraced
from tests.support.storage.damage import attempts, flip_in_values, value_places
from tests.support.storage.state import durable_state, fill, tamper

FLIPS = 300


def a_reply() -> bytes:
    """A reply as the manager remembers it."""
    frame = bytearray()
    encode_frame(Response(1, ()), frame)
    return bytes(frame)


def everything(directory: Path) -> tuple[object, ...]:
    """All that a manager would serve from a directory."""
    with durable_state(directory, durability=Durability.DISK) as made:
        stored = made.owner.stored
        assert stored is not None
        return served(stored, made.store.events_after(0, 10_000))


def served(stored: StoredState, events: list[AnyEvent]) -> tuple[object, ...]:
    return (
        (stored.revision, stored.clock_ms, stored.next_serial, stored.tick),
        stored.rows,
        [(each.row, use_values(each)) for each in stored.fragments],
        stored.bodies,
        stored.sessions,
        stored.replies,
        events,
    )


def diagnosis(directory: Path) -> CheckReport:
    return examine(directory, lambda _encoding: None)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Something in every table, all of it in one file without old copies of rows."""
    with durable_state(tmp_path / "data", durability=Durability.DISK) as made:
        fill(made)
        made.journal.record_reply("session", 1, a_reply())
        made.commit()
        made.work()
    tamper(tmp_path / "data", "VACUUM")
    tamper(tmp_path / "data", "PRAGMA wal_checkpoint(TRUNCATE)")
    return tmp_path / "data"


@untraced()
def test_flipped_bit_is_harmless_or_found(directory: Path, tmp_path: Path) -> None:
    """300 flips in texts, digests and times of rows. What the doctor calls healthy is what was stored."""
    assert diagnosis(directory).problems == []
    expected = everything(shutil.copytree(directory, tmp_path / "whole"))
    places = value_places(directory)
    assert len(places) > 100

    def attempt(seed: int) -> str | None:
        copy = Path(shutil.copytree(directory, tmp_path / f"copy-{seed}"))
        what = f"seed {seed}: {flip_in_values(copy, places, seed)}"
        report = diagnosis(copy)
        # A value may occur in a body, too: then the doctor names the body.
        if not (report.is_healthy or any(re.search("table |body [0-9a-f]{64}", each) for each in report.problems)):
            return f"{what}: the doctor names neither table nor body: {report.problems}"
        try:
            is_right = everything(copy) == expected
        except StepwellError as error:
            return None if not report.is_healthy else f"{what}: refused ({error}), and the doctor finds nothing"
        except Exception as error:  # noqa: BLE001 - each is a failure of its own
            return f"{what}: {error!r}"
        finally:
            shutil.rmtree(copy)
        if report.is_healthy and not is_right:
            return f"{what}: wrong data are served, and the doctor finds nothing"
        return None if is_right else f"{what}: wrong data are served; the doctor says {report.problems}"

    assert attempts(FLIPS, attempt) == []
