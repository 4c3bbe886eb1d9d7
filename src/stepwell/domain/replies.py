"""The replies to commands: a closed union of frozen values, and the union of all rows.

A reply has rows and sums, never the bytes of bodies. `body_digests` names the bodies that belong to a reply; the
manager sends beside the reply where each of them is, and the client maps or reads it there.

Naming: a `…Found` reply is a read, or the row that a write left; a `…Page` has a cursor. The names differ from those of
the events in `events`, which tell watchers of the same facts.
"""

from __future__ import annotations

from msgspec import Struct

from stepwell.domain.applies.model import ApplyTicket
from stepwell.domain.changesets.model import Changeset, ContextRow, EntryRow
from stepwell.domain.logs.model import LogEntryRow, LogRow
from stepwell.domain.logs.replies import (
    EntriesAppended,
    EntriesFound,
    EntryPopped,
    LogFound,
    LogPage,
    LogRemoved,
    LogsTrimmed,
)
from stepwell.domain.plans.model import Action, ActionState, Decision, Phase, Plan, PlanState
from stepwell.domain.pools.model import TokenLease, TokenPool
from stepwell.domain.receipts.model import ReceiptRow
from stepwell.domain.reply_roots import Page as Page  # noqa: PLC0414 - the roots are imported from here, too
from stepwell.domain.reply_roots import Reply as Reply  # noqa: PLC0414
from stepwell.domain.tasks.model import StrategyOffer, StrategyProblem, Task, TaskState, Worker
from stepwell.domain.tiers.model import FragmentRow, Tier, TierBudget
from stepwell.text import PlainEnum, brief_repr, describe, quoted


class Note(PlainEnum):
    """The reason why a fragment is in its tier after a store, promotion or demotion."""

    PLACED = "placed"
    ALREADY_THERE = "already_there"
    LARGER_THAN_HOT = "larger_than_hot"  # it would have emptied hot and still not fit
    LARGER_THAN_ARENA = "larger_than_arena"  # the same for the arena, which hot and warm share
    EQUAL_BODY = "equal_body"  # nothing was stored: the fragment that is named has the same body


class FragmentPlaced(Reply, frozen=True):
    """The place of a fragment after `store`, `promote` or `demote`. `revision` is that of its body."""

    project: str
    fragment_id: str
    tier: Tier
    tokens: int
    revision: int
    digest: bytes
    note: Note = Note.PLACED

    __repr__ = brief_repr


class FragmentFound(Reply, frozen=True):
    """A fragment as it is after this read. A read counts as an access, unless it was a peek."""

    row: FragmentRow
    last_accessed_ms: int
    access_count: int

    @property
    def body_digests(self) -> tuple[bytes, ...]:
        return (self.row.digest,)


class FragmentChecked(Reply, frozen=True):
    """The revision of a fragment; None if it does not exist."""

    fragment_revision: int | None


class Move(Struct, frozen=True, array_like=True):
    """A fragment that was demoted. `target` is None if it was deleted."""

    project: str
    fragment_id: str
    source: Tier
    target: Tier | None


class FragmentsMoved(Reply, frozen=True):
    """The fragments that an eviction or a sweep moved, in order. `more` says that another call would move more."""

    moves: tuple[Move, ...]
    more: bool = False

    __repr__ = brief_repr


class FragmentRemoved(Reply, frozen=True, tag="FragmentDeleted"):  # the tag in stored replies
    """The fragment that was deleted, and the tier in which it was; None if there was none, which the caller allowed."""

    project: str
    fragment_id: str
    tier: Tier | None


class FragmentPage(Page[FragmentRow], frozen=True):
    """Fragments in order of creation, without bodies. A page can be empty and still have a cursor."""

    rows: tuple[FragmentRow, ...]
    cursor: str | None


class ProjectPage(Page[str], frozen=True):
    """The projects that have fragments, in order of name."""

    projects: tuple[str, ...]
    cursor: str | None


class TierUsage(Struct, frozen=True, array_like=True):
    """The usage of a tier. `entries` counts fragments, and `files` the rows that ingesting keeps for whole files.

    Both count against the bounds of the tier, and both are in `tokens` and `bytes`.
    """

    entries: int = 0
    tokens: int = 0
    bytes: int = 0
    files: int = 0


class TierMetrics(Reply, frozen=True):
    """The usage of each tier, the budget, and the sizes of all bodies."""

    hot: TierUsage
    warm: TierUsage
    cold: TierUsage
    budget: TierBudget
    body_bytes: int  # equal bodies count once
    arena_bytes: int  # the need of the arena; for a scoped session, the raw bytes of its hot, warm and kept ones
    kept: TierUsage = TierUsage()  # fragments with `keep`, which are in no tier's usage


class BodiesLocated(Reply, frozen=True):
    """The bodies, among those that were asked for, to which a row still refers."""

    found: tuple[bytes, ...]

    @property
    def body_digests(self) -> tuple[bytes, ...]:
        return self.found


class BudgetSet(Reply, frozen=True):
    """The budget that is in force after `SetBudget`."""

    budget: TierBudget


class ActionFound(Reply, frozen=True):
    """An action after it was created, read, used or archived."""

    action: Action


class ActionSummary(Struct, frozen=True, array_like=True):
    """The fields of an action that a list shows."""

    name: str
    state: ActionState
    reusable: bool
    uses: int


class ActionPage(Page[ActionSummary], frozen=True):
    """Actions in order of name, each as a summary."""

    actions: tuple[ActionSummary, ...]
    cursor: str | None


class PlanFound(Reply, frozen=True):
    """A plan after a command. After a `start_*` or `renew_lease`, its `lease` is the caller's."""

    plan: Plan


class PlanSummary(Struct, frozen=True, array_like=True):
    """The fields of a plan that a list shows."""

    plan_id: str
    action_name: str
    phase: Phase
    state: PlanState
    attempt: int
    version: int
    parent_plan_id: str | None
    rolled_back: bool = False
    labels: tuple[str, ...] = ()

    def __repr__(self) -> str:
        name = f"{quoted(self.plan_id)} of {quoted(self.action_name)}"
        rolled_back = "rolled back" if self.rolled_back else ""
        return describe(self, name, f"{self.phase}/{self.state}", rolled_back, f"version {self.version}")


class ReadyStarted(Reply, frozen=True):
    """A child plan that was started for the caller, under its `lease`; or None, and if it is worth waiting for one.

    `is_over` means that no session works on a child, and that none will become ready without intervention. `errored`
    are the children that failed for good: `retry_plan`, `revert_plan` or `cancel_plan` resolves that. `is_for_others`
    means that there are children left, all of which need a scope or an ability that the caller does not have: waiting
    is of no use to this caller. Otherwise the event to wait for is a `PlanMoved` of one of this parent's children.
    """

    plan: Plan | None
    is_over: bool
    errored: tuple[str, ...] = ()
    is_for_others: bool = False


class PlanPage(Page[PlanSummary], frozen=True):
    """Plans in order of id, which is the order of their creation, each as a summary."""

    plans: tuple[PlanSummary, ...]
    cursor: str | None


class DecisionFound(Reply, frozen=True, tag="DecisionRecorded"):  # the tag in stored replies
    """A decision as it was recorded, with the id of the decision that it hangs on."""

    decision: Decision


class DecisionPage(Page[Decision], frozen=True):
    """A plan's decisions in order of recording, superseded ones included."""

    decisions: tuple[Decision, ...]
    cursor: str | None


class ChangesetFound(Reply, frozen=True):
    """A changeset after it was started, read or ended."""

    changeset: Changeset


class ChangesetPage(Page[Changeset], frozen=True):
    """The changesets of a plan, in the order in which they were started."""

    changesets: tuple[Changeset, ...]
    cursor: str | None


class EntryFound(Reply, frozen=True, tag="ChangeRecorded"):  # the tag in stored replies
    """The entry that was recorded. It names the changeset, which the manager chose if the caller did not."""

    entry: EntryRow


class EntryPage(Page[EntryRow], frozen=True):
    """The entries of a changeset, in the order in which they were recorded."""

    entries: tuple[EntryRow, ...]
    cursor: str | None
    with_bodies: bool

    @property
    def body_digests(self) -> tuple[bytes, ...]:
        if not self.with_bodies:
            return ()
        return tuple(digest for entry in self.entries for digest, _ in entry.held)


class ReceiptStored(Reply, frozen=True):
    """A receipt that was stored, or was there already, without its body."""

    receipt: ReceiptRow


class ReceiptFound(Reply, frozen=True):
    """A receipt; the place of its body comes along."""

    receipt: ReceiptRow

    @property
    def body_digests(self) -> tuple[bytes, ...]:
        return (self.receipt.digest,)


class ReceiptPage(Page[ReceiptRow], frozen=True):
    """Receipts without their bodies, from the newest on."""

    receipts: tuple[ReceiptRow, ...]
    cursor: str | None


class ApplyQueued(Reply, frozen=True):
    """A caller's ticket in the queue of a tree, and the number of plans there.

    `applying` is the plan that is being applied now, if there is one and the session may see it.
    """

    ticket: ApplyTicket
    plans: int
    applying: str | None = None

    __repr__ = brief_repr

    @property
    def place(self) -> int:
        """The place of the ticket's plan, from 1 on: "2 of 5" is `place` of `plans`."""
        return self.ticket.place


class ApplyQueueLeft(Reply, frozen=True):
    """The ticket that was ended; None if it had ended already."""

    ticket: ApplyTicket | None


class ApplyQueueFound(Reply, frozen=True):
    """The tickets of a tree in order of their places, as far as the session may see their plans.

    `plans` is the number of all plans in the queue, `at_work` that of the plans which are being applied.
    """

    tickets: tuple[ApplyTicket, ...]
    plans: int
    at_work: int


class LeasesKept(Reply, frozen=True):
    """The plans whose leases were extended, because no client could renew them while no manager ran."""

    plan_ids: tuple[str, ...]


class SessionEnded(Reply, frozen=True):
    """The plans that went back to their queue because the session that worked on them has ended."""

    plan_ids: tuple[str, ...]


class PlansForgotten(Reply, frozen=True):
    """The plans that retention deleted. `more` says that another call would delete more."""

    plan_ids: tuple[str, ...]
    more: bool = False


class TaskFound(Reply, frozen=True):
    """The state of a task, and the number of its present attempt."""

    task_id: str
    state: TaskState
    attempt: int


class DeathNoted(Reply, frozen=True):
    """The task during which a worker died; None if it had none."""

    task_id: str | None


class WorkerFound(Reply, frozen=True):
    """A worker after it joined, began a task or left; None if it is not known."""

    worker: Worker | None


class StrategiesFound(Reply, frozen=True):
    """The strategies on offer, the workers, and the numbers of tasks that wait and that are being worked on."""

    offers: tuple[StrategyOffer, ...]
    workers: tuple[Worker, ...]
    queued: int
    leased: int

    @property
    def problems(self) -> tuple[StrategyProblem, ...]:
        """The installed strategies that workers could not load, each once, by name."""
        found = {problem.key: problem for worker in self.workers for problem in worker.problems}
        return tuple(found[key] for key in sorted(found))


class PoolFound(Reply, frozen=True):
    """A token pool as it is after the command."""

    pool: TokenPool


class PoolPage(Page[TokenPool], frozen=True):
    """Token pools in order of name."""

    pools: tuple[TokenPool, ...]
    cursor: str | None


class TokensLeased(Reply, frozen=True):
    """A lease of tokens, and its pool. `became_low` says that this command has crossed the pool's soft limit."""

    lease: TokenLease
    pool: TokenPool
    became_low: bool


class TasksLeased(Reply, frozen=True):
    """Tasks that were leased to workers, or whose deadline ended. `more` says that another call would find more."""

    tasks: tuple[Task, ...]
    more: bool = False


class TasksForgotten(Reply, frozen=True):
    """The number of tasks that were deleted. `more` says that another call would delete more."""

    count: int
    more: bool = False


KeptRow = (
    FragmentRow
    | TierBudget
    | Action
    | Plan
    | Decision
    | Changeset
    | ContextRow
    | EntryRow
    | ReceiptRow
    | TokenPool
    | LogRow
    | LogEntryRow
    | ApplyTicket
)
"""The rows that survive the manager: revisions count their changes, the store keeps them, events tell of them."""

Row = KeptRow | Task | Worker
"""All rows of the state. Tasks and workers end with the manager."""

AnyReply = (
    FragmentPlaced
    | FragmentFound
    | FragmentChecked
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
    | PoolFound
    | PoolPage
    | TokensLeased
    | EntriesAppended
    | EntryPopped
    | EntriesFound
    | LogFound
    | LogRemoved
    | LogPage
    | LogsTrimmed
    | ApplyQueued
    | ApplyQueueLeft
    | ApplyQueueFound
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
