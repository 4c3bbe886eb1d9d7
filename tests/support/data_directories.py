"""Data directories that real managers made, for tests that inspect, copy or damage them."""

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import stepwell as sw
from stepwell import limits
from stepwell.domain.tiers.commands import DeleteFragment
from stepwell.manager.process import Settings
from stepwell.protocol.messages import Request
from stepwell.storage.files.directory import DATABASE
from stepwell.telemetry import LogLevel
from stepwell.transport.address import private_directory
from tests.support import killable_manager
from tests.support.peers import RawPeer, store
from tests.support.storage.state import write_checksums
from tests.support.wait import eventually

PROJECT = "p"
LARGE = os.urandom((2 << 20) + 1)  # in three parts
PACKED = b"the same again, " * (1 << 17)


@contextmanager
def durable_settings(data_dir: Path) -> Iterator[Settings]:
    """The settings of a manager with that directory, and with a socket in a private one."""
    directory = private_directory()
    address = directory / "manager.sock"
    try:
        yield Settings(
            address=str(address), budget=None, encoding="estimate", data_dir=str(data_dir), log_level=LogLevel.ERROR
        )
    finally:
        address.unlink(missing_ok=True)
        directory.rmdir()


@contextmanager
def serving(data_dir: Path) -> Iterator[str]:
    """The address of a manager with that directory. It is killed in the end."""
    with durable_settings(data_dir) as settings, killable_manager.running(settings):
        yield settings.address


def killed_manager_directory(data_dir: Path) -> str:
    """A directory with something in every table, whose manager was killed: the plan that was being worked on."""
    with serving(data_dir) as address:
        client = sw.connect(address)
        plan_id = _fill(client)
        _leave_batch(address, client, data_dir)
        eventually(lambda: client.status().memory.waiting == 0)
    client.close()
    return plan_id


def _leave_batch(address: str, client: sw.Client, data_dir: Path) -> None:
    """Have a client go away in the middle of its batch: what was done of it is in the store, for its return."""
    commands = (store("temporary", b"body", PROJECT), DeleteFragment(PROJECT, "temporary"))
    with RawPeer(address) as peer:
        peer.hello("leaver")
        peer.send(Request(1, commands * (limits.BATCH_COMMANDS_MAX // 2)))
    with closing(sqlite3.connect(f"file:{data_dir / DATABASE}?mode=ro", uri=True)) as db:
        eventually(lambda: db.execute("SELECT 1 FROM reply_parts").fetchone())
    with suppress(sw.NotFound):
        client.tiers.delete("temporary", project=PROJECT)


def _fill(client: sw.Client) -> str:
    tiers, plans = client.tiers, client.plans
    for number, tier in enumerate([*sw.Tier] * 4):
        body = f"the body of f{number}, " * 20
        tiers.store(sw.Fragment(fragment_id=f"f{number}", project=PROJECT, body=body, tokens=7), tier=tier)
    tiers.store(sw.Fragment(fragment_id="large", project=PROJECT, body=LARGE))
    tiers.store(sw.Fragment(fragment_id="packed", project=PROJECT, body=PACKED), tier=sw.Tier.COLD)
    plans.create_action(
        "fix", description="d", definition_of_done="d", strategy_actor="local/s", execution_actor="local/e"
    )
    plan_id = plans.use_action("fix", projects=[PROJECT]).plan_id
    plans.start_strategize(plan_id)
    plans.record_decision(plan_id, question="which?", choice="this", rationale="because")
    plans.complete_strategize(plan_id)
    plans.execute_plan(plan_id)
    plans.start_execute(plan_id)
    context = client.execution(plan_id)
    context.start_changeset()
    context.record_change(sw.Change(path="a.py", before=None, after=b"print()\n"))
    client.log("log", project=PROJECT).append("what was said", sw.LogEntry("and what to it", metadata={"by": "b"}))
    client.pools.create("team", tokens=1_000, per="minute")
    client.pools.lease("team", 600)
    queued = plans.begin("fix", projects=[PROJECT]).plan_id
    plans.complete_execute(queued)
    plans.apply_plan(queued)
    plans.join_apply_queue(queued, "/tree")
    client.receipts.store("receipt", [PROJECT], "where is it?", b"how an answer came about")
    return plan_id


def alter(data_dir: Path, *statements: str) -> None:
    """Write to a database without a manager, with checksums, and checkpoint it, so that all of it is in one file."""
    with closing(sqlite3.connect(data_dir / DATABASE, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)
        write_checksums(db)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def everything_in(directory: Path) -> dict[str, tuple[int, int, str]]:
    """Return everything that would show an access to a directory. The directory must not be open in this process."""
    found = {}
    for path in sorted(directory.iterdir()):
        stat = path.stat()
        found[path.name] = (stat.st_ino, stat.st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
    return found
