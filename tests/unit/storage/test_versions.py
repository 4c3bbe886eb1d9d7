"""What any version has written is read by this one: real files, each made by the stepwell of its time."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from stepwell.domain import invariants
from stepwell.domain.logs.model import POPPED
from stepwell.domain.plans.model import Lease, Phase, PlanState
from stepwell.domain.tiers.model import Tier
from stepwell.memory.compression import unpack
from stepwell.storage.body_reader import BodyFile
from stepwell.storage.files.directory import DATABASE
from stepwell.storage.schema import VERSION
from stepwell.storage.store import Durability
from tests.support.storage import kept_database
from tests.support.storage.kept_database import SUFFIX, VERSIONS
from tests.support.storage.state import NOON_MS, DurableState, durable_state

FILES = sorted(VERSIONS.glob(f"*{SUFFIX}"))
BYTES_MAX = 150_000


def test_every_version_has_its_file() -> None:
    """A new version of the tables comes with one: see `keepsake`."""
    assert {path.name for path in VERSIONS.iterdir()} == {f"{number}{SUFFIX}" for number in range(1, VERSION + 1)}
    assert all(path.stat().st_size < BYTES_MAX for path in FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_file_is_of_its_version(file: Path, tmp_path: Path) -> None:
    """And not of a later one, under its name; something is in each of its tables."""
    with closing(sqlite3.connect(shutil.copyfile(file, tmp_path / DATABASE))) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (int(file.stem),)
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        assert [table for table in tables if not db.execute(f"SELECT 1 FROM {table}").fetchone()] == []  # noqa: S608


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_everything_in_it_is_found(file: Path, tmp_path: Path) -> None:
    """By the manager that brings it up to date, and by the next."""
    shutil.copyfile(file, tmp_path / DATABASE)
    for _ in range(2):
        with durable_state(tmp_path, durability=Durability.DISK) as made:
            assert invariants.check(made.owner._state) == []
            fragments_are_there(made)
            has_queue = int(file.stem) >= kept_database.EIGHTH
            plan_is_there(made, knows_modes=int(file.stem) >= kept_database.MODES_SINCE, has_queue=has_queue)
            receipts_are_there(made, kept_database.RECEIPTS if int(file.stem) >= kept_database.RECEIPTS_SINCE else {})
            state_is_there(made, is_in_it=int(file.stem) >= kept_database.EIGHTH)
            log_is_there(made, is_in_it=int(file.stem) >= kept_database.EIGHTH)
            found = made.owner.stored
            assert found is not None
            assert (found.sessions, found.replies) == ([kept_database.SESSION], kept_database.REPLIES)
            has_parts = int(file.stem) >= kept_database.REPLY_PARTS_SINCE
            assert found.reply_parts == (kept_database.REPLY_PARTS if has_parts else [])
            assert made.owner._state.budget == kept_database.BUDGET
            events = kept_database.EVENTS + has_queue * (kept_database.EIGHTH_EVENTS + kept_database.QUEUED_EVENTS)
            assert len(made.store.events_after(0, 1_000)) == events
            made.work()


def fragments_are_there(made: DurableState) -> None:
    table = made.owner._state.fragments
    for tier in Tier:
        names = [entry.row.fragment_id for entry in table.oldest(tier)]
        assert names == [name for name, (wanted, _) in kept_database.FRAGMENTS.items() if wanted is tier]
    for name, (_, body) in kept_database.FRAGMENTS.items():
        row = table.entries["p", name].row
        assert (row.tokens, row.size, row.source, row.kind, row.detail_depth) == (7, len(body), "file:a.py", "code", 3)
        assert row.metadata == kept_database.METADATA
        assert body_of(made, row.digest, len(body)) == body
    used = table.entries["p", "used"]
    assert (used.access_count, used.touched_at_ms, used.last_accessed_ms) == (2, NOON_MS + 5, NOON_MS + 5)


def plan_is_there(made: DurableState, *, knows_modes: bool, has_queue: bool) -> None:
    state = made.owner._state
    assert [action.name for action in state.actions] == ["local/act"]
    plan, *queued = state.plans
    assert [each.plan_id for each in queued] == [kept_database.QUEUED] * has_queue
    assert [(each.plan_id, each.tree, each.priority, each.place) for each in state.tickets] == [
        (kept_database.QUEUED, "/tree 🐟", 7, 1)
    ] * has_queue
    assert (plan.plan_id, plan.phase, plan.state) == ("plan", Phase.EXECUTE, PlanState.PROCESSING)
    assert plan.lease == Lease(kept_database.LEASE_TOKEN, "alice", NOON_MS + 300_000)
    (decision,) = state.decisions
    assert (decision.question, decision.choice, decision.rationale) == ("which?", "this", "because")
    (entry,) = state.entries.of("changeset")
    assert (entry.path, entry.tool) == ("a.py", "editor")
    assert entry.ordinal == knows_modes
    for side, body, mode in zip((entry.before, entry.after), kept_database.CHANGE, kept_database.MODES, strict=True):
        assert side is not None
        assert side.mode == (mode if knows_modes else None)
        assert body_of(made, side.digest, len(body)) == body


def receipts_are_there(made: DurableState, wanted: dict[str, bytes]) -> None:
    rows = [*made.owner._state.receipts.before(None)][::-1]
    assert [row.receipt_id for row in rows] == [*wanted]
    for row in rows:
        assert (row.projects, row.title) == (("p", "q/r"), f"which {row.receipt_id}? 🐟")
        assert row.created_at_ms == NOON_MS + 7
        assert body_of(made, row.digest, row.size) == wanted[row.receipt_id]


def log_is_there(made: DurableState, *, is_in_it: bool) -> None:
    logs = made.owner._state.logs
    assert [log.key for log in logs] == [("p", "log")] * is_in_it
    for log in logs:
        assert (log.next_position, log.keep_entries, log.keep_ms) == kept_database.LOG_AFTER
        entries = logs.entries.of(log.serial)
        assert {row.position: (row.kind, row.metadata) for row in entries} == {
            position: entry[1:] for position, entry in kept_database.LOG.items()
        }
        for row in entries:
            assert body_of(made, row.digest, row.size) == kept_database.LOG[row.position][0]
        assert [body_of(made, row.digest, row.size) for row in logs.entries.of(POPPED)] == [b"popped"]


def state_is_there(made: DurableState, *, is_in_it: bool) -> None:
    """A fragment with every option, and a pool with a lease."""
    state = made.owner._state
    found = state.fragments.find("p", "state")
    assert (found is not None) == is_in_it
    if found is not None:
        row = found.row
        assert (row.keep, row.expires_at_ms, row.expires_after_ms) == (True, 2**52, 60_000)
        assert row.writer == kept_database.WRITER
        assert body_of(made, row.digest, row.size) == b"kept"
    assert [replace(pool, revision=0) for pool in state.pools] == [kept_database.POOL] * is_in_it


def body_of(made: DurableState, digest: bytes, size: int) -> bytes:
    with closing(BodyFile(made.store.database)) as file:
        packed, data = file.read(digest, made.store.body_number(digest))
    return unpack(data, size) if packed else data
