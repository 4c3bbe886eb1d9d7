"""Actions and plans as values. An action is a template; using it gives a plan, which walks through phases."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from stepwell import limits
from stepwell.domain.bounded_types import Identifier, Label, ProjectName, Text
from stepwell.domain.checks import check, checked, require_instance
from stepwell.domain.plans.conflicts import Merge, MergeConflict
from stepwell.domain.plans.validations import Validation, ValidationResult
from stepwell.errors import InvalidArgument

ArgumentValue = str | int | float | bool


PatternText = Annotated[
    str,
    Meta(max_length=limits.PATTERN_CHARS_MAX, description="give an RE2 pattern of at most 512 characters"),
]
ArgumentPosition = Annotated[
    int, Meta(ge=0, le=limits.ARGUMENTS_MAX, description="a position is a number from 0 to 64")
]


class ActionState(StrEnum):
    """Whether an action may be used."""

    AVAILABLE = "available"
    ARCHIVED = "archived"


class ArgumentType(StrEnum):
    """What an argument's value is."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"


@checked
class Argument(Struct, frozen=True, kw_only=True):
    """A parameter of an action. `pattern` is an RE2 expression: linear in time, whatever it is."""

    name: Label
    type: ArgumentType = ArgumentType.STRING
    required: bool = True
    default: ArgumentValue | None = None
    minimum: float | None = None
    maximum: float | None = None
    pattern: PatternText | None = None
    position: ArgumentPosition | None = None

    def __post_init__(self) -> None:
        check(self)
        for bound in (self.minimum, self.maximum):
            require_instance(bound, (int, float, type(None)), "minimum and maximum are numbers")
        for number in (self.minimum, self.maximum, self.default):
            if isinstance(number, float) and not math.isfinite(number):
                raise InvalidArgument(f"argument {self.name!r} has a bound or default of {number}: give finite numbers")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise InvalidArgument(f"argument {self.name!r} has a minimum above its maximum")


class Action(Struct, frozen=True, array_like=True):
    """A reusable template for plans."""

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

    @property
    def key(self) -> str:
        return self.name

    @property
    def spent(self) -> bool:
        """Used once, and not to be used twice."""
        return not self.reusable and self.uses > 0


class Phase(StrEnum):
    """What a plan is busy with."""

    STRATEGIZE = "strategize"
    EXECUTE = "execute"
    APPLY = "apply"


class PlanState(StrEnum):
    """How far it is with that. `applied` and `constrained` are for the apply phase only."""

    QUEUED = "queued"
    PROCESSING = "processing"
    COMPLETE = "complete"
    ERRORED = "errored"
    CANCELLED = "cancelled"
    APPLIED = "applied"
    CONSTRAINED = "constrained"


class Position(NamedTuple):
    """Where a plan stands."""

    phase: Phase
    state: PlanState

    def __str__(self) -> str:
        return f"{self.phase}/{self.state}"


class Lease(Struct, frozen=True, array_like=True):
    """The right to work on a plan. Whoever shows another token than the current one is refused."""

    token: int
    session_id: str
    expires_at_ms: int


@checked
class ProjectLink(Struct, frozen=True):
    """A project that a plan works on."""

    project: ProjectName
    alias: Label | None = None
    read_only: bool = False

    def __post_init__(self) -> None:
        check(self)


class Invariant(Struct, frozen=True, array_like=True):
    """A sentence that has to stay true, and where it came from."""

    text: Text
    source: Label


class PlanFault(Struct, frozen=True, array_like=True):
    """Something that went wrong, kept as long as its plan."""

    at_ms: int
    phase: Phase
    attempt: int
    message: str


class SubplanMode(StrEnum):
    """In which order children may run."""

    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"
    DEPENDENCY_ORDERED = "dependency_ordered"


class MergeStrategy(StrEnum):
    """How the children's changes come together in their parent, path by path and in declared order.

    Each child's change of a path is three contents: `base`, what the child found; `theirs`, what it left; and `ours`,
    what is merged so far. Where `ours` is still `base`, `theirs` is taken, by every strategy. Where it is not:

    - `git_three_way`: the edits are merged as `git merge-file` does. Those that overlap, that are no text, or of which
      one side is gone, are a conflict, kept in the parent with all three contents until somebody resolves it.
    - `sequential_apply`: nothing is merged line by line. A child that did not find what those before it left is a
      conflict, kept likewise.
    - `fail_on_conflict`: as `git_three_way`, but a conflict refuses the whole merge, and nothing of it is recorded.
    - `last_wins`: as `git_three_way`, but of edits that overlap those of the later child are taken, and of what is no
      text or gone the later child's whole content. There are no conflicts.
    """

    GIT_THREE_WAY = "git_three_way"
    SEQUENTIAL_APPLY = "sequential_apply"
    FAIL_ON_CONFLICT = "fail_on_conflict"
    LAST_WINS = "last_wins"


class Child(Struct, frozen=True, array_like=True):
    """A declared child and what has to be finished before it."""

    plan_id: Identifier
    alias: Label
    depends_on: tuple[Label, ...] = ()


class Subplans(Struct, frozen=True, array_like=True):
    """The children of a plan, in declared order, which is also the order in which they merge."""

    mode: SubplanMode
    max_parallel: int
    fail_fast: bool
    merge: MergeStrategy
    children: tuple[Child, ...]
    retries: int = 0  # of each child that fails, before it counts as failed


class PhaseTimes(Struct, frozen=True, array_like=True):
    """When a phase was last queued, started and ended."""

    queued_at_ms: int | None = None
    started_at_ms: int | None = None
    ended_at_ms: int | None = None


class Applied(Struct, frozen=True, array_like=True):
    """What a plan changed is in the tree, and proven to be there."""

    at_ms: int
    attempt: int
    session_id: str
    paths: int
    root: str  # as it was given: where it is depends on the process that gave it
    validations: tuple[ValidationResult, ...] = ()


class Constrained(Struct, frozen=True, array_like=True):
    """Nothing of a plan is in the tree, because of a validation. Kept until another apply ends."""

    at_ms: int
    attempt: int
    session_id: str
    reason: str
    validations: tuple[ValidationResult, ...] = ()


class RolledBack(Struct, frozen=True, array_like=True):
    """What a plan had changed is as it was before."""

    at_ms: int
    session_id: str
    reason: str
    paths: int


class Plan(Struct, frozen=True, array_like=True):
    """An action used on projects, and all that happened to it. Immutable: each change is a new value."""

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

    @property
    def key(self) -> str:
        return self.plan_id

    @property
    def position(self) -> Position:
        return Position(self.phase, self.state)

    @property
    def open_conflicts(self) -> tuple[MergeConflict, ...]:
        """What somebody has to resolve before it can go on."""
        return tuple(conflict for conflict in self.conflicts if conflict.is_open)

    @property
    def ended_at_ms(self) -> int | None:
        """When its present phase ended, and with it a plan that is over."""
        times = self.times.get(self.phase)
        return times.ended_at_ms if times else None

    @property
    def projects(self) -> tuple[str, ...]:
        return tuple(link.project for link in self.project_links)


class Decision(Struct, frozen=True, array_like=True):
    """A choice that a plan made. Decisions form a tree that only grows: superseded, never erased."""

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

    @property
    def key(self) -> str:
        return self.decision_id
