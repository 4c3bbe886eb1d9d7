"""What happened, as values for whoever watches: past participles. `telling` makes them of changes.

An event has what is needed to act upon it without a read: ids, places, digests and sums; no bodies and no long texts.
Applied in their order to what was there before, the events of fragments give what is there after them.
"""

from __future__ import annotations

from msgspec import Struct

from stepwell.domain.changesets.model import ChangesetState, Operation
from stepwell.domain.plans.conflicts import Resolution
from stepwell.domain.plans.model import Phase, PlanState, SubplanMode
from stepwell.domain.tiers.model import Tier, TierBudget


class Event(Struct, frozen=True, array_like=True, gc=False, tag=True):
    """The root of the events. Those of one revision happened together."""

    revision: int
    at_ms: int

    @property
    def scope(self) -> tuple[str, ...]:
        """The projects that it is about; none: it is everybody's."""
        return ()


class AboutFragment(Event, frozen=True):
    """Something happened to a fragment."""

    project: str
    fragment_id: str

    @property
    def scope(self) -> tuple[str, ...]:
        return (self.project,)


class FragmentStored(AboutFragment, frozen=True):
    """It is new, or has another body, source, kind or count; `replaced` is the tier in which the old one was."""

    tier: Tier
    replaced: Tier | None
    tokens: int
    size: int
    digest: bytes
    kind: str


class FragmentPromoted(AboutFragment, frozen=True):
    """It climbed, as it is."""

    source: Tier
    target: Tier
    tokens: int


class FragmentDemoted(AboutFragment, frozen=True):
    """It went down, as it is: by request, for being idle, or because something else needed the room."""

    source: Tier
    target: Tier
    tokens: int


class FragmentDeleted(AboutFragment, frozen=True):
    """It is gone."""

    tier: Tier
    tokens: int
    digest: bytes


class BudgetChanged(Event, frozen=True):
    """The tiers have other bounds."""

    budget: TierBudget


class ActionCreated(Event, frozen=True):
    """There is another action."""

    name: str
    reusable: bool


class ActionUsed(Event, frozen=True):
    """Plans were made of it, `uses` by now."""

    name: str
    uses: int


class ActionArchived(Event, frozen=True):
    """It cannot be used any more."""

    name: str


class AboutPlan(Event, frozen=True):
    """Something happened to a plan."""

    plan_id: str
    projects: tuple[str, ...]

    @property
    def scope(self) -> tuple[str, ...]:
        return self.projects


class PlanCreated(AboutPlan, frozen=True):
    """It is queued."""

    action_name: str
    parent_plan_id: str | None
    root_plan_id: str
    phase: Phase
    state: PlanState


class PlanMoved(AboutPlan, frozen=True):
    """It came from one phase and state to another; `session_id` is who works on it now."""

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
    """Whoever works on it has longer."""

    session_id: str
    expires_at_ms: int


class SubplansDeclared(AboutPlan, frozen=True):
    """It has children; they were created at the same revision."""

    mode: SubplanMode
    children: int


class SubplansMerged(AboutPlan, frozen=True):
    """What its children changed is its own now, but for what somebody has to choose."""

    children: int
    changeset_id: str | None
    conflicts: int


class ConflictResolved(AboutPlan, frozen=True):
    """Somebody chose what a path has; `still_open` are its conflicts that are left."""

    path: str
    alias: str
    resolution: Resolution
    still_open: int


class PlanRolledBack(AboutPlan, frozen=True):
    """What it had changed in its tree is as it was before."""

    action_name: str
    version: int
    paths: int


class PlanForgotten(AboutPlan, frozen=True):
    """It was over for long enough, and is gone with all that it had."""


class DecisionRecorded(AboutPlan, frozen=True):
    """It made a choice."""

    decision_id: str
    parent_id: str | None
    phase: Phase
    attempt: int
    checkpoint: bool


class DecisionSuperseded(AboutPlan, frozen=True):
    """It went back behind a choice."""

    decision_id: str


class ChangesetStarted(AboutPlan, frozen=True):
    """It has another open changeset."""

    changeset_id: str
    context_id: str
    attempt: int


class ChangesetEnded(AboutPlan, frozen=True):
    """A changeset of it takes no more changes."""

    changeset_id: str
    state: ChangesetState
    entry_count: int


class ChangeRecorded(AboutPlan, frozen=True):
    """A changeset of it has another entry. No digest means no file."""

    changeset_id: str
    seq: int
    operation: Operation
    path: str
    source_path: str | None
    before_digest: bytes | None
    after_digest: bytes | None
    before_mode: int | None = None
    after_mode: int | None = None


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
    | DecisionRecorded
    | DecisionSuperseded
    | ChangesetStarted
    | ChangesetEnded
    | ChangeRecorded
)
