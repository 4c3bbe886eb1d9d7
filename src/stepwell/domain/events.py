"""The events that watchers receive: frozen values, named in past participles. `event_builder` makes them of changes.

An event has the ids, tiers, digests and sums that a watcher needs to act without a read, but no bodies and no long
texts. The events of fragments are complete: applied in their order to the fragments that were there before, they give
the fragments that are there after them. Events survive the manager: the store keeps the latest of them, in the form of
these Structs, so that a field is only ever added, at the end and with a default.
"""

from __future__ import annotations

from msgspec import Struct

from stepwell.domain.changesets.model import ChangesetState, Operation
from stepwell.domain.plans.conflicts import Resolution
from stepwell.domain.plans.model import Phase, PlanState, SubplanMode
from stepwell.domain.tiers.model import Tier, TierBudget, Writer


class Event(Struct, frozen=True, array_like=True, gc=False, tag=True):
    """The root of the events. Events with the same revision happened in one step, and are delivered together."""

    revision: int
    at_ms: int

    @property
    def scope(self) -> tuple[str, ...]:
        """The projects that the event is about.

        A session receives it if it sees all of them; an empty scope is public.
        """
        return ()


class AboutFragment(Event, frozen=True):
    """The root of the events that are about one fragment of a project."""

    project: str
    fragment_id: str

    @property
    def scope(self) -> tuple[str, ...]:
        return (self.project,)


class FragmentStored(AboutFragment, frozen=True):
    """A fragment was created or replaced.

    `replaced` is the tier in which the earlier version was; None for a new one. `writer` has the session that stored
    it, its process, its label, and the plan for which it did.
    """

    tier: Tier
    replaced: Tier | None
    tokens: int
    size: int
    digest: bytes
    kind: str
    writer: Writer | None = None


class FragmentPromoted(AboutFragment, frozen=True):
    """A fragment moved to a higher tier, by request or because it was read often. Nothing else of it changed."""

    source: Tier
    target: Tier
    tokens: int


class FragmentDemoted(AboutFragment, frozen=True):
    """A fragment moved to a lower tier: by request, because it was idle, or because its tier needed the room."""

    source: Tier
    target: Tier
    tokens: int


class FragmentDeleted(AboutFragment, frozen=True):
    """A fragment was deleted: by request, or because it was idle in cold for too long. `tier` is where it was."""

    tier: Tier
    tokens: int
    digest: bytes


class BudgetChanged(Event, frozen=True):
    """The bounds of the tiers were changed. The demotions that followed are events of the same revision."""

    budget: TierBudget


class ActionCreated(Event, frozen=True):
    """An action was created. Actions belong to no project, so that every session receives this."""

    name: str
    reusable: bool


class ActionUsed(Event, frozen=True):
    """A plan was created from an action. `uses` is the number of its plans by now."""

    name: str
    uses: int


class ActionArchived(Event, frozen=True):
    """An action was archived: it can create no more plans."""

    name: str


class AboutPlan(Event, frozen=True):
    """The root of the events that are about one plan and its projects."""

    plan_id: str
    projects: tuple[str, ...]

    @property
    def scope(self) -> tuple[str, ...]:
        return self.projects


class PlanCreated(AboutPlan, frozen=True):
    """A plan was created. It is queued in the phase and state that the event names."""

    action_name: str
    parent_plan_id: str | None
    root_plan_id: str
    phase: Phase
    state: PlanState
    labels: tuple[str, ...] = ()


class PlanMoved(AboutPlan, frozen=True):
    """A plan moved from one phase and state to another. `session_id` is the session that works on it now, if any."""

    action_name: str
    parent_plan_id: str | None
    source_phase: Phase
    source_state: PlanState
    phase: Phase
    state: PlanState
    attempt: int
    version: int
    session_id: str | None


class LeaseRenewed(AboutPlan, frozen=True):
    """The session that works on a plan has renewed its lease."""

    session_id: str
    expires_at_ms: int


class SubplansDeclared(AboutPlan, frozen=True):
    """A plan declared its subplans, which were created at the same revision."""

    mode: SubplanMode
    children: int


class SubplansMerged(AboutPlan, frozen=True):
    """The changes of a plan's subplans were merged into it. `conflicts` is the number of paths in conflict."""

    children: int
    changeset_id: str | None
    conflicts: int


class ConflictResolved(AboutPlan, frozen=True):
    """A merge conflict at a path was resolved: by a caller's choice, or, after such a choice, by a clean merge.

    `still_open` is the number of paths that are still in conflict.
    """

    path: str
    alias: str
    resolution: Resolution
    still_open: int


class PlanRolledBack(AboutPlan, frozen=True):
    """An applied plan was rolled back: its paths have the contents again that they had before it was applied."""

    action_name: str
    version: int
    paths: int


class PlanForgotten(AboutPlan, frozen=True):
    """A plan that had ended was deleted by retention, with its decisions and changesets."""


class ApplyPlaceChanged(AboutPlan, frozen=True):
    """A caller that waits to apply a plan has another place in the queue of the tree.

    At `place` 1 it is the plan's turn, or the plan is being applied; None: the ticket has ended.
    """

    ticket_id: str
    tree: str
    priority: int
    place: int | None


class DecisionRecorded(AboutPlan, frozen=True):
    """A decision was recorded for a plan; a checkpoint is one that the plan can be reverted to."""

    decision_id: str
    parent_id: str | None
    phase: Phase
    attempt: int
    checkpoint: bool


class DecisionSuperseded(AboutPlan, frozen=True):
    """A decision became obsolete, because its plan was reverted to an earlier one or rolled back. It is kept."""

    decision_id: str


class ChangesetStarted(AboutPlan, frozen=True):
    """A changeset was opened for a plan, in an execution context."""

    changeset_id: str
    context_id: str
    attempt: int


class ChangesetEnded(AboutPlan, frozen=True):
    """A changeset of a plan was closed or aborted; it accepts no more changes."""

    changeset_id: str
    state: ChangesetState
    entry_count: int


class ChangeRecorded(AboutPlan, frozen=True):
    """A change was recorded in a changeset of a plan. No digest means that there was, or is, no file."""

    changeset_id: str
    seq: int
    operation: Operation
    path: str
    source_path: str | None
    before_digest: bytes | None
    after_digest: bytes | None
    before_mode: int | None = None
    after_mode: int | None = None


class PoolChanged(Event, frozen=True):
    """A token pool was created or resized, or tokens of it were leased, used or returned."""

    name: str
    tokens: int
    spent: int
    leased: int
    leases: int
    is_low: bool


class PoolDeleted(Event, frozen=True):
    """A token pool was deleted."""

    name: str


class AboutLog(Event, frozen=True):
    """The root of the events that are about one log of a project. The head of the log is told by `revision`."""

    project: str
    name: str

    @property
    def scope(self) -> tuple[str, ...]:
        return (self.project,)


class LogAppended(AboutLog, frozen=True):
    """Entries were appended to a log, with all positions from the first to the last.

    No entry below `first_live` is there any more: the log retains a number of entries, or some have expired.
    """

    first_position: int
    last_position: int
    first_live: int


class LogPopped(AboutLog, frozen=True):
    """The last entry of a log was removed, by a caller that got it."""

    position: int


class LogCleared(AboutLog, frozen=True):
    """All entries of a log were removed: no entry below `first_live` is there any more."""

    first_live: int


class LogRetentionChanged(AboutLog, frozen=True):
    """The retention of a log was set, which also creates a log. It applies at once: entries below `first_live` are
    gone.
    """

    keep_entries: int | None
    keep_ms: int | None
    first_live: int


class LogTrimmed(AboutLog, frozen=True):
    """Entries of a log have expired: no entry below `first_live` is there any more. The head is as before."""

    first_live: int


class LogDeleted(AboutLog, frozen=True):
    """A log was deleted with its entries. A later log of that name begins at position 1."""


AnyEvent = (
    FragmentStored
    | FragmentPromoted
    | FragmentDemoted
    | FragmentDeleted
    | BudgetChanged
    | ActionCreated
    | ActionUsed
    | ActionArchived
    | PlanCreated
    | PlanMoved
    | LeaseRenewed
    | SubplansDeclared
    | SubplansMerged
    | ConflictResolved
    | PlanRolledBack
    | PlanForgotten
    | ApplyPlaceChanged
    | DecisionRecorded
    | DecisionSuperseded
    | ChangesetStarted
    | ChangesetEnded
    | ChangeRecorded
    | PoolChanged
    | PoolDeleted
    | LogAppended
    | LogPopped
    | LogCleared
    | LogRetentionChanged
    | LogTrimmed
    | LogDeleted
)
"""The closed union of events. The codec, the store and the public API use it."""
