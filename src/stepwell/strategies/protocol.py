"""What a strategy is: a function of a request and a view to scored fragments, and nothing else.

It runs in a worker process, on the state at one revision, and may keep what it has computed for the next time: a
worker has one instance of each, and gives it one request at a time. Nothing that it does can hurt anybody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Protocol, cast, runtime_checkable

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from stepwell import limits
from stepwell.domain.bounded_types import Identifier, Label, ProjectName, Source, StrategyName, Text
from stepwell.domain.checks import check, checked, require_instance
from stepwell.domain.tiers.model import FragmentRow
from stepwell.errors import InvalidArgument

_Breadth = Annotated[
    int,
    Meta(
        ge=0,
        le=limits.PAGE_ROWS_MAX,
        description=f"a breadth is a whole number from 0 to {limits.PAGE_ROWS_MAX}",
    ),
]
_Depth = Annotated[
    int,
    Meta(
        ge=0,
        le=limits.REQUEST_DEPTH_MAX,
        description=f"a depth is a whole number from 0 to {limits.REQUEST_DEPTH_MAX}",
    ),
]
_Budget = Annotated[
    int,
    Meta(
        ge=1,
        le=limits.REQUEST_TOKENS_MAX,
        description=f"a budget is at least one token, and at most {limits.REQUEST_TOKENS_MAX:,}",
    ),
]
_Ancestry = Annotated[
    int,
    Meta(
        ge=0,
        le=limits.SUBPLAN_DEPTH_MAX,
        description=f"a decision is the plan's own (0) or that of an ancestor, up to {limits.SUBPLAN_DEPTH_MAX}",
    ),
]

if TYPE_CHECKING:
    # What may be given; what is there is a tuple.
    _Projects = Sequence[str]
    _Focus = Sequence[str]
    _Kinds = Sequence[str]
    _Preferred = Sequence[str]
    _Decisions = Sequence["DecisionSeen"]
else:
    # A value inside a tuple is refused with the advice of the whole, which therefore has both.
    _Projects = Annotated[
        tuple[ProjectName, ...],
        Meta(
            min_length=1,
            max_length=limits.PROJECTS_PER_SESSION_MAX,
            description=(
                f"give 1 to {limits.PROJECTS_PER_SESSION_MAX} projects, each of 1 to 128 letters, digits, "
                "'.', '_' and '-', in parts separated by '/'"
            ),
        ),
    ]
    _Focus = Annotated[
        tuple[Source, ...],
        Meta(
            max_length=limits.PAGE_ROWS_MAX,
            description=f"give at most {limits.PAGE_ROWS_MAX} ids or sources, each of at most 4096 characters",
        ),
    ]
    _Kinds = Annotated[
        tuple[Label, ...],
        Meta(
            max_length=limits.PAGE_ROWS_MAX,
            description=f"give at most {limits.PAGE_ROWS_MAX} kinds, each of 1 to 64 letters, digits and '._/:-'",
        ),
    ]
    _Preferred = Annotated[
        tuple[StrategyName, ...],
        Meta(
            max_length=limits.STRATEGIES_MAX,
            description=f"give at most {limits.STRATEGIES_MAX} names, each of lower case letters, digits and '-'",
        ),
    ]

    _Decisions = Annotated[
        tuple["DecisionSeen", ...],
        Meta(
            max_length=limits.DECISIONS_SEEN_MAX,
            description=f"give at most {limits.DECISIONS_SEEN_MAX} decisions: `PlanSeen.bounded` takes the nearest",
        ),
    ]

_Moment = Annotated[int, Meta(ge=0, description="a moment is in milliseconds since 1970")]


@checked
class DecisionSeen(Struct, frozen=True, array_like=True):
    """A decision that still stands, of a plan or of one of its ancestors."""

    decision_id: Identifier
    plan_id: Identifier
    question: Text
    choice: Text
    rationale: Text
    depth: _Ancestry = 0  # how far above: 0 is the plan's own, 1 its parent's

    def __post_init__(self) -> None:
        check(self)

    @property
    def text(self) -> str:
        """All that it says."""
        return f"{self.question}\n{self.choice}\n{self.rationale}"


@checked
class PlanSeen(Struct, frozen=True, array_like=True):
    """What a plan brings along to a question: what was decided, and what its parent has seen."""

    plan_id: Identifier
    phase: Label
    decisions: _Decisions = ()
    skeleton: Text = ""  # the parent's context, compressed

    def __post_init__(self) -> None:
        if not isinstance(self.decisions, tuple):
            force_setattr(self, "decisions", tuple(self.decisions))
        for each in self.decisions:
            require_instance(each, (DecisionSeen,), "decisions are DecisionSeen")
        check(self)
        chars = sum(len(each.text) for each in self.decisions)
        if chars > limits.DECISIONS_SEEN_CHARS_MAX:
            raise InvalidArgument(
                f"decisions have {chars} characters, at most {limits.DECISIONS_SEEN_CHARS_MAX} go with a request: "
                "`PlanSeen.bounded` takes the nearest"
            )

    @classmethod
    def bounded(cls, plan_id: str, phase: str, decisions: Iterable[DecisionSeen], skeleton: str = "") -> PlanSeen:
        """With as many decisions as there is room for: the nearest first, and of one plan's the last that was made.

        They are given in the order of recording, and kept in it.
        """
        given = list(enumerate(decisions))
        kept: list[tuple[int, DecisionSeen]] = []
        chars = 0
        for number, decision in sorted(given, key=lambda pair: (pair[1].depth, -pair[0])):
            needed = chars + len(decision.text)
            if len(kept) < limits.DECISIONS_SEEN_MAX and needed <= limits.DECISIONS_SEEN_CHARS_MAX:
                chars = needed
                kept.append((number, decision))
        seen = tuple(decision for _, decision in sorted(kept, key=lambda pair: pair[0]))
        return cls(plan_id, phase, seen, skeleton[: limits.TEXT_CHARS_MAX])


@checked
class ContextRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody wants to know, and what the answer may cost. Lists are taken for tuples."""

    projects: _Projects
    query: Text = ""
    focus: _Focus = ()  # ids or sources to begin at
    kinds: _Kinds = ()  # none: of every kind
    breadth: _Breadth = 8
    depth: _Depth = 1
    budget_tokens: _Budget = 4_000
    strategies: _Preferred = ()  # those that are preferred
    as_of_ms: _Moment | None = None  # what counts as now; None: when it is asked
    plan: PlanSeen | None = None  # for whose sake it is asked

    def __post_init__(self) -> None:
        require_instance(self.plan, (PlanSeen, type(None)), "plan is a PlanSeen")
        for name in ("projects", "focus", "kinds", "strategies"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise InvalidArgument(f"{name} is a sequence: give [{given!r}]")
            if isinstance(given, Iterable) and not isinstance(given, tuple):
                force_setattr(self, name, tuple(cast("Iterable[object]", given)))
        check(self)


class ScoredFragment(Struct, frozen=True, array_like=True, gc=False):
    """A fragment that a strategy would show, and how much it thinks of it. Higher is better; only the order counts."""

    project: str
    fragment_id: str
    score: float
    tokens: int
    revision: int  # of its body
    reason: str = ""


class StrategyView(Protocol):
    """All fragments of some projects at one revision. `stepwell.View` is one."""

    @property
    def epoch(self) -> str: ...
    @property
    def revision(self) -> int: ...
    @property
    def projects(self) -> tuple[str, ...]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[SeenFragment]: ...
    def rows(self, project: str) -> Sequence[FragmentRow]:
        """What is known of a project's fragments, without their bodies, in order of creation."""
        ...

    def get(self, fragment_id: str, *, project: str | None = None) -> SeenFragment | None:
        """One fragment."""
        ...

    def changes(self, project: str, since: int) -> Changes | None:
        """What happened to a project after a revision of this epoch; None if that cannot be told any more."""
        ...


class SeenFragment(Protocol):
    """A fragment in a view."""

    @property
    def row(self) -> FragmentRow: ...
    @property
    def body(self) -> memoryview: ...
    @property
    def text(self) -> str: ...


class Changes(Protocol):
    """Fragments that are new or different, and the ids of those that are gone."""

    @property
    def stored(self) -> Sequence[SeenFragment]: ...
    @property
    def removed(self) -> frozenset[str]: ...


@runtime_checkable
class Strategy(Protocol):
    """Answers a request with scored fragments."""

    name: str
    capabilities: frozenset[str]

    def can_handle(self, request: ContextRequest, view: StrategyView) -> float:
        """How much it has to say to this, from 0 to 1."""
        ...

    def assemble(self, request: ContextRequest, view: StrategyView, budget_tokens: int) -> Sequence[ScoredFragment]:
        """The fragments that it would show, the best first, in as many tokens or a little more."""
        ...

    def explain(self) -> str:
        """In a sentence or two, what it goes by."""
        ...


@runtime_checkable
class Partitioned(Protocol):
    """What a strategy has, besides, whose work can be shared by several workers."""

    def partition(self, view: StrategyView, part: int, parts: int) -> StrategyView:
        """The share of a view that one worker looks at. Together the shares are the view, and no two overlap."""
        ...

    def merge(
        self, request: ContextRequest, shares: Sequence[Sequence[ScoredFragment]], budget_tokens: int
    ) -> Sequence[ScoredFragment]:
        """What all shares come to; the same, however many there are."""
        ...


class StrategyInfo(Struct, frozen=True, array_like=True):
    """What others have to know of a strategy to ask for it."""

    name: StrategyName
    capabilities: tuple[str, ...]  # sorted
    is_partitioned: bool  # its work can be shared by several workers
