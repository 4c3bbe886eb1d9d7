"""Commands on actions, plans, subplans and decisions."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from stepwell import limits
from stepwell.domain import replies
from stepwell.domain.bounded_types import (
    Body,
    Cursor,
    Identifier,
    Label,
    PageLimit,
    Positive,
    RawDigest,
    Sentence,
    Text,
    UploadNumber,
)
from stepwell.domain.changesets.commands import PathText
from stepwell.domain.changesets.paths import Mode
from stepwell.domain.command_roots import Internal, Read, Write
from stepwell.domain.plans.conflicts import Resolution
from stepwell.domain.plans.model import (
    Argument,
    ArgumentValue,
    MergeStrategy,
    Phase,
    PlanState,
    ProjectLink,
    SubplanMode,
)
from stepwell.domain.plans.validations import Validation, ValidationResult

NameText = Annotated[str, Meta(min_length=1, max_length=200, description="a name has 1 to 200 characters")]
LeaseMs = Annotated[
    int,
    Meta(
        ge=limits.LEASE_MS_MIN,
        le=limits.LEASE_MS_MAX,
        description="a lease lasts 10 ms to 24 h, in milliseconds",
    ),
]
Proof = Annotated[
    dict[str, RawDigest | None],
    Meta(max_length=limits.ENTRIES_PER_PLAN_MAX, description="give the digest now found at each path"),
]


Validations = Annotated[
    tuple[Validation, ...], Meta(max_length=limits.VALIDATIONS_MAX, description="give at most 16 validations")
]
ValidationResults = Annotated[
    tuple[ValidationResult, ...],
    Meta(max_length=2 * limits.VALIDATIONS_MAX, description="give one result for each validation that was run"),
]
RootText = Annotated[
    str, Meta(max_length=limits.PATH_CHARS_MAX, description="a root is a path of at most 4096 characters")
]


class CreateAction(Write[replies.ActionFound], frozen=True):
    """Create a template. An existing name is refused."""

    name: NameText
    description: Text
    definition_of_done: Text
    strategy_actor: NameText
    execution_actor: NameText
    estimation_actor: NameText | None = None
    review_actor: NameText | None = None
    apply_actor: NameText | None = None
    invariant_actor: NameText | None = None
    arguments: Annotated[
        tuple[Argument, ...], Meta(max_length=limits.ARGUMENTS_MAX, description="give at most 64 arguments")
    ] = ()
    invariants: Annotated[tuple[Sentence, ...], Meta(max_length=64, description="give at most 64 invariants")] = ()
    automation_profile: Label | None = None
    reusable: bool = True
    read_only: bool = False
    validations: Validations = ()


class GetAction(Read[replies.ActionFound], frozen=True):
    """One action by name."""

    name: NameText


class ListActions(Read[replies.ActionPage], frozen=True):
    """Actions by name."""

    limit: PageLimit = 100
    cursor: Cursor | None = None


class ArchiveAction(Write[replies.ActionFound], frozen=True):
    """Make an action unusable; its plans go on."""

    name: NameText


ArgumentValues = Annotated[
    dict[str, ArgumentValue], Meta(max_length=limits.ARGUMENTS_MAX, description="give at most 64 arguments")
]
ProjectLinks = Annotated[
    tuple[ProjectLink, ...], Meta(min_length=1, max_length=64, description="name 1 to 64 projects")
]


class UseAction(Write[replies.PlanFound], frozen=True):
    """Make a plan of an action."""

    plan_id: Identifier
    action_name: NameText
    project_links: ProjectLinks
    arguments: ArgumentValues = field(default_factory=dict[str, ArgumentValue])
    invariants: Annotated[tuple[Sentence, ...], Meta(max_length=64, description="give at most 64 invariants")] = ()
    validations: Validations = ()


class GetPlan(Read[replies.PlanFound], frozen=True):
    """One plan by id."""

    plan_id: Identifier


class ListPlans(Read[replies.PlanPage], frozen=True):
    """Plans of the session's projects."""

    phase: Phase | None = None
    state: PlanState | None = None
    parent_plan_id: Identifier | None = None
    limit: PageLimit = 100
    cursor: Cursor | None = None
    rolled_back: bool | None = None


class StartPhase(Write[replies.PlanFound], frozen=True):
    """Take the lease on a queued plan."""

    plan_id: Identifier
    phase: Phase
    lease_ms: LeaseMs = limits.LEASE_MS
    expected_version: Positive | None = None


class CompletePhase(Write[replies.PlanFound], frozen=True):
    """Strategize or execute is done. The apply phase needs proof: `CompleteApply`."""

    plan_id: Identifier
    phase: Phase
    lease: Positive | None
    expected_version: Positive | None = None


class CompleteApply(Write[replies.PlanFound], frozen=True):
    """Every entry is applied, and `proof` has the digest now found at each path."""

    plan_id: Identifier
    lease: Positive | None
    proof: Proof
    expected_version: Positive | None = None
    validations: ValidationResults = ()
    root: RootText = ""


class ConstrainApply(Write[replies.PlanFound], frozen=True):
    """A required validation failed."""

    plan_id: Identifier
    lease: Positive | None
    reason: Sentence
    expected_version: Positive | None = None
    validations: ValidationResults = ()


class RollBackPlan(Write[replies.PlanFound], frozen=True):
    """What an applied plan changed is undone, and `proof` has the digest now found at each path."""

    plan_id: Identifier
    reason: Sentence
    proof: Proof
    expected_version: Positive | None = None


class FailPhase(Write[replies.PlanFound], frozen=True):
    """The phase ended in an error."""

    plan_id: Identifier
    phase: Phase
    lease: Positive | None
    error: Sentence
    expected_version: Positive | None = None


class AdvancePlan(Write[replies.PlanFound], frozen=True):
    """Queue the next phase of a plan whose present one is complete."""

    plan_id: Identifier
    phase: Phase
    expected_version: Positive | None = None


class RenewLease(Write[replies.PlanFound], frozen=True):
    """Keep a held lease for longer."""

    plan_id: Identifier
    lease: Positive | None
    lease_ms: LeaseMs = limits.LEASE_MS


class RetryPlan(Write[replies.PlanFound], frozen=True):
    """Queue an errored phase again."""

    plan_id: Identifier
    expected_version: Positive | None = None


class RevertPlan(Write[replies.PlanFound], frozen=True):
    """Back to strategize, at most three times."""

    plan_id: Identifier
    reason: Sentence
    expected_version: Positive | None = None


class CancelPlan(Write[replies.PlanFound], frozen=True):
    """End a plan and its children, for good."""

    plan_id: Identifier
    reason: Sentence = ""
    expected_version: Positive | None = None


class SubplanSpec(Struct, frozen=True, array_like=True):
    """A child to be: an action to use, under an alias that its siblings can depend on."""

    alias: Label
    plan_id: Identifier
    action_name: NameText
    arguments: ArgumentValues = field(default_factory=dict[str, ArgumentValue])
    project_links: Annotated[
        tuple[ProjectLink, ...],
        Meta(max_length=64, description="name at most 64 projects; none: the parent's"),
    ] = ()
    depends_on: Annotated[tuple[Label, ...], Meta(max_length=64, description="give at most 64 aliases")] = ()


class DeclareSubplans(Write[replies.PlanFound], frozen=True):
    """Make the children of a plan that is executing."""

    plan_id: Identifier
    lease: Positive | None
    children: Annotated[
        tuple[SubplanSpec, ...],
        Meta(min_length=1, max_length=limits.SUBPLANS_MAX, description="declare 1 to 256 children"),
    ]
    mode: SubplanMode = SubplanMode.PARALLEL
    max_parallel: Annotated[
        int, Meta(ge=1, le=limits.MAX_PARALLEL_MAX, description="max_parallel is a number from 1 to 50")
    ] = limits.MAX_PARALLEL
    fail_fast: bool = False
    merge: MergeStrategy = MergeStrategy.GIT_THREE_WAY
    retries: Annotated[
        int, Meta(ge=0, le=limits.SUBPLAN_RETRIES_MAX, description="retries are a number from 0 to 10")
    ] = 0


class StartReady(Write[replies.ReadyStarted], frozen=True):
    """Take the lease on the first child, in declared order, that somebody can work on now."""

    plan_id: Identifier  # of the parent
    lease_ms: LeaseMs = limits.LEASE_MS
    straight: bool = False  # to execute, for children that need no strategy of their own


class ProceedPlan(Write[replies.PlanFound], frozen=True):
    """Strategize is done, and whoever did it executes: three steps in one, between which nobody comes."""

    plan_id: Identifier
    lease: Positive | None
    lease_ms: LeaseMs = limits.LEASE_MS
    expected_version: Positive | None = None


class ConflictFound(Struct, frozen=True, array_like=True):
    """What a merge could not decide: a path, and the child that changed it. The contents are in their entries."""

    path: PathText
    plan_id: Identifier  # of the child


class RecordMerge(Write[replies.PlanFound], frozen=True):
    """What finished children changed is merged: in a closed changeset of the parent, and in conflicts."""

    plan_id: Identifier
    lease: Positive | None
    children: Annotated[
        tuple[Identifier, ...],
        Meta(max_length=limits.SUBPLANS_MAX, description="name the children that executed, in declared order"),
    ]
    changeset_id: Identifier | None = None  # None: nothing came of it
    conflicts: Annotated[
        tuple[ConflictFound, ...],
        Meta(max_length=limits.CONFLICTS_MAX, description="a merge has at most 500 conflicts: merge fewer children"),
    ] = ()


class ResolveConflict(Write[replies.PlanFound], frozen=True):
    """Choose what a path has where children disagreed."""

    plan_id: Identifier
    lease: Positive | None
    path: PathText
    changeset_id: Identifier  # of a new one, that has what the choice changes
    resolution: Resolution
    body: Body | UploadNumber | None = None
    mode: Mode | None = None  # of the body; None: that of what is there
    alias: Label | None = None  # of the child, to be sure

    @property
    def inline(self) -> tuple[int, ...]:
        return (len(self.body),) if isinstance(self.body, bytes) else ()


class RecordDecision(Write[replies.DecisionFound], frozen=True):
    """Add to a plan's tree of decisions."""

    plan_id: Identifier
    decision_id: Identifier
    lease: Positive | None
    question: Sentence
    choice: Sentence
    rationale: Sentence = ""
    parent_id: Identifier | None = None
    checkpoint: bool = False


class ListDecisions(Read[replies.DecisionPage], frozen=True):
    """A plan's decisions."""

    plan_id: Identifier
    limit: PageLimit = 100
    cursor: Cursor | None = None


class EndSession(Internal[replies.SessionEnded], frozen=True):
    """The owner of these leases is gone."""

    session_id: Identifier


class KeepLeases(Internal[replies.LeasesKept], frozen=True):
    """Leases that were held at one moment last at least until another: there was no manager to renew them."""

    held_at_ms: int
    until_ms: int


class ExpireLeases(Internal[replies.SessionEnded], frozen=True):
    """Take back every lease whose time is over."""


class ForgetPlans(Internal[replies.PlansForgotten], frozen=True):
    """Drop the trees whose root ended before then, and all but so many of those that ended last."""

    keep: int
    before_ms: int


PlanRead = GetAction | ListActions | GetPlan | ListPlans | ListDecisions
PlanWrite = (
    CreateAction
    | ArchiveAction
    | UseAction
    | StartPhase
    | CompletePhase
    | CompleteApply
    | ConstrainApply
    | RollBackPlan
    | FailPhase
    | AdvancePlan
    | RenewLease
    | RetryPlan
    | RevertPlan
    | CancelPlan
    | DeclareSubplans
    | RecordDecision
    | StartReady
    | ProceedPlan
    | RecordMerge
    | ResolveConflict
)
