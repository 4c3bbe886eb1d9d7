"""Commands on actions, plans, subplans, merges and decisions: one frozen Struct for each request.

The bounds of each field are part of its type, so that decoding a request checks them before a decider sees it. The
`description` of a bound is the text of the refusal. Ids of new plans and decisions are chosen by the client, so that
deciding needs no randomness and a request that is sent again creates nothing twice.

Fields that many commands have:

- `lease` is the token of the plan's lease. None means that the client has no token for this plan.
- `expected_version`, if given, refuses the command unless the plan has this version (compare and set).

Subclasses of `Read` change nothing, subclasses of `Write` are journaled, and subclasses of `Internal` are created by
the manager alone and are not part of the protocol.
"""

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

NameText = Annotated[
    str, Meta(min_length=1, max_length=limits.NAME_CHARS_MAX, description="a name has 1 to 200 characters")
]
"""A name as the client spells it. The deciders bring it into canonical form."""
LeaseMs = Annotated[
    int,
    Meta(
        ge=limits.LEASE_MS_MIN,
        le=limits.LEASE_MS_MAX,
        description="a lease lasts 10 ms to 24 h, in milliseconds",
    ),
]
"""The duration of a lease, in milliseconds."""
Invariants = Annotated[
    tuple[Sentence, ...], Meta(max_length=limits.INVARIANTS_MAX, description="give at most 64 invariants")
]
Proof = Annotated[
    dict[str, RawDigest | None],
    Meta(max_length=limits.ENTRIES_PER_PLAN_MAX, description="give the digest now found at each path"),
]
"""The digest that the client found at each path after it changed the tree; None stands for "no file"."""


Validations = Annotated[
    tuple[Validation, ...], Meta(max_length=limits.VALIDATIONS_MAX, description="give at most 16 validations")
]
ValidationResults = Annotated[
    tuple[ValidationResult, ...],
    Meta(max_length=2 * limits.VALIDATIONS_MAX, description="give one result for each validation that was run"),
]
PlanLabels = Annotated[tuple[Label, ...], Meta(max_length=limits.PLAN_LABELS_MAX, description="give at most 32 labels")]
"""The labels of a plan: all that an agent has to be able to do for it, in any order."""
RootText = Annotated[
    str, Meta(max_length=limits.PATH_CHARS_MAX, description="a root is a path of at most 4096 characters")
]
"""The path of a tree, as the client names it. The manager stores it and never opens it."""


class CreateAction(Write[replies.ActionFound], frozen=True):
    """Create an action. An existing name is refused."""

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
    invariants: Invariants = ()
    automation_profile: Label | None = None
    reusable: bool = True
    read_only: bool = False
    validations: Validations = ()


class GetAction(Read[replies.ActionFound], frozen=True):
    """Read one action. Any spelling of its name finds it."""

    name: NameText


class ListActions(Read[replies.ActionPage], frozen=True):
    """List actions in order of name, a page at a time."""

    limit: PageLimit = 100
    cursor: Cursor | None = None


class ArchiveAction(Write[replies.ActionFound], frozen=True):
    """Make an action unusable for new plans. Its existing plans go on."""

    name: NameText


ArgumentValues = Annotated[
    dict[str, ArgumentValue], Meta(max_length=limits.ARGUMENTS_MAX, description="give at most 64 arguments")
]
ProjectLinks = Annotated[
    tuple[ProjectLink, ...],
    Meta(min_length=1, max_length=limits.PROJECTS_PER_PLAN_MAX, description="name 1 to 64 projects"),
]


class UseAction(Write[replies.PlanFound], frozen=True):
    """Create a plan from an action, for one or more projects."""

    plan_id: Identifier
    action_name: NameText
    project_links: ProjectLinks
    arguments: ArgumentValues = field(default_factory=dict[str, ArgumentValue])
    invariants: Invariants = ()
    validations: Validations = ()
    labels: PlanLabels = ()


class BeginPlan(Write[replies.PlanFound], frozen=True):
    """Create a plan from an action and start its execute phase under a lease of the caller, in one step."""

    plan_id: Identifier
    action_name: NameText
    project_links: ProjectLinks
    arguments: ArgumentValues = field(default_factory=dict[str, ArgumentValue])
    invariants: Invariants = ()
    validations: Validations = ()
    lease_ms: LeaseMs = limits.LEASE_MS
    labels: PlanLabels = ()


class GetPlan(Read[replies.PlanFound], frozen=True):
    """Read one plan. A plan with a project outside the session's scope does not exist for the session."""

    plan_id: Identifier


class ListPlans(Read[replies.PlanPage], frozen=True):
    """List the plans of the session's projects in order of id. Each field that is given is a filter."""

    phase: Phase | None = None
    state: PlanState | None = None
    parent_plan_id: Identifier | None = None
    limit: PageLimit = 100
    cursor: Cursor | None = None
    rolled_back: bool | None = None
    label: Label | None = None


class StartPhase(Write[replies.PlanFound], frozen=True):
    """Start the queued phase of a plan and take the lease on the plan.

    Naming the phase protects a caller that has not noticed that the plan has moved on. `tree` is for apply: the plan
    does not overtake those that wait for this tree.
    """

    plan_id: Identifier
    phase: Phase
    lease_ms: LeaseMs = limits.LEASE_MS
    expected_version: Positive | None = None
    tree: RootText = ""


class CompletePhase(Write[replies.PlanFound], frozen=True):
    """Complete the strategize or the execute phase and give the lease back.

    The apply phase needs a proof and has its own command, `CompleteApply`.
    """

    plan_id: Identifier
    phase: Phase
    lease: Positive | None
    expected_version: Positive | None = None


class CompleteApply(Write[replies.PlanFound], frozen=True):
    """Complete the apply phase: every change is in the tree, and `proof` has the digest found at each path."""

    plan_id: Identifier
    lease: Positive | None
    proof: Proof
    expected_version: Positive | None = None
    validations: ValidationResults = ()
    root: RootText = ""


class ConstrainApply(Write[replies.PlanFound], frozen=True):
    """End the apply phase as constrained, because a required validation failed."""

    plan_id: Identifier
    lease: Positive | None
    reason: Sentence
    expected_version: Positive | None = None
    validations: ValidationResults = ()


class RollBackPlan(Write[replies.PlanFound], frozen=True):
    """Record that the changes of an applied plan were undone; `proof` has the digest found at each path afterwards."""

    plan_id: Identifier
    reason: Sentence
    proof: Proof
    expected_version: Positive | None = None


class FailPhase(Write[replies.PlanFound], frozen=True):
    """End the present phase of a plan with an error."""

    plan_id: Identifier
    phase: Phase
    lease: Positive | None
    error: Sentence
    expected_version: Positive | None = None


class AdvancePlan(Write[replies.PlanFound], frozen=True):
    """Queue the next phase of a plan whose present phase is complete."""

    plan_id: Identifier
    phase: Phase
    expected_version: Positive | None = None


class RenewLease(Write[replies.PlanFound], frozen=True):
    """Extend the lease that the caller holds on a plan."""

    plan_id: Identifier
    lease: Positive | None
    lease_ms: LeaseMs = limits.LEASE_MS


class RetryPlan(Write[replies.PlanFound], frozen=True):
    """Queue an errored phase of a plan again."""

    plan_id: Identifier
    expected_version: Positive | None = None


class RevertPlan(Write[replies.PlanFound], frozen=True):
    """Send a plan back to strategize. The number of reversions of a plan is bounded.

    The changes that the plan recorded until then no longer count; its children are cancelled.
    """

    plan_id: Identifier
    reason: Sentence
    expected_version: Positive | None = None


class CancelPlan(Write[replies.PlanFound], frozen=True):
    """End a plan and all its descendants, for good."""

    plan_id: Identifier
    reason: Sentence = ""
    expected_version: Positive | None = None


class SubplanSpec(Struct, frozen=True, array_like=True):
    """The declaration of one child: the action to use, and an alias by which siblings can depend on it.

    Without `project_links` the child works on the projects of its parent.
    """

    alias: Label
    plan_id: Identifier
    action_name: NameText
    arguments: ArgumentValues = field(default_factory=dict[str, ArgumentValue])
    project_links: Annotated[
        tuple[ProjectLink, ...],
        Meta(max_length=limits.PROJECTS_PER_PLAN_MAX, description="name at most 64 projects; none: the parent's"),
    ] = ()
    depends_on: Annotated[
        tuple[Label, ...], Meta(max_length=limits.DEPENDENCIES_MAX, description="give at most 64 aliases")
    ] = ()
    labels: PlanLabels = ()


class DeclareSubplans(Write[replies.PlanFound], frozen=True):
    """Create the children of a plan that is executing, all at once.

    `max_parallel` bounds the children that run at the same time. `retries` is the number of times that each failed
    child is queued again. With `fail_fast` the first failed child cancels the others.
    """

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
    """Take the lease on the first child, in declared order, that is ready and that the caller can do.

    With `straight` a new child goes directly to its execute phase, for children that need no strategy of their own.
    `actors`, `labels` and `read_only` are the abilities of the caller (see `abilities`); None says nothing.
    """

    plan_id: Identifier  # of the parent
    lease_ms: LeaseMs = limits.LEASE_MS
    straight: bool = False
    actors: (
        Annotated[
            tuple[NameText, ...],
            Meta(min_length=1, max_length=limits.AGENT_ACTORS_MAX, description="give 1 to 16 actors, or None for any"),
        ]
        | None
    ) = None
    labels: (
        Annotated[tuple[Label, ...], Meta(max_length=limits.AGENT_LABELS_MAX, description="give at most 64 labels")]
        | None
    ) = None
    read_only: bool | None = None


class ProceedPlan(Write[replies.PlanFound], frozen=True):
    """Complete strategize and start execute under a new lease of the same caller, in one step."""

    plan_id: Identifier
    lease: Positive | None
    lease_ms: LeaseMs = limits.LEASE_MS
    expected_version: Positive | None = None


class ConflictFound(Struct, frozen=True, array_like=True):
    """A conflict that the client's merge found: a path, and the child that changed it.

    The contents are not sent. The manager takes them from the entries that the plans recorded.
    """

    path: PathText
    plan_id: Identifier  # of the child


class RecordMerge(Write[replies.PlanFound], frozen=True):
    """Record that the changes of finished children are merged: into a closed changeset of the parent, and conflicts.

    `changeset_id` is None if the merge changed nothing.
    """

    plan_id: Identifier
    lease: Positive | None
    children: Annotated[
        tuple[Identifier, ...],
        Meta(max_length=limits.SUBPLANS_MAX, description="name the children that executed, in declared order"),
    ]
    changeset_id: Identifier | None = None
    conflicts: Annotated[
        tuple[ConflictFound, ...],
        Meta(max_length=limits.CONFLICTS_MAX, description="a merge has at most 500 conflicts: merge fewer children"),
    ] = ()


class ResolveConflict(Write[replies.PlanFound], frozen=True):
    """Resolve the open conflict of a path.

    `version` is that of the conflict for which the choice was made. `changeset_id` is the id of a new changeset, which
    gets the change that the resolution makes. `body` is the resulting content if it is not that of one side: of `ours`
    with `accept_ours`, of `theirs` with `accept_theirs` and `merged`. `mode` is the mode of the body; None keeps the
    present mode.
    """

    plan_id: Identifier
    lease: Positive | None
    path: PathText
    version: Label
    changeset_id: Identifier
    resolution: Resolution
    body: Body | UploadNumber | None = None
    mode: Mode | None = None

    @property
    def inline(self) -> tuple[int, ...]:
        """The sizes of the bodies that the command carries inside its frame."""
        return (len(self.body),) if isinstance(self.body, bytes) else ()


class RecordDecision(Write[replies.DecisionFound], frozen=True):
    """Add a decision to a plan's tree of decisions."""

    plan_id: Identifier
    decision_id: Identifier
    lease: Positive | None
    question: Sentence
    choice: Sentence
    rationale: Sentence = ""
    parent_id: Identifier | None = None
    checkpoint: bool = False


class ListDecisions(Read[replies.DecisionPage], frozen=True):
    """List a plan's decisions in the order of recording."""

    plan_id: Identifier
    limit: PageLimit = 100
    cursor: Cursor | None = None


class EndSession(Internal[replies.SessionEnded], frozen=True):
    """Take back all leases of a session that has ended."""

    session_id: Identifier


class KeepLeases(Internal[replies.LeasesKept], frozen=True):
    """Extend the leases that were held at `held_at_ms` to at least `until_ms`.

    The manager issues it after a restart, because sessions could not renew their leases while no manager was running.
    """

    held_at_ms: int
    until_ms: int


class ExpireLeases(Internal[replies.SessionEnded], frozen=True):
    """Take back the leases that have expired. The manager issues it when the first of them is due."""


class ForgetPlans(Internal[replies.PlansForgotten], frozen=True):
    """Delete trees of plans that are over: those that ended before `before_ms`, and the oldest beyond the `keep`
    newest.
    """

    keep: int
    before_ms: int


PlanRead = GetAction | ListActions | GetPlan | ListPlans | ListDecisions
"""All commands of this subject that change nothing."""
PlanWrite = (
    CreateAction
    | ArchiveAction
    | UseAction
    | BeginPlan
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
"""All commands of this subject that a client can send to change plans."""
