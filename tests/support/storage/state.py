"""A manager's state on a real data directory, without the manager: committed, dropped and opened again by hand."""

from __future__ import annotations

import shutil
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from stepwell.domain.applies.commands import JoinApplyQueue
from stepwell.domain.changesets.commands import RecordChange, StartChangeset
from stepwell.domain.commands import Command
from stepwell.domain.logs.commands import AppendToLog, NewEntry
from stepwell.domain.plans.commands import (
    AdvancePlan,
    CompletePhase,
    CreateAction,
    RecordDecision,
    StartPhase,
    UseAction,
)
from stepwell.domain.plans.model import Phase, ProjectLink
from stepwell.domain.pools.commands import CreatePool, LeaseTokens
from stepwell.domain.receipts.commands import StoreReceipt
from stepwell.domain.replies import Reply
from stepwell.domain.tiers.commands import StoreFragment
from stepwell.domain.tiers.model import Tier, TierBudget
from stepwell.domain.verdict import Origin
from stepwell.errors import Busy, StoreDamaged
from stepwell.manager.state_owner import StateOwner
from stepwell.memory.writer.upload import Upload
from stepwell.protocol.codec import encode_results
from stepwell.protocol.messages import CommandResult
from stepwell.storage import redo_log
from stepwell.storage.files.directory import DATABASE, DataDirectory
from stepwell.storage.files.mark import MARK
from stepwell.storage.files.store_files import StoreFiles
from stepwell.storage.load import load, read_store_row
from stepwell.storage.rows import TABLES, StoreRow
from stepwell.storage.sql import Database
from stepwell.storage.sqlite import SqliteStore
from stepwell.storage.store import Durability, ReplyPart, SessionRow, StoredState
from stepwell.storage.table import add_checksum_function
from stepwell.transport.address import private_directory
from tests.support.managers import Stage
from tests.support.memory.bodies import fill as send
from tests.support.memory.bodies import noise

NOON_MS = 1_700_000_000_000


def open_store(
    directory: Path, encoding: str | None = "estimate", durability: Durability = Durability.PROCESS
) -> SqliteStore:
    """The database of a directory, as a manager opens it."""
    lock = DataDirectory(directory, "test")
    try:
        return SqliteStore(StoreFiles(lock), durability, encoding)
    except BaseException:
        lock.close()
        raise


class DurableState:
    """A store and the owner of its state, as a manager has them, without a loop."""

    def __init__(
        self, directory: Path, budget: TierBudget | None = None, durability: Durability = Durability.PROCESS
    ) -> None:
        self.path = directory
        self.store = open_store(directory, durability=durability)
        try:
            self.owner = StateOwner(budget, self.store)
        except BaseException:
            self.store.close()
            raise
        self.journal = self.owner.journal

    def do(self, command: Command[Reply], now_ms: int = NOON_MS, session: str = "alice") -> CommandResult:
        return self.owner.execute(command, Origin(session, now_ms))

    def store_one(self, name: str, body: bytes, tier: Tier = Tier.HOT, now_ms: int = NOON_MS) -> CommandResult:
        return self.do(StoreFragment("p", name, body, 1, tier), now_ms)

    def offer(self, body: bytes, share: int | None = None) -> Upload:
        """Upload a body, or the beginning of it."""
        upload = self.owner.reserve(len(body), 0, Origin("alice", NOON_MS))
        if upload is None:
            raise Busy("room is being made")
        while not upload.prepare():
            pass
        send(upload, body[:share])
        return upload

    def upload(self, name: str, body: bytes, tier: Tier = Tier.HOT) -> None:
        """Store a body that comes in parts."""
        held = self.owner.bodies.stage(self.offer(body))
        self.owner.execute(StoreFragment("p", name, 1, 1, tier), Origin("alice", NOON_MS, uploads={1: held}))
        self.owner.bodies.unstage(held[0])

    def commit(self) -> None:
        self.journal.commit()

    def work(self) -> None:
        """Do all background work, with a commit after each step, and let the tables follow the log."""
        while self.owner.bodies.background.work(0):
            self.commit()
        self.commit()
        self.follow()

    def follow(self) -> None:
        """Let the tables have everything that was committed."""
        self.store.follow()
        while self.store.work():
            pass

    def close(self) -> None:
        """Close everything, as if the process had ended: what was not committed is lost."""
        self.owner.close()
        self.store.close()


@contextmanager
def durable_state(
    directory: Path, budget: TierBudget | None = None, durability: Durability = Durability.PROCESS
) -> Iterator[DurableState]:
    """Yield a durable state that is closed in the end."""
    made = DurableState(directory, budget, durability)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def staged_on(
    directory: Path, signals: dict[int, str] | None = None, budget: TierBudget | None = None
) -> Iterator[Stage]:
    """A loop that is turned by hand, on a data directory."""
    private = private_directory()
    try:
        stage = Stage(str(private / "manager.sock"), signals, budget, open_store(directory))
        try:
            yield stage
        finally:
            stage.close()
    finally:
        shutil.rmtree(private)


@contextmanager
def served_on(directory: Path, budget: TierBudget | None = None) -> Iterator[str]:
    """The address of a manager in a thread of its own, on a data directory. It ends in good order."""
    reader, writer = socket.socketpair()
    ready = threading.Event()
    addresses: list[str] = []

    def run() -> None:
        with staged_on(directory, {reader.fileno(): "test"}, budget) as stage:
            addresses.append(stage.address)
            ready.set()
            stage.loop.run()

    thread = threading.Thread(target=run, name="manager")
    thread.start()
    ready.wait(60)
    try:
        yield addresses[0]
    finally:
        writer.close()
        thread.join(60)
        reader.close()


def kept(directory: Path) -> StoredState:
    """Return the stored state of a directory."""
    found = load(directory / DATABASE)
    assert found is not None
    return found


def latest_store_row(db: Database) -> StoreRow:
    """The row of the store after the last commit."""
    return redo_log.latest_store_row(db) or read_store_row(db)


def mixed(size: int, salt: int = 0) -> bytes:
    """A body that zstd makes a little smaller, so that it has several parts in any form."""
    return noise(size // 2, salt) + bytes(size - size // 2)


def copy_database(source: Path, target: Path) -> None:
    """The database, its log and its mark, without whatever else its manager had."""
    target.mkdir(mode=0o700)
    for name in (DATABASE, f"{DATABASE}-wal", MARK):
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)


def tamper(directory: Path, *statements: str) -> None:
    """Change a database without its manager, and write the checksums that belong to the new rows.

    The redo log is applied first, so that the tables have everything. A damaged table is left to the statements.
    So the tests of everything behind the checksums go on to be such tests. `damage` has changes with wrong checksums.
    """
    with closing(sqlite3.connect(directory / DATABASE, isolation_level=None)) as db:
        apply_log(db)
        for statement in statements:
            db.execute(statement)
        write_checksums(db)


def apply_log(db: sqlite3.Connection) -> None:
    """Move the redo log of a database into its tables, as far as it can be read."""
    with suppress(sqlite3.Error, StoreDamaged):
        db.execute("BEGIN IMMEDIATE")
        redo_log.apply_all(db)
    if db.in_transaction:
        db.execute("COMMIT")


def write_checksums(db: sqlite3.Connection) -> None:
    """Give each row the checksum of its values, as far as there are tables with checksums."""
    add_checksum_function(db)
    for table in TABLES:
        with suppress(sqlite3.OperationalError):
            db.execute(table.seal)


def files(directory: Path) -> dict[str, bytes]:
    """The bytes of all that is kept: not the lock, not what SQLite shares between processes, no empty log."""
    passing = {"lock", f"{DATABASE}-shm"}
    found = {each.name: each.read_bytes() for each in directory.iterdir() if each.name not in passing}
    return {name: data for name, data in found.items() if data or name == DATABASE}


def execute_plan(made: DurableState, plan_id: str) -> int:
    """Bring a new plan into execution; its lease."""
    if made.owner._state.actions.get("local/act") is None:
        made.do(CreateAction("act", "do", "done", "planner", "coder"))
    made.do(UseAction(plan_id, "act", (ProjectLink("p"),)))
    made.do(StartPhase(plan_id, Phase.STRATEGIZE))
    made.do(CompletePhase(plan_id, Phase.STRATEGIZE, lease_of(made, plan_id)))
    made.do(AdvancePlan(plan_id, Phase.EXECUTE))
    made.do(StartPhase(plan_id, Phase.EXECUTE))
    return lease_of(made, plan_id)


def queue_plan(made: DurableState, plan_id: str) -> None:
    """A new plan that waits for its turn at a tree."""
    lease = execute_plan(made, plan_id)
    made.do(CompletePhase(plan_id, Phase.EXECUTE, lease))
    made.do(AdvancePlan(plan_id, Phase.APPLY))
    made.do(JoinApplyQueue(f"{plan_id}-ticket", plan_id, "/tree 🐟", 7))


def lease_of(made: DurableState, plan_id: str) -> int:
    plan = made.owner._state.plans.get(plan_id)
    assert plan is not None
    assert plan.lease is not None
    return plan.lease.token


def fill(made: DurableState) -> None:
    """Something in every table, committed; the redo log has the last of it."""
    for number, tier in enumerate([*Tier] * 4):
        made.store_one(f"fragment {number}", f"the body of {number}, {'é' * 30 * number}".encode(), tier)
    lease = execute_plan(made, "plan")
    made.do(RecordDecision("plan", "decision", lease, "which?", "this"))
    made.do(StartChangeset("plan", "context", "changeset", lease))
    made.do(RecordChange("plan", "context", lease, "a.py", b"before", b"after"))
    queue_plan(made, "queued")
    made.do(StoreReceipt("receipt", ("p",), "a title", b"the bytes of a receipt"))
    made.do(AppendToLog("p", "log", (NewEntry(b"an entry"), NewEntry(b"another", "note", {"by": "alice"}))))
    made.do(CreatePool("team", 1_000))
    made.do(LeaseTokens("team", "lease", 600))
    made.journal.record_session(SessionRow("session", ("p",), 1, "boot/1"))
    made.journal.record_reply("session", 1, b"frame")
    made.journal.record_reply_part(ReplyPart("session", 2, 0, encode_results([])))
    made.commit()
    made.follow()
    made.journal.record_reply_part(ReplyPart("session", 2, 1, encode_results([])))
    made.commit()
