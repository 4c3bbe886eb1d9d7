"""Questions about a store in memory: what strategies would have said, written down."""

from collections.abc import Mapping, Sequence

from stepwell.assembly.answer import Answer
from stepwell.assembly.components import named
from stepwell.assembly.pipeline import assemble
from stepwell.assembly.question import Failure, Question
from stepwell.client.tokens import counter
from stepwell.strategies.base import ContextRequest, ScoredFragment, StrategyView
from stepwell.strategies.work import StrategyResult
from tests.unit.strategies.support import Store

_counter = counter()


def count(text: str) -> int:
    """As a client counts: no text is no tokens."""
    return _counter.count(text.encode()) if text else 0


def request(query: str = "what", *, budget_tokens: int = 200, **fields: object) -> ContextRequest:
    given: dict[str, object] = {"projects": ["p"], "query": query, "budget_tokens": budget_tokens, **fields}
    return ContextRequest(**given)  # what is malformed is refused


def result(
    strategy: str, scores: Mapping[str, float], *, confidence: float = 1.0, seconds: float = 0.0, project: str = "p"
) -> StrategyResult:
    fragments = tuple(ScoredFragment(project, fragment_id, score, 1, 1) for fragment_id, score in scores.items())
    return StrategyResult(strategy, fragments, 1, confidence, f"{strategy} explained", seconds)


def answer(
    view: StrategyView,
    *results: StrategyResult,
    asked: ContextRequest | None = None,
    failures: Sequence[Failure] = (),
    components: Mapping[str, str] | None = None,
) -> Answer:
    question = Question(asked or request(), view, results, count, tuple(failures))
    found = assemble(question, named(components or {}))
    assert count(found.render()) == found.total_tokens <= found.budget_tokens
    return found


def ids(found: Answer) -> list[str]:
    return [each.fragment_id for each in found.fragments]


def stored(store: Store, fragment_id: str, body: str, **fields: object) -> None:
    """With the tokens that it has."""
    metadata = {key: str(fields.pop(key)) for key in ("order", "lines", "name", "speaker") if key in fields}
    given = {"source": "s", "kind": "turn", **{key: str(each) for key, each in fields.items()}}
    store.store(fragment_id, body, tokens=count(body), metadata=metadata, **given)


def meeting(turns: int = 12) -> Store:
    """Turns of two speakers, each about another number."""
    store = Store()
    for number in range(turns):
        speaker = "Project Manager" if number % 2 else "Ada"
        stored(store, f"t{number}", f"this is about number {number} and nothing else .", order=number, speaker=speaker)
    return store
