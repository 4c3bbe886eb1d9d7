"""Rows survive as they are: whatever the domain has accepted comes back equal, and no column is missing."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from stepwell.domain.applies.model import ApplyTicket
from stepwell.domain.changesets.model import Changeset, ChangesetState, Content, ContextRow, EntryRow, Operation
from stepwell.domain.logs.model import LogEntryRow, LogRow
from stepwell.domain.plans.commands import CreateAction, UseAction
from stepwell.domain.plans.conflicts import ConflictState, Merge, MergeConflict, Resolution
from stepwell.domain.plans.model import (
    Action,
    ActionState,
    Applied,
    Argument,
    ArgumentType,
    Child,
    Constrained,
    Decision,
    Invariant,
    Lease,
    MergeStrategy,
    Phase,
    PhaseTimes,
    Plan,
    PlanFault,
    PlanState,
    ProjectLink,
    RolledBack,
    SubplanMode,
    Subplans,
)
from stepwell.domain.plans.validations import Validation, ValidationResult
from stepwell.domain.pools.model import TokenLease, TokenPool
from stepwell.domain.receipts.model import ReceiptRow
from stepwell.domain.replies import KeptRow
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.model import FragmentRow, TierBudget
from stepwell.errors import InvalidArgument, StoreDamaged
from stepwell.storage import rows
from stepwell.storage.files.directory import DATABASE
from stepwell.storage.store import CommitBatch, SessionRow
from stepwell.storage.table import Value
from tests.support.spelled import spelled
from tests.support.storage.state import NOON_MS, DurableState, durable_state, kept

TEXT = "ein Satz mit 漢字, 'Anführung', \"quotes\" \\ und 🐟\n"
ARGUMENTS = (
    Argument(name="plain"),
    Argument(name="text", required=False, default=TEXT, pattern="^.*$", position=0),
    Argument(name="count", type=ArgumentType.INTEGER, default=3, minimum=-2.5, maximum=1e300, position=64),
    Argument(name="flag", type=ArgumentType.BOOLEAN, default=False),
)
VALIDATIONS = (Validation("tests", ("pytest", "-q", TEXT)), Validation("lint", ("ruff",), 0.5, required=False))
RESULTS = (
    ValidationResult("tests", ("pytest", "-q", TEXT), 0, timed_out=False, duration_ms=17, output=TEXT),
    ValidationResult("lint", ("ruff",), None, timed_out=True, duration_ms=500),
)
ACTION = Action(
    "local/act", TEXT, "", "planner", "coder", None, None, None, None, (), (), None, reusable=True, read_only=False,
    state=ActionState.AVAILABLE, uses=0, created_at_ms=NOON_MS, revision=1,
)  # fmt: skip
FULL_ACTION = Action(
    "srv:space/act", "", TEXT, "a", "b", "c", "d", "e", "f", ARGUMENTS, (TEXT, ""), "profile", reusable=False,
    read_only=True, state=ActionState.ARCHIVED, uses=2**53, created_at_ms=0, revision=2**62, validations=VALIDATIONS,
)  # fmt: skip
DIGEST = digest_of(b"x")
SIDE = Content(DIGEST, 1, held=True, mode=0o100755)
PLAN = Plan(
    "plan", None, "plan", 0, "local/act", "", "", {}, (), (), read_only=False, created_at_ms=NOON_MS,
    phase=Phase.STRATEGIZE, state=PlanState.QUEUED, times={},
)  # fmt: skip
FULL_PLAN = Plan(
    "full", "plan", "plan", 3, "local/act", TEXT, TEXT,
    {"s": TEXT, "i": -(2**63), "u": 2**64 - 1, "f": 0.1, "w": 1.0, "e": 1e16, "t": True, "n": "1"},
    (ProjectLink("p"), ProjectLink("q/r", "alias", read_only=True)), (Invariant(TEXT, "source"),), read_only=True,
    created_at_ms=1, phase=Phase.EXECUTE, state=PlanState.PROCESSING,
    times={"strategize": PhaseTimes(1, 2, 3), "execute": PhaseTimes(4), "apply": PhaseTimes()},
    version=7, attempt=3, executed_attempt=2, lease=Lease(9, "session", NOON_MS), fence=9,
    errors=(PlanFault(5, Phase.STRATEGIZE, 1, TEXT), PlanFault(6, Phase.EXECUTE, 2, "", "session")),
    changeset_ids=("a", "b"), decision_ids=("d",), reversion_count=1, last_checkpoint_id="d",
    subplans=Subplans(
        SubplanMode.DEPENDENCY_ORDERED, 2, fail_fast=True, merge=MergeStrategy.LAST_WINS,
        children=(Child("kid", "one"), Child("kid-2", "two", ("one",))), retries=3, agents=("session", "other"),
    ),
    validations=VALIDATIONS, retries_left=2, merged=Merge(3, 1, ("kid", "kid-2"), None),
    conflicts=(
        MergeConflict(TEXT, "kid", "one", SIDE, None, SIDE),
        MergeConflict(
            "a", "kid-2", "two", None, SIDE, SIDE, ConflictState.RESOLVED, Resolution.BODY,
            Content(DIGEST, 0, held=True), 7,
        ),
    ),
    applied=Applied(1, 2, "session", 3, "/a/root", RESULTS), constrained=Constrained(1, 2, "session", TEXT, RESULTS),
    rolled_back=RolledBack(1, "session", TEXT, 3),
)  # fmt: skip
ENTRY = EntryRow("plan", "a", 1, Operation.CREATE, "a.py", None, None, Content(DIGEST, 1, held=True), "tool", 1)
TOKEN_LEASE = TokenLease("lease", "alice", "planner", 10**12, 7, NOON_MS)
ADDED = {"checksum"}
"""A column of every table that is no field of its rows."""
ROWS: list[KeptRow] = [
    TierBudget(),
    TierBudget(hot_tokens=1, arena_bytes=2**53, promotion_threshold=9),
    ACTION,
    FULL_ACTION,
    PLAN,
    FULL_PLAN,
    Decision("plan", "d", None, "", "", "", Phase.APPLY, 1, 2),
    Decision("plan", "e", "d", TEXT, TEXT, TEXT, Phase.EXECUTE, 2, 3, checkpoint=True, superseded_at_ms=4),
    ContextRow("empty", "plan", ()),
    ContextRow("context", "plan", ("b", "a")),
    Changeset("a", "plan", "context", 1, ChangesetState.OPEN, 0, 1),
    Changeset("b", "plan", "context", 2, ChangesetState.ABORTED, 3, 1, 2),
    ENTRY,
    EntryRow("plan", "a", 4, Operation.MODIFY, "run.sh", None, replace(SIDE, mode=0o100644), SIDE, "t", 2, 2**40),
    EntryRow("plan", "a", 2, Operation.DELETE, TEXT.strip(), None, Content(DIGEST, None, held=False), None, "t", 2),
    EntryRow(
        "plan", "b", 3, Operation.MOVE, "c.py", "b.py", Content(DIGEST, 0, held=True), Content(DIGEST, 5, held=False),
        "t", 3,
    ),
    TokenPool("team", 1, None, 1, 0, 1, (), 1, 1),
    TokenPool("team/2", 10**12, 2_678_400_000, 100, 2**60, NOON_MS, (TOKEN_LEASE, TOKEN_LEASE), NOON_MS, 2**40),
    ApplyTicket("ticket", "/tree", "plan", "alice", 0, 1, 2, 1),
    ApplyTicket("ticket-2", "/tree 🐟\n", "plan", "bob", -100, NOON_MS, 2**40, 64, NOON_MS + 1),
    ReceiptRow("receipt", ("p",), "", 0, DIGEST, 1, 2, 3),
    ReceiptRow("receipt-2", ("p", "q/r"), TEXT, 2**40, DIGEST, NOON_MS, 2**40, 2**40),
    LogRow("p", "log", 1, 2, 3, 4, 5, 6),
    LogRow("q/r", TEXT.strip(), 2**40, 2**41, 2**42, 2**42, 2**43, NOON_MS, 2**53, 2**53),
    LogEntryRow(1, 3, DIGEST, 0, 6, 2),
    LogEntryRow(2**40, 2**42, DIGEST, 2**40, NOON_MS, 2**41, "note", {"text": TEXT, "": ""}),
]  # fmt: skip
IDS = [f"{number} {type(row).__name__}" for number, row in enumerate(ROWS)]
LATER = ("writer", "keep", "expires_at_ms", "expires_after_ms")
"""Columns of fragments that a later version has added behind the others."""
TABLES: list[tuple[str, tuple[str, ...]]] = [
    *((each.name, each.columns) for each in (rows.ACTIONS, rows.PLANS, rows.DECISIONS, rows.CONTEXTS, rows.CHANGESETS)),
    (rows.RECEIPTS.name, rows.RECEIPTS.columns),
    (rows.LOGS.name, LogRow.__struct_fields__),
    (rows.LOG_ENTRIES.name, LogEntryRow.__struct_fields__),
    ("sessions", SessionRow.__struct_fields__),
    ("leases", ("plan_id", *Lease.__struct_fields__)),
    (
        "fragments",
        (
            *(name for name in FragmentRow.__struct_fields__ if name not in LATER),
            *("tick", "touched_at_ms", "last_accessed_ms", "access_count", "accesses_since_move"),
            *LATER,
        ),
    ),
    (
        "entries",
        (
            *(
                column
                for field in EntryRow.__struct_fields__
                for column in (
                    [f"{field}_{part}" for part in ("digest", "size", "held")]
                    if field in {"before", "after"}
                    else [field]
                )
                if column != "ordinal"
            ),
            *("before_mode", "after_mode", "ordinal"),
        ),
    ),
]


def turn_of(*written: KeptRow) -> CommitBatch:
    """A turn that writes rows of different tables."""
    turn = CommitBatch()
    turn.rows = {type(row): {row.key: row} for row in written}
    return turn


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_row_comes_back(tmp_path: Path, row: KeptRow) -> None:
    """Equal in every field, whether it is set or not."""
    with durable_state(tmp_path) as made:
        made.store.commit(turn_of(row))
    assert [each for each in kept(tmp_path).rows if type(each) is type(row)] == [row]


@pytest.mark.parametrize("row", ROWS[2:], ids=IDS[2:])
def test_row_that_is_deleted_is_gone(tmp_path: Path, row: KeptRow) -> None:
    """With all that belongs to it, and nobody else."""
    with durable_state(tmp_path) as made:
        made.store.commit(turn_of(ACTION, FULL_PLAN))
        made.store.commit(turn_of(row))
        gone = CommitBatch()
        gone.rows = {type(row): {row.key: None}}
        made.store.commit(gone)
    found = kept(tmp_path).rows
    assert [each for each in found if isinstance(each, Action | Plan)] == [
        each for each in (ACTION, FULL_PLAN) if each.key != row.key
    ]
    assert not [each for each in found if type(each) is type(row) and each.key == row.key]


@pytest.mark.parametrize("table, columns", TABLES, ids=[table for table, _ in TABLES])
def test_columns_are_the_fields(tmp_path: Path, table: str, columns: tuple[str, ...]) -> None:
    """In the same order: a field that is new to a Struct needs a migration."""
    with durable_state(tmp_path), closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        found = tuple(name for _, name, *_ in db.execute(f"PRAGMA table_info({table})"))
    assert tuple(name for name in found if name not in ADDED) == columns
    assert set(found) >= {"checksum"}


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_number_that_json_does_not_know_is_refused_or_comes_back(tmp_path: Path, value: float) -> None:
    """What is accepted must not make the directory unreadable."""
    with durable_state(tmp_path) as made:
        made.do(CreateAction("act", "", "", "p", "c", arguments=(Argument(name="x", type=ArgumentType.NUMBER),)))
        _try(made, UseAction("plan", "act", (ProjectLink("p"),), {"x": value}))
        before = made.owner._state.plans.get("plan")
    after = [each for each in kept(tmp_path).rows if isinstance(each, Plan)]
    assert spelled(after) == spelled([before] if before else [])


@pytest.mark.parametrize("bounds", [{"maximum": math.inf}, {"minimum": -math.inf}, {"default": math.inf}])
def test_bound_that_json_does_not_know_is_refused_or_comes_back(tmp_path: Path, bounds: dict[str, float]) -> None:
    """So it is with what an action says of its arguments."""
    with durable_state(tmp_path) as made:
        try:
            argument = Argument(
                name="x",
                type=ArgumentType.NUMBER,
                default=bounds.get("default"),
                minimum=bounds.get("minimum"),
                maximum=bounds.get("maximum"),
            )
        except InvalidArgument:
            return
        _try(made, CreateAction("act", "", "", "p", "c", arguments=(argument,)))
        before = made.owner._state.actions.get("local/act")
    after = [each for each in kept(tmp_path).rows if isinstance(each, Action)]
    assert after == ([before] if before else [])


def _try(made: DurableState, command: CreateAction | UseAction) -> None:
    with suppress(InvalidArgument):
        made.do(command)
    made.commit()


@pytest.mark.parametrize(
    "values",
    [
        pytest.param((b"name",), id="bytes for text"),
        pytest.param(("local/act", None), id="nothing for text"),
        pytest.param((*rows.ACTIONS.values(ACTION)[:9], "{", *rows.ACTIONS.values(ACTION)[10:]), id="no JSON"),
        pytest.param((*rows.ACTIONS.values(ACTION)[:14], "x", *rows.ACTIONS.values(ACTION)[15:]), id="no such state"),
        pytest.param((*rows.ACTIONS.values(ACTION)[:12], 2, *rows.ACTIONS.values(ACTION)[13:]), id="no truth value"),
    ],
)
def test_row_that_nobody_wrote_is_damage(values: tuple[Value, ...]) -> None:
    """Said with the table and the key."""
    whole = (*values, *rows.ACTIONS.values(ACTION)[len(values) :])
    with pytest.raises(StoreDamaged, match="table actions, name "):
        rows.ACTIONS.row(whole)


def test_every_row_of_the_domain_is_tried() -> None:
    """A new kind of row has its round trip here."""
    members: tuple[type[Struct], ...] = KeptRow.__args__
    assert {type(each) for each in ROWS} == {*members} - {FragmentRow}
