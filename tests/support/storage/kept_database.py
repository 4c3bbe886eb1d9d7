"""A database with a bit of everything, to be kept for as long as stepwell is: later versions have to read it.

With a new version of the tables, `python -m tests.support.storage.kept_database` writes the file of that version, which
is never written again. What is in it must not change: what `test_versions` finds there is said in this module.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final
from unittest import mock

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.changesets.commands import RecordChange, StartChangeset
from stepwell.domain.logs.commands import AppendToLog, NewEntry, PopFromLog, RetainInLog
from stepwell.domain.plans.commands import RecordDecision
from stepwell.domain.pools.commands import CreatePool, LeaseTokens, UseTokens
from stepwell.domain.pools.model import TokenLease, TokenPool
from stepwell.domain.receipts.commands import StoreReceipt
from stepwell.domain.tiers.commands import GetFragment, StoreFragment, StoreOptions
from stepwell.domain.tiers.model import Tier, TierBudget, Work, Writer
from stepwell.domain.verdict import Origin
from stepwell.protocol.codec import encode_results
from stepwell.storage.files.directory import DATABASE
from stepwell.storage.schema import VERSION
from stepwell.storage.store import Durability, ReplyPart, SessionRow
from tests.support.memory.bodies import compressible, noise
from tests.support.storage.state import NOON_MS, DurableState, durable_state, execute_plan, queue_plan

VERSIONS: Final = Path(__file__).parent / "versions"
SUFFIX: Final = ".sqlite"

BUDGET: Final = TierBudget(hot_tokens=12_345, warm_entries=77, arena_bytes=1 << 20)
METADATA: Final = {"språk": "svenska 🐟", "empty": ""}
FRAGMENTS: Final = {  # in the order of their use within each tier
    "hot": (Tier.HOT, b"a hot body"),
    "used": (Tier.HOT, "läst två gånger".encode()),
    "warm": (Tier.WARM, compressible(3_000)),
    "noise": (Tier.WARM, noise(500)),
    "empty": (Tier.COLD, b""),
    "cold": (Tier.COLD, compressible(4_000, 1)),
    "in parts": (Tier.COLD, noise(2_500, 1)),
}
CHANGE: Final = (b"before\n", b"after\n")
MODES: Final = (0o100644, 0o100755)
MODES_SINCE: Final = 5  # entries of earlier versions do not know them, nor in which order they were recorded
RECEIPTS: Final = {"first": b"the bytes of a receipt", "second": b""}  # in the order of their storing
RECEIPTS_SINCE: Final = 4  # files of earlier versions have none
LOG: Final = {1: (b"the bytes of a receipt", "text", {}), 2: (b"an entry", "note", METADATA)}
LOG_AFTER: Final = (4, 4, 60_000)  # next position, and the retention in number and time
STATE: Final = StoreOptions(keep=True, expires_at_ms=2**52, expires_after_ms=60_000)
WRITER: Final = Writer("alice", 7, "planner", Work("plan", "changeset"))
POOL: Final = TokenPool(
    "team", 1_000, 60_000, 80, 25 * 60_000, NOON_MS, (TokenLease("lease", "alice", "", 100, 25, NOON_MS),), NOON_MS, 0
)  # the revision is that of the use
EIGHTH: Final = 8  # files of earlier versions have no logs, pools and fragments with options
SESSION: Final = SessionRow("session", ("p", "q/r"), 1, "boot/1", 4)
REPLIES: Final = [("session", 4, b"frame 4"), ("session", 9, b"frame 9")]
REPLY_PARTS: Final = [ReplyPart("session", 10, 0, encode_results([])), ReplyPart("session", 10, 1, encode_results([]))]
REPLY_PARTS_SINCE: Final = 6  # files of earlier versions have none
LEASE_TOKEN: Final = 13
EVENTS: Final = 17
EIGHTH_EVENTS: Final = 8  # four of a log, three of a pool, and one of a fragment
QUEUED: Final = "queued"  # a plan that waits for its turn at a tree
QUEUED_EVENTS: Final = 9  # of that plan


def keep_some(made: DurableState) -> None:
    """A bit of everything, committed: something in each table, and something that only the redo log has."""
    for name, (tier, body) in FRAGMENTS.items():
        if name != "in parts":
            made.do(StoreFragment("p", name, body, 7, tier, "file:a.py", "code", 3, METADATA))
    tier, body = FRAGMENTS["in parts"]
    held = made.owner.bodies.stage(made.offer(body))
    command = StoreFragment("p", "in parts", 1, 7, tier, "file:a.py", "code", 3, METADATA)
    made.owner.execute(command, Origin("alice", NOON_MS, uploads={1: held}))
    made.owner.bodies.unstage(held[0])
    lease = execute_plan(made, "plan")
    made.do(RecordDecision("plan", "decision", lease, "which?", "this", "because", checkpoint=True))
    made.do(StartChangeset("plan", "context", "changeset", lease))
    before_mode, after_mode = MODES
    made.do(
        RecordChange(
            "plan",
            "context",
            lease,
            "a.py",
            *CHANGE,
            tool="editor",
            before_mode=before_mode,
            after_mode=after_mode,
        )
    )
    queue_plan(made, QUEUED)
    (first, *later), (reply, *replies), (part, *parts) = RECEIPTS.items(), REPLIES, REPLY_PARTS
    store_receipt(made, *first)
    entries = tuple(NewEntry(*entry) for entry in LOG.values())
    made.do(AppendToLog("p", "log", entries))
    made.do(AppendToLog("p", "log", (NewEntry(b"popped"),)))
    made.do(PopFromLog("p", "log"))
    state = StoreFragment("p", "state", b"kept", 3, options=STATE, work=WRITER.work)
    made.owner.execute(state, Origin("alice", NOON_MS, writer=replace(WRITER, work=None)))
    made.do(CreatePool(POOL.name, POOL.tokens, POOL.period_ms))
    made.do(LeaseTokens(POOL.name, "lease", 100))
    made.journal.record_session(SESSION)
    made.journal.record_reply(*reply)
    made.journal.record_reply_part(part)
    made.commit()
    made.work()
    # This stays in the redo log.
    for receipt in later:
        store_receipt(made, *receipt)
    made.do(RetainInLog("p", "log", *LOG_AFTER[1:]))
    made.do(UseTokens(POOL.name, "lease", POOL.spent))
    for reply in replies:
        made.journal.record_reply(*reply)
    for part in parts:
        made.journal.record_reply_part(part)
    for _ in range(2):
        made.do(GetFragment("p", "used"), NOON_MS + 5)
    made.journal.write_uses()
    made.commit()


def store_receipt(made: DurableState, name: str, data: bytes) -> None:
    made.do(StoreReceipt(name, ("q/r", "p"), f"which {name}? 🐟", data), NOON_MS + 7)


def main() -> None:
    """Write the file of this version, unless there is one."""
    target = VERSIONS / f"{VERSION}{SUFFIX}"
    assert not target.exists(), f"{target} is not to be written again"
    with tempfile.TemporaryDirectory() as directory:
        # On disk, and so the same history on every machine.
        durable = durable_state(Path(directory), BUDGET, Durability.DISK)
        with mock.patch.object(limits, "BODY_PART_BYTES", 1_000), durable as made:
            made.store._row = replace(made.store._row, has_mark=0)  # the file is kept alone, as a backup is
            keep_some(made)
        shutil.copyfile(Path(directory) / DATABASE, target)


if __name__ == "__main__":
    main()
