"""A manager's state on a real data directory, without the manager: committed, dropped and opened again by hand."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from stepwell.domain.commands import Command
from stepwell.domain.commands.changesets import RecordChange, StartChangeset
from stepwell.domain.commands.plans import (
    AdvancePlan,
    CompletePhase,
    CreateAction,
    RecordDecision,
    StartPhase,
    UseAction,
)
from stepwell.domain.commands.tiers import StoreFragment
from stepwell.domain.deciding import Origin
from stepwell.domain.fragment import TierBudget
from stepwell.domain.plan import Phase, ProjectLink
from stepwell.domain.replies import Reply
from stepwell.domain.tier import Tier
from stepwell.manager.owner import StateOwner
from stepwell.protocol.messages import Answer
from stepwell.storage.directory import DATABASE, DataDirectory
from stepwell.storage.loading import load
from stepwell.storage.port import Durability, Kept, SessionRow
from stepwell.storage.sqlite import SqliteStore

NOON_MS = 1_700_000_000_000


class Reign:
    """A store and the owner of what is in it, as a manager has them."""

    def __init__(self, directory: Path, budget: TierBudget | None = None) -> None:
        self.path = directory
        lock = DataDirectory(directory, "test")
        try:
            self.store = SqliteStore(lock, Durability.PROCESS, "estimate")
        except BaseException:
            lock.close()
            raise
        try:
            self.owner = StateOwner(budget, self.store)
        except BaseException:
            self.store.close()
            raise
        self.journal = self.owner.journal

    def do(self, command: Command[Reply], now_ms: int = NOON_MS, session: str = "alice") -> Answer:
        return self.owner.execute(command, Origin(session, now_ms))

    def store_one(self, name: str, body: bytes, tier: Tier = Tier.HOT, now_ms: int = NOON_MS) -> Answer:
        return self.do(StoreFragment("p", name, body, 1, tier), now_ms)

    def commit(self) -> None:
        self.journal.commit()

    def work(self) -> None:
        """All that the bytes still have to follow, a commit after each step of it."""
        while self.owner.bodies.labour.work(0):
            self.commit()
        self.commit()

    def close(self) -> None:
        """As it is when the process is gone: what was not committed is lost."""
        self.owner.close()
        self.store.close()


@contextmanager
def reign(directory: Path, budget: TierBudget | None = None) -> Iterator[Reign]:
    """One that is over in the end."""
    made = Reign(directory, budget)
    try:
        yield made
    finally:
        made.close()


def kept(directory: Path) -> Kept:
    """What a directory holds."""
    found = load(directory / DATABASE)
    assert found is not None
    return found


def tamper(directory: Path, *statements: str) -> None:
    """Change a database behind everybody's back."""
    with closing(sqlite3.connect(directory / DATABASE, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


def files(directory: Path) -> dict[str, bytes]:
    """The bytes of all that is kept: not the lock, not what SQLite shares between processes, no empty log."""
    passing = {"lock", f"{DATABASE}-shm"}
    found = {each.name: each.read_bytes() for each in directory.iterdir() if each.name not in passing}
    return {name: data for name, data in found.items() if data or name == DATABASE}


def execute_plan(made: Reign, plan_id: str) -> int:
    """Bring a new plan into execution; its lease."""
    if made.owner._state.actions.get("local/act") is None:
        made.do(CreateAction("act", "do", "done", "planner", "coder"))
    made.do(UseAction(plan_id, "act", (ProjectLink("p"),)))
    made.do(StartPhase(plan_id, Phase.STRATEGIZE))
    made.do(CompletePhase(plan_id, Phase.STRATEGIZE, lease_of(made, plan_id)))
    made.do(AdvancePlan(plan_id, Phase.EXECUTE))
    made.do(StartPhase(plan_id, Phase.EXECUTE))
    return lease_of(made, plan_id)


def lease_of(made: Reign, plan_id: str) -> int:
    plan = made.owner._state.plans.get(plan_id)
    assert plan is not None
    assert plan.lease is not None
    return plan.lease.token


def fill(made: Reign) -> None:
    """Something in every table, committed."""
    for number, tier in enumerate([*Tier] * 4):
        made.store_one(f"fragment {number}", f"the body of {number}, {'é' * 30 * number}".encode(), tier)
    lease = execute_plan(made, "plan")
    made.do(RecordDecision("plan", "decision", lease, "which?", "this"))
    made.do(StartChangeset("plan", "context", "changeset", lease))
    made.do(RecordChange("plan", "context", lease, "a.py", b"before", b"after"))
    made.journal.welcome(SessionRow("session", ("p",), 1, "boot/1"))
    made.journal.remember("session", 1, b"frame")
    made.commit()
