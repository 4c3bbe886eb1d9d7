"""Assemblies of hand-written strategy results on a store in memory."""

from collections.abc import Mapping, Sequence

from stepwell import limits
from stepwell.assembly.answer import Answer
from stepwell.assembly.components import named
from stepwell.assembly.inputs import AssemblyInputs, Failure
from stepwell.assembly.pipeline import assemble
from stepwell.client.session.tokens import counter
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import Outline
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import ContextRequest, PlanSeen, ScoredFragment, StrategyView
from tests.support.strategy_views import Store

_counter = counter()


def count(text: str) -> int:
    """Return the number of tokens as a client counts them: no text is no tokens."""
    return _counter.count(text.encode()) if text else 0


def request(
    query: str = "what",
    *,
    budget_tokens: int = 200,
    projects: Sequence[str] = ("p",),
    kinds: Sequence[str] = (),
    focus: Sequence[str] = (),
    strategies: Sequence[str] = (),
    as_of_ms: int | None = None,
    plan: PlanSeen | None = None,
    stop_score: float = limits.STOP_SCORE,
) -> ContextRequest:
    return ContextRequest(
        projects=projects,
        query=query,
        budget_tokens=budget_tokens,
        stop_score=stop_score,
        kinds=kinds,
        focus=focus,
        strategies=strategies,
        as_of_ms=as_of_ms,
        plan=plan,
    )


def result(
    strategy: str, scores: Mapping[str, float], *, confidence: float = 1.0, seconds: float = 0.0, project: str = "p"
) -> StrategyResult:
    """Return the result of a strategy that gave these scores."""
    fragments = tuple(ScoredFragment(project, fragment_id, score, 1, 1) for fragment_id, score in scores.items())
    return StrategyResult(strategy, fragments, 1, confidence, f"{strategy} explained", seconds)


def answer(
    view: StrategyView,
    *results: StrategyResult,
    asked: ContextRequest | None = None,
    failures: Sequence[Failure] = (),
    components: Mapping[str, str] | None = None,
) -> Answer:
    """Return the answer, after a check that its tokens are exact and within the budget."""
    inputs = AssemblyInputs(asked or request(), view, results, count, tuple(failures))
    found = assemble(inputs, named(components or {}))
    assert count(found.render()) == found.total_tokens <= found.budget_tokens
    return found


def ids(found: Answer) -> list[str]:
    return [each.fragment_id for each in found.fragments]


def stored(
    store: Store,
    fragment_id: str,
    body: str,
    *,
    source: str = "s",
    kind: str = "turn",
    project: str = "p",
    at_ms: int | None = None,
    outline: Outline | None = None,
) -> FragmentRow:
    """Store a fragment with the exact count of its tokens."""
    metadata = outline.metadata() if outline else {}
    return store.store(
        fragment_id,
        body,
        source=source,
        kind=kind,
        project=project,
        at_ms=at_ms,
        tokens=count(body),
        metadata=metadata,
    )


def turn(number: int, speaker: str = "") -> Outline:
    """Return the outline of a turn of a conversation."""
    return Outline(order=number, speaker=speaker)


def meeting(turns: int = 12) -> Store:
    """Return a store with turns of two speakers, each about another number."""
    store = Store()
    for number in range(turns):
        speaker = "Project Manager" if number % 2 else "Ada"
        stored(store, f"t{number}", f"this is about number {number} .", outline=turn(number, speaker))
    return store
