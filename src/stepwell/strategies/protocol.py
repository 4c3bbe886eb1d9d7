"""The types of a strategy: its request, the view that it looks at, and the scored fragments that it returns.

A strategy is a pure function of a request and a view. It runs in a worker process, on the state at one revision. It may
keep what it has computed for the next request: a worker has one instance of each strategy, and gives it one request at
a time. Nothing that a strategy does can change the state or reach another worker.

Requests are frozen Structs that check themselves, so a `ContextRequest` that exists is valid, in the program that made
it and in the worker that decoded it. Views, fragments and strategies are `Protocol`s: `stepwell.View` is a view, and so
is the in-memory view of a test.
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
from stepwell.text import brief_repr

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
_StopScore = Annotated[
    float,
    Meta(ge=0, le=1, description="a stop score is a part of the best score, from 0 (no stop) to 1"),
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
    # A caller may pass any sequence; `__post_init__` stores a tuple.
    _Projects = Sequence[str]
    _Focus = Sequence[str]
    _Kinds = Sequence[str]
    _Preferred = Sequence[str]
    _Decisions = Sequence["DecisionSeen"]
else:
    # msgspec refuses an element with the description of the whole tuple. So each description gives the bounds of both.
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
            description=f"give at most {limits.STRATEGIES_MAX} names, each of lower case letters, digits, '-' and '_'",
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
    """A decision that still stands, of a plan or of one of its ancestors.

    `depth` says how far above the plan it was made: 0 is the plan's own decision, 1 that of its parent.
    """

    decision_id: Identifier
    plan_id: Identifier
    question: Text
    choice: Text
    rationale: Text
    depth: _Ancestry = 0

    __repr__ = brief_repr

    def __post_init__(self) -> None:
        check(self)

    @property
    def text(self) -> str:
        """The question, the choice and the rationale, one to a line."""
        return f"{self.question}\n{self.choice}\n{self.rationale}"


@checked
class PlanSeen(Struct, frozen=True, array_like=True):
    """The part of a plan that goes with a request: its decisions, and the compressed context of its parent.

    The decisions are bounded in number and in characters, because a request has to fit into a task. `bounded` makes a
    value that fits; the constructor raises `InvalidArgument`.
    """

    plan_id: Identifier
    phase: Label
    decisions: _Decisions = ()
    skeleton: Text = ""

    __repr__ = brief_repr

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
        """Return a value with as many of the decisions as there is room for.

        The decisions of nearer plans come first, and of one plan the latest ones. The result keeps the order in which
        they are given, which is the order of recording.
        """
        numbered = list(enumerate(decisions))
        chosen: list[tuple[int, DecisionSeen]] = []
        chars = 0
        for number, decision in sorted(numbered, key=lambda pair: (pair[1].depth, -pair[0])):
            needed = chars + len(decision.text)
            if len(chosen) < limits.DECISIONS_SEEN_MAX and needed <= limits.DECISIONS_SEEN_CHARS_MAX:
                chars = needed
                chosen.append((number, decision))
        seen = tuple(decision for _, decision in sorted(chosen, key=lambda pair: pair[0]))
        return cls(plan_id, phase, seen, skeleton[: limits.TEXT_CHARS_MAX])


@checked
class ContextRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question to strategies, and the budget of the answer. Any sequence is accepted where a tuple is stored.

    - `focus`: ids or sources to start from.
    - `kinds`: the kinds of fragments to show; none means all but listings of files.
    - `breadth`, `depth`: how far the graph strategy follows references and neighbours.
    - `strategies`: the preferred strategies; none means all that are offered.
    - `as_of_ms`: the moment that counts as now; None means the latest write that the view has.
    - `plan`: the plan for which the question is asked.
    - `stop_score`: matches with less than this part of the best score are not shown, nor is anything that is no match,
      even if there is room. Turns of a conversation are shown as long as there is room. With 0 the budget is filled.
    """

    projects: _Projects
    query: Text = ""
    focus: _Focus = ()
    kinds: _Kinds = ()
    breadth: _Breadth = 8
    depth: _Depth = 1
    budget_tokens: _Budget = 4_000
    strategies: _Preferred = ()
    as_of_ms: _Moment | None = None
    plan: PlanSeen | None = None
    stop_score: _StopScore = limits.STOP_SCORE

    __repr__ = brief_repr

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
    """A fragment that a strategy would show, with its score.

    A higher score is better, and any finite number is allowed. The scale is the strategy's own: the fusion stretches
    the scores of one result to a range from about 0 to 1, in which the best has 1. So their distances count, and their
    size does not. How much the strategy counts beside others follows from `can_handle` and `capabilities`, and not from
    its scores.

    `tokens` and `revision` are those of the body that the strategy saw. `reason` says in a few words why the fragment
    was chosen.
    """

    project: str
    fragment_id: str
    score: float
    tokens: int
    revision: int
    reason: str = ""


class StrategyView(Protocol):
    """All fragments of some projects at one revision. `stepwell.View` implements it.

    A view is immutable. Rows are in memory; a body is read when it is asked for, and raises `BodyGone` if it was
    deleted since.
    """

    @property
    def epoch(self) -> str:
        """The name of the state's history. Revisions of different epochs cannot be compared."""
        ...

    @property
    def revision(self) -> int: ...
    @property
    def projects(self) -> tuple[str, ...]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[SeenFragment]:
        """Iterate over all fragments, project by project, in order of creation."""
        ...

    def rows(self, project: str) -> Sequence[FragmentRow]:
        """Return the rows of a project's fragments, without their bodies, in order of creation."""
        ...

    def get(self, fragment_id: str, *, project: str | None = None) -> SeenFragment | None:
        """Return one fragment, or None if the view has none of that id.

        `project` may be left out in a view of exactly one project.
        """
        ...

    def changes(self, project: str, since: int) -> Changes | None:
        """Return what changed in a project after a revision of this epoch.

        None means that the view cannot tell, because the revision is too old; the caller then compares all rows.
        """
        ...


class SeenFragment(Protocol):
    """A fragment in a view: its row, and its body, which is read on demand.

    `body` raises `BodyGone` if the body was deleted after the view was opened. `text` also raises `UnicodeDecodeError`
    if the body is not UTF-8.
    """

    @property
    def row(self) -> FragmentRow: ...
    @property
    def body(self) -> memoryview: ...
    @property
    def text(self) -> str: ...


class Changes(Protocol):
    """The difference between two revisions of a project: fragments that are new or changed, and the ids of deleted
    ones.
    """

    @property
    def stored(self) -> Sequence[SeenFragment]: ...
    @property
    def removed(self) -> frozenset[str]: ...


@runtime_checkable
class Strategy(Protocol):
    """A strategy: ranks the fragments of a view for a request.

    `name` is 1 to 64 lower case letters, digits, hyphens and underscores. `capabilities` says which parts of a request
    the strategy looks at. Together with `can_handle` it decides the weight of the strategy in an answer:

    | capabilities | weight beside other strategies |
    |---|---|
    | one of "query", "focus" and "plan" | what `can_handle` returns |
    | only others | next to none if something is asked: the strategy orders what no other one names |
    | none | what `can_handle` returns, and together at most a quarter of the strongest strategy of the first row |
    """

    name: str
    capabilities: frozenset[str]

    def can_handle(self, request: ContextRequest, view: StrategyView) -> float:
        """Return how much the strategy has to say to this request, from 0 (nothing) to 1."""
        ...

    def assemble(self, request: ContextRequest, view: StrategyView, budget_tokens: int) -> Sequence[ScoredFragment]:
        """Return the fragments that the strategy would show, the best first.

        They have about `budget_tokens` tokens together. A little more is useful, because other strategies name some of
        the same fragments: see `ranking.fill_budget`.
        """
        ...

    def explain(self) -> str:
        """Return a sentence or two on how the strategy ranks."""
        ...


@runtime_checkable
class Partitioned(Protocol):
    """The two further methods of a strategy whose work can be divided among several workers.

    The client sends one task for each share to any free worker, and then one task that merges the results.
    """

    def partition(self, view: StrategyView, part: int, parts: int) -> StrategyView:
        """Return the share of a view that one worker looks at.

        The shares are disjoint, and together they are the view.
        """
        ...

    def merge(
        self, request: ContextRequest, shares: Sequence[Sequence[ScoredFragment]], budget_tokens: int
    ) -> Sequence[ScoredFragment]:
        """Return the result for the whole view from the results for its shares; the same, however many there are."""
        ...


class StrategyInfo(Struct, frozen=True, array_like=True):
    """The description of a strategy that workers publish, and clients choose by. `capabilities` is sorted."""

    name: StrategyName
    capabilities: tuple[str, ...]
    is_partitioned: bool
