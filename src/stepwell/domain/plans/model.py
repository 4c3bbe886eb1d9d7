"""The stored values of the subject: actions, plans and decisions, with their parts.

All values are frozen. A change of a plan is a new `Plan`; the old and the new value together are the `RowChanged` that
the state applies, the store writes and the watchers receive. Values that a client sends (`Argument`, `ProjectLink`) are
checked when they are created, so that an instance that exists is valid. The other values are created by the deciders
alone and need no checks of their own.

Structs with `array_like=True` are stored and sent as arrays: a new field goes to the end and has a default, because a
row that an earlier version wrote has fewer elements.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from stepwell import limits
from stepwell.domain.bounded_types import Identifier, Label, ProjectName, Text, is_project
from stepwell.domain.checks import check, checked, require_instance
from stepwell.domain.plans.abilities import LimitedAgent
from stepwell.domain.plans.conflicts import Merge, MergeConflict
from stepwell.domain.plans.validations import Validation, ValidationResult
from stepwell.errors import InvalidArgument
from stepwell.text import PlainEnum, brief_repr, describe, listed, plural, quoted

ArgumentValue = str | int | float | bool
"""The values that an argument of an action can have."""


PatternText = Annotated[
    str,
    Meta(max_length=limits.PATTERN_CHARS_MAX, description="give an RE2 pattern of at most 512 characters"),
]
ArgumentPosition = Annotated[
    int, Meta(ge=0, le=limits.ARGUMENTS_MAX, description="a position is a number from 0 to 64")
]


class ActionState(PlainEnum):
    """An archived action cannot be used for new plans. Its existing plans are not affected."""

    AVAILABLE = "available"
    ARCHIVED = "archived"


class ArgumentType(PlainEnum):
    """The type of an argument's value. A boolean is never accepted as an integer, nor the other way round."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"


@checked
class Argument(Struct, frozen=True, kw_only=True):
    """A parameter of an action.

    `minimum` and `maximum` bound a number, both inclusive. `pattern` is an RE2 expression that a string has to match as
    a whole; RE2 takes linear time for every pattern, so a client cannot block the manager with one. `position` is the
    place of the argument in a command line; the manager only checks that no two arguments have the same one.
    """

    name: Label
    type: ArgumentType = ArgumentType.STRING
    required: bool = True
    default: ArgumentValue | None = None
    minimum: float | None = None
    maximum: float | None = None
    pattern: PatternText | None = None
    position: ArgumentPosition | None = None

    def __post_init__(self) -> None:
        """Check the bounds that types cannot express: finite numbers, and a minimum that is not above the maximum."""
        check(self)
        for bound in (self.minimum, self.maximum):
            require_instance(bound, (int, float, type(None)), "minimum and maximum are numbers")
        for number in (self.minimum, self.maximum, self.default):
            if isinstance(number, float) and not math.isfinite(number):
                raise InvalidArgument(f"argument {self.name!r} has a bound or default of {number}: give finite numbers")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise InvalidArgument(f"argument {self.name!r} has a minimum above its maximum")


class Action(Struct, frozen=True, array_like=True):
    """A template for plans: texts with placeholders, actors, arguments, invariants and validations.

    The manager stores the actors and the automation profile without interpreting them. They are for the programs that
    work on the plans. `uses` counts the plans that were created; `revision` is the revision that created the action.
    """

    name: str
    description: str
    definition_of_done: str
    strategy_actor: str
    execution_actor: str
    estimation_actor: str | None
    review_actor: str | None
    apply_actor: str | None
    invariant_actor: str | None
    arguments: tuple[Argument, ...]
    invariants: tuple[str, ...]
    automation_profile: str | None
    reusable: bool
    read_only: bool
    state: ActionState
    uses: int
    created_at_ms: int
    revision: int
    validations: tuple[Validation, ...] = ()

    __repr__ = brief_repr

    @property
    def key(self) -> str:
        return self.name

    @property
    def spent(self) -> bool:
        """True if the action is not reusable and a plan was created from it already."""
        return not self.reusable and self.uses > 0


class Phase(PlainEnum):
    """The three phases of a plan, in order: find a strategy, execute it, apply the changes to a tree."""

    STRATEGIZE = "strategize"
    EXECUTE = "execute"
    APPLY = "apply"


class PlanState(PlainEnum):
    """The state of a plan within its phase. `applied` and `constrained` occur in the apply phase only."""

    QUEUED = "queued"
    PROCESSING = "processing"
    COMPLETE = "complete"
    ERRORED = "errored"
    CANCELLED = "cancelled"
    APPLIED = "applied"
    CONSTRAINED = "constrained"


class Position(NamedTuple):
    """The phase and the state of a plan together. The tables of `lifecycle` map positions to positions."""

    phase: Phase
    state: PlanState

    def __str__(self) -> str:
        return f"{self.phase}/{self.state}"


class Lease(Struct, frozen=True, array_like=True):
    """The right to work on a plan until `expires_at_ms`.

    A request has to show the token of the current lease; a request with another token is refused. The token, not the
    session, is the credential: the holder may pass it on to another process. `session_id` is the session that was
    granted the lease. When this session ends, the plan loses the lease.
    """

    token: int
    session_id: str
    expires_at_ms: int


@checked
class ProjectLink(Struct, frozen=True):
    """A project that a plan works on. A plan whose links are all read-only is read-only itself."""

    project: ProjectName
    alias: Label | None = None
    read_only: bool = False

    def __post_init__(self) -> None:
        if not self._is_usual:
            check(self)

    @property
    def _is_usual(self) -> bool:
        """True if `check` would pass for certain. Each plan in a reply has links, and most of them are usual."""
        project: object = self.project
        return (
            type(project) is str
            and len(project) <= limits.PROJECT_CHARS_MAX
            and is_project(project)
            and self.alias is None
            and type(self.read_only) is bool
        )


class Invariant(Struct, frozen=True, array_like=True):
    """A sentence that the work on a plan has to keep true. `source` says whether the action or the plan declared it.

    A child inherits the invariants of its parent.
    """

    text: Text
    source: Label


class PlanFault(Struct, frozen=True, array_like=True):
    """An error of a plan, with the phase and the attempt in which it occurred. Errors are only appended, never
    removed.

    `session_id` is the session that held the plan's lease then; None if none did.
    """

    at_ms: int
    phase: Phase
    attempt: int
    message: str
    session_id: str | None = None


class SubplanMode(PlainEnum):
    """The order in which the children of a plan may run.

    - `sequential`: a child starts when every child declared before it is finished.
    - `parallel`: any child may start; at most `max_parallel` run at the same time.
    - `dependency_ordered`: like `parallel`, but a child starts only after the children in its `depends_on` have
      executed.
    """

    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"
    DEPENDENCY_ORDERED = "dependency_ordered"


class MergeStrategy(PlainEnum):
    """The way in which the changes of children are merged into their parent, path by path and in declared order.

    Each child's change of a path has three contents: `base`, the content that the child found; `theirs`, the content
    that it left; and `ours`, the content that is merged so far. If `ours` is still `base`, every strategy takes
    `theirs`. Otherwise:

    - `git_three_way`: the edits are merged as `git merge-file` does. Edits that overlap, contents that are not text,
      and contents of which one side is deleted are a conflict. The parent keeps the conflict, with all three contents,
      until it is resolved; the edits that do not overlap are part of every resolution but a new body.
    - `sequential_apply`: no lines are merged. A child that did not find the content that the children before it left is
      a conflict about the whole content, which is kept in the same way.
    - `fail_on_conflict`: like `git_three_way`, but a conflict refuses the whole merge and nothing of it is recorded.
    - `last_wins`: like `git_three_way`, but if edits overlap the later child's edits are taken. If a content is not
      text, or one side is deleted, the later child's whole content is taken. There are no conflicts.
    """

    GIT_THREE_WAY = "git_three_way"
    SEQUENTIAL_APPLY = "sequential_apply"
    FAIL_ON_CONFLICT = "fail_on_conflict"
    LAST_WINS = "last_wins"


class Child(Struct, frozen=True, array_like=True):
    """A declared child of a plan. `depends_on` has the aliases of siblings that must have executed before it."""

    plan_id: Identifier
    alias: Label
    depends_on: tuple[Label, ...] = ()


class Subplans(Struct, frozen=True, array_like=True):
    """The children of a plan in declared order, which is also the order in which they are merged.

    `retries` is the number of times that each failed child is queued again before it counts as failed. With `fail_fast`
    the first child that fails cancels its unfinished siblings. `agents` are the sessions that asked for a ready child,
    the latest last; `limited` are those that asked with abilities. The number of those that are remembered is bounded.
    """

    mode: SubplanMode
    max_parallel: int
    fail_fast: bool
    merge: MergeStrategy
    children: tuple[Child, ...]
    retries: int = 0  # of each child that fails, before it counts as failed
    agents: tuple[str, ...] = ()
    limited: tuple[LimitedAgent, ...] = ()


class PhaseTimes(Struct, frozen=True, array_like=True):
    """The times at which a phase was last queued, started and ended. Queueing it again clears the other two."""

    queued_at_ms: int | None = None
    started_at_ms: int | None = None
    ended_at_ms: int | None = None


class Applied(Struct, frozen=True, array_like=True):
    """The successful end of an apply: the client proved, by the digest at each path, that the changes are there.

    The end of an apply is stored with the plan, so that a caller that asks later gets the same answer as the caller
    that applied the plan. `root` is the path as the client gave it; it means something to a process on the client's
    side only.
    """

    at_ms: int
    attempt: int
    session_id: str
    paths: int
    root: str  # as it was given: where it is depends on the process that gave it
    validations: tuple[ValidationResult, ...] = ()

    __repr__ = brief_repr


class Constrained(Struct, frozen=True, array_like=True):
    """The end of an apply that a failed validation stopped.

    The client has to undo the changes in the tree; the manager asks for no proof of that.

    The value stays with the plan after a reversion, so that the reason can still be read. The next constrained apply
    replaces it.
    """

    at_ms: int
    attempt: int
    session_id: str
    reason: str
    validations: tuple[ValidationResult, ...] = ()

    __repr__ = brief_repr


class RolledBack(Struct, frozen=True, array_like=True):
    """The end of a rollback: every path that the plan had changed has its earlier content again, with proof."""

    at_ms: int
    session_id: str
    reason: str
    paths: int


class Plan(Struct, frozen=True, array_like=True):
    """An action used on projects, with everything that happened to it since. Immutable: each change is a new value.

    Less obvious fields:

    - `version` counts transitions. A client sends it back as `expected_version` to be refused if the plan has moved on.
      Renewing a lease does not change it.
    - `attempt` counts how often a phase was started anew after an error, a lost lease or a reversion.
      `executed_attempt` is the attempt that completed the execute phase: only its changesets count.
    - `fence` is the token of the latest lease, also after that lease has ended. The next token is larger, even within
      one transaction, in which the revision does not grow.
    - `times` has the `PhaseTimes` of each phase that was reached, by the name of the phase.
    - `validations` has the validations of the action first, then those of the plan.
    - `retries_left` is the number of times that a failed child is queued again without a request.
    - `merged` and `conflicts` belong to the present attempt at execute; a new attempt clears both.
    - `applied`, `constrained` and `rolled_back` say how an apply or a rollback ended.
    - `labels` are what an agent has to be able to do for this plan, each once and in order. A child has its own only.
    """

    plan_id: str
    parent_plan_id: str | None
    root_plan_id: str
    depth: int
    action_name: str
    description: str
    definition_of_done: str
    arguments: dict[str, ArgumentValue]
    project_links: tuple[ProjectLink, ...]
    invariants: tuple[Invariant, ...]
    read_only: bool
    created_at_ms: int
    phase: Phase
    state: PlanState
    times: dict[str, PhaseTimes]
    version: int = 1
    attempt: int = 1
    executed_attempt: int | None = None  # the attempt whose changesets count
    lease: Lease | None = None
    fence: int = 0  # the latest lease's token: the next one is larger, also within one transaction
    errors: tuple[PlanFault, ...] = ()
    changeset_ids: tuple[str, ...] = ()
    decision_ids: tuple[str, ...] = ()
    reversion_count: int = 0
    last_checkpoint_id: str | None = None
    subplans: Subplans | None = None
    validations: tuple[Validation, ...] = ()  # the action's, then its own
    retries_left: int = 0  # how often it is queued again, of itself, when it fails
    merged: Merge | None = None  # its children's changes, in its present attempt at executing
    conflicts: tuple[MergeConflict, ...] = ()  # of that merge, in declared order
    applied: Applied | None = None
    constrained: Constrained | None = None
    rolled_back: RolledBack | None = None
    labels: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return the name and the position, what stops the plan, and its projects. `msgspec.structs.asdict` has all."""
        conflicts = len(self.open_conflicts)
        return describe(
            self,
            f"{quoted(self.plan_id)} of {quoted(self.action_name)}",
            str(self.position),
            "rolled back" if self.rolled_back else "",
            f"labels {listed(self.labels)}" if self.labels else "",
            plural(len(self.errors), "error") if self.errors else "",
            plural(conflicts, "open conflict") if conflicts else "",
            f"projects {listed(self.projects)}",
            f"version {self.version}",
        )

    @property
    def key(self) -> str:
        return self.plan_id

    @property
    def position(self) -> Position:
        return Position(self.phase, self.state)

    @property
    def open_conflicts(self) -> tuple[MergeConflict, ...]:
        """The first unresolved conflict of each path, in declared order. While there is one, the plan cannot complete.

        Later children of the same path are not listed. They wait: their merge depends on the resolution.
        """
        first: dict[str, MergeConflict] = {}
        for conflict in self.conflicts:
            if conflict.is_open:
                first.setdefault(conflict.path, conflict)
        return tuple(first.values())

    @property
    def ended_at_ms(self) -> int | None:
        """The time at which the present phase ended, which for a terminal plan is the end of the plan. None: it has not
        ended.
        """
        times = self.times.get(self.phase)
        return times.ended_at_ms if times else None

    @property
    def projects(self) -> tuple[str, ...]:
        return tuple([link.project for link in self.project_links])


class Decision(Struct, frozen=True, array_like=True):
    """A choice that was made while working on a plan.

    The decisions of a plan form a tree by `parent_id`, and the tree only grows: a decision is marked as superseded,
    never deleted. A reversion supersedes the decisions after the last checkpoint.
    """

    plan_id: str
    decision_id: str
    parent_id: str | None
    question: str
    choice: str
    rationale: str
    phase: Phase
    attempt: int
    recorded_at_ms: int
    checkpoint: bool = False
    superseded_at_ms: int | None = None

    __repr__ = brief_repr

    @property
    def key(self) -> str:
        return self.decision_id
