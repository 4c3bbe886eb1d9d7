"""What the commands answer: a closed union of frozen values."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from stepwell.domain.changesets.model import Changeset, ContextRow, EntryRow
from stepwell.domain.plans.model import Action, ActionState, Decision, Phase, Plan, PlanState
from stepwell.domain.receipts.model import ReceiptRow
from stepwell.domain.tasks.model import StrategyOffer, Task, TaskState, Worker
from stepwell.domain.tiers.model import FragmentRow, Tier, TierBudget
from stepwell.domain.tiers.table import Usage


class Reply(Struct, frozen=True, array_like=True, gc=False, tag=True):
    """The root of the replies. `body_digests` names the bodies that travel beside a reply."""

    @property
    def body_digests(self) -> tuple[bytes, ...]:
        return ()


class Note(StrEnum):
    """Why a fragment is where it is."""

    PLACED = "placed"
    ALREADY_THERE = "already_there"
    LARGER_THAN_HOT = "larger_than_hot"  # it would have emptied hot, and still not fit
    LARGER_THAN_ARENA = "larger_than_arena"  # so with the arena, which hot and warm share


class FragmentPlaced(Reply, frozen=True):
    """Where a fragment is after `store`, `promote` or `demote`. `revision` is that of its body."""

    project: str
    fragment_id: str
    tier: Tier
    tokens: int
    revision: int
    digest: bytes
    note: Note = Note.PLACED


class FragmentFound(Reply, frozen=True):
    """A fragment as it is after this read."""

    row: FragmentRow
    last_accessed_ms: int
    access_count: int

    @property
    def body_digests(self) -> tuple[bytes, ...]:
        return (self.row.digest,)


class Move(Struct, frozen=True, array_like=True):
    """A fragment that went down. `target` is None when it was deleted."""

    project: str
    fragment_id: str
    source: Tier
    target: Tier | None


class FragmentsMoved(Reply, frozen=True):
    """What an eviction or a sweep moved, in that order; `more` says that another call would find more."""

    moves: tuple[Move, ...]
    more: bool = False


class FragmentRemoved(Reply, frozen=True):
    """It is gone."""

    project: str
    fragment_id: str
    tier: Tier


class FragmentPage(Reply, frozen=True):
    """Fragments in order of creation, without bodies. A page can be empty and still have a cursor."""

    rows: tuple[FragmentRow, ...]
    cursor: str | None


class ProjectPage(Reply, frozen=True):
    """Projects that exist by use, in order of name."""

    projects: tuple[str, ...]
    cursor: str | None


class TierMetrics(Reply, frozen=True):
    """What each tier holds, and what it may."""

    hot: Usage
    warm: Usage
    cold: Usage
    budget: TierBudget
    body_bytes: int  # equal bodies once
    arena_bytes: int  # what bodies need of the arena; of a scoped session, the raw bytes of its hot and warm


class BodiesLocated(Reply, frozen=True):
    """Those of the bodies that something still refers to."""

    found: tuple[bytes, ...]

    @property
    def body_digests(self) -> tuple[bytes, ...]:
        return self.found


class BudgetSet(Reply, frozen=True):
    """The budget that holds now."""

    budget: TierBudget


class ActionFound(Reply, frozen=True):
    """An action."""

    action: Action


class ActionSummary(Struct, frozen=True, array_like=True):
    """An action in a list."""

    name: str
    state: ActionState
    reusable: bool
    uses: int


class ActionPage(Reply, frozen=True):
    """Actions in order of name."""

    actions: tuple[ActionSummary, ...]
    cursor: str | None


class PlanFound(Reply, frozen=True):
    """A plan. After a `start_*` or `renew_lease`, its `lease` is the caller's."""

    plan: Plan


class PlanSummary(Struct, frozen=True, array_like=True):
    """A plan in a list."""

    plan_id: str
    action_name: str
    phase: Phase
    state: PlanState
    attempt: int
    version: int
    parent_plan_id: str | None
    rolled_back: bool = False


class ReadyStarted(Reply, frozen=True):
    """A child that is the caller's now, under its `lease`; or none, and whether it is worth waiting for one.

    `is_over`: nobody works on any, and none will be ready unless somebody steps in. `errored` are those that failed for
    good: `retry_plan`, `revert_plan` or `cancel_plan` leads out. Until then the event to wait for is a `PlanMoved` of
    this parent's children.
    """

    plan: Plan | None
    is_over: bool
    errored: tuple[str, ...] = ()


class PlanPage(Reply, frozen=True):
    """Plans in order of id, which is the order of time."""

    plans: tuple[PlanSummary, ...]
    cursor: str | None


class DecisionFound(Reply, frozen=True):
    """A decision."""

    decision: Decision


class DecisionPage(Reply, frozen=True):
    """A plan's decisions in order of recording, superseded ones included."""

    decisions: tuple[Decision, ...]
    cursor: str | None


class ChangesetFound(Reply, frozen=True):
    """A changeset."""

    changeset: Changeset


class ChangesetPage(Reply, frozen=True):
    """A plan's changesets in order of starting."""

    changesets: tuple[Changeset, ...]
    cursor: str | None


class EntryFound(Reply, frozen=True):
    """The entry, and so the changeset that it really went to."""

    entry: EntryRow


class EntryPage(Reply, frozen=True):
    """A changeset's entries in order of recording."""

    entries: tuple[EntryRow, ...]
    cursor: str | None
    with_bodies: bool

    @property
    def body_digests(self) -> tuple[bytes, ...]:
        if not self.with_bodies:
            return ()
        return tuple(digest for entry in self.entries for digest, _ in entry.held)


class ReceiptStored(Reply, frozen=True):
    """A receipt that is kept, without its body."""

    receipt: ReceiptRow


class ReceiptFound(Reply, frozen=True):
    """A receipt, and where its body is."""

    receipt: ReceiptRow

    @property
    def body_digests(self) -> tuple[bytes, ...]:
        return (self.receipt.digest,)


class ReceiptPage(Reply, frozen=True):
    """Receipts without their bodies, the newest first."""

    receipts: tuple[ReceiptRow, ...]
    cursor: str | None


class LeasesKept(Reply, frozen=True):
    """These plans' leases last longer."""

    plan_ids: tuple[str, ...]


class SessionEnded(Reply, frozen=True):
    """The plans that went back to their queue because their owner is gone."""

    plan_ids: tuple[str, ...]


class PlansForgotten(Reply, frozen=True):
    """The plans that are gone; `more` says that another call would find more to do."""

    plan_ids: tuple[str, ...]
    more: bool = False


class TaskFound(Reply, frozen=True):
    """How far a task is."""

    task_id: str
    state: TaskState
    attempt: int


class DeathNoted(Reply, frozen=True):
    """The task that a worker died of, if it was one."""

    task_id: str | None


class WorkerFound(Reply, frozen=True):
    """A worker, as it joined or left."""

    worker: Worker | None


class StrategiesFound(Reply, frozen=True):
    """What is offered, by whom, and what is waiting for it."""

    offers: tuple[StrategyOffer, ...]
    workers: tuple[Worker, ...]
    queued: int
    leased: int


class TasksLeased(Reply, frozen=True):
    """Tasks that were given out, or taken back; `more` says that there are more."""

    tasks: tuple[Task, ...]
    more: bool = False


class TasksForgotten(Reply, frozen=True):
    """How many tasks are gone; `more` says that there are more."""

    count: int
    more: bool = False


KeptRow = FragmentRow | TierBudget | Action | Plan | Decision | Changeset | ContextRow | EntryRow | ReceiptRow
"""What a revision counts, a store keeps and a watcher is told of."""

Row = KeptRow | Task | Worker

AnyReply = (
    FragmentPlaced
    | FragmentFound
    | FragmentsMoved
    | FragmentRemoved
    | FragmentPage
    | ProjectPage
    | TierMetrics
    | BodiesLocated
    | BudgetSet
    | ActionFound
    | ActionPage
    | PlanFound
    | ReadyStarted
    | PlanPage
    | DecisionFound
    | DecisionPage
    | ChangesetFound
    | ChangesetPage
    | EntryFound
    | EntryPage
    | ReceiptStored
    | ReceiptFound
    | ReceiptPage
    | SessionEnded
    | LeasesKept
    | PlansForgotten
    | TaskFound
    | DeathNoted
    | WorkerFound
    | StrategiesFound
    | TasksLeased
    | TasksForgotten
)
