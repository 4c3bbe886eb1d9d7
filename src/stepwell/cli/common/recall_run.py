"""The recall of answers: documents and questions in, the share of the evidence that is in each answer out.

All strategies are asked once for a question, and the answers at all budgets are made from their rankings. Such an
answer is the same as that of `Client.assemble`: the ranking of a strategy does not depend on the budget, which only
says how much of it is returned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, cast

from msgspec import Struct
from msgspec.structs import replace

from stepwell import limits
from stepwell.assembly import components, pipeline
from stepwell.assembly.answer import Answer
from stepwell.assembly.components import SINGLE_STRATEGY
from stepwell.assembly.evaluation import Document, EvaluationData, EvaluationQuestion, Recall, mean, recall, recall_of
from stepwell.assembly.inputs import AssemblyInputs
from stepwell.assembly.stages.allocate import candidate_tokens
from stepwell.cli.common import progress_bar
from stepwell.client.api.views import View
from stepwell.client.client import Client
from stepwell.client.workflows.assemble import failures_of, info_of
from stepwell.client.workflows.strategy_executor import DefaultStrategyExecutor
from stepwell.domain.tiers.model import Fragment
from stepwell.domain.tiers.source_outline import Outline
from stepwell.strategies.index.words.plain_bm25 import PlainBm25
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import ContextRequest, StrategyView
from stepwell.strategies.ranking import fill_budget

FUSION: Final = "fusion"
"""The name of the row that has all strategies combined, as `stepwell assemble` combines them."""
FLOOR: Final = "bm25"
"""The name of the row that has plain BM25 over whole documents: no strategy should be below it."""


class AskedQuestion:
    """A question with the rankings of all strategies. Answers can be made from it in any number, by one thread."""

    def __init__(self, inputs: AssemblyInputs) -> None:
        self._inputs: Final = inputs

    @property
    def failures(self) -> dict[str, str]:
        """The strategies that failed, each with its message."""
        return {each.strategy: each.message for each in self._inputs.failures}

    def answer(self, strategies: Collection[str], budget_tokens: int, stages: Mapping[str, str]) -> Answer:
        """Return the answer of some of the strategies, at a budget that is not larger than that of the question."""
        inputs = self._inputs
        results = [_cut(each, budget_tokens) for each in inputs.results if each.strategy in strategies]
        failures = [each for each in inputs.failures if each.strategy in strategies]
        cut = replace(
            inputs,
            request=replace(inputs.request, budget_tokens=budget_tokens),
            results=tuple(results),
            failures=tuple(failures),
        )
        return pipeline.assemble(cut, components.named(stages))


class Evaluation:
    """Asks questions for one client, which owns it. Any number of threads may use it."""

    def __init__(self, client: Client) -> None:
        self._client: Final = client
        self._executor: Final = DefaultStrategyExecutor(client)
        self._offers: Final = tuple(map(info_of, client.strategies.list().offers))

    def ask(self, request: ContextRequest, strategies: Collection[str], view: View) -> AskedQuestion:
        """Ask each strategy once, for as much as the largest budget needs. The budget of the request is that budget."""
        budgets = dict.fromkeys(strategies, candidate_tokens(request.budget_tokens))
        execution, seen = self._executor.observe(request, tuple(strategies), budgets=budgets, view=view)
        return AskedQuestion(
            AssemblyInputs(
                request,
                cast("StrategyView", seen),
                tuple(execution.results.values()),
                self._count,
                failures_of(execution),
                self._offers,
            )
        )

    def _count(self, text: str) -> int:
        return self._client.session.count_tokens(text.encode()) if text else 0


def _cut(result: StrategyResult, budget_tokens: int) -> StrategyResult:
    """Return the part of a result that the strategy would have returned for a smaller budget."""
    return replace(result, fragments=fill_budget(result.fragments, candidate_tokens(budget_tokens)))


class RecallMeasurement(Struct, frozen=True):
    """The mean recall for each row and budget, and the last failure of each strategy."""

    recalls: Mapping[str, Mapping[int, Recall]]
    failures: Mapping[str, str]


def store_documents(client: Client, data: EvaluationData) -> None:
    """Store all documents. One without a declared order has its position in the file."""
    client.tiers.store_many(map(_fragment, _documents(data)))


def _documents(data: EvaluationData) -> Iterator[tuple[int, Document]]:
    """Iterate over all documents, each with its position among the documents of its project."""
    for documents in data.documents.values():
        yield from enumerate(documents)


def _fragment(placed: tuple[int, Document]) -> Fragment:
    """Return the fragment of a document."""
    place, document = placed
    outline = Outline(order=place if document.order is None else document.order, speaker=document.speaker)
    return Fragment(
        fragment_id=document.id,
        project=document.project,
        source=document.source or document.project,
        kind=document.kind,
        body=document.text,
        metadata=outline.metadata(),
    )


def measure_recall(
    client: Client, data: EvaluationData, names: Sequence[str], budgets: Sequence[int]
) -> RecallMeasurement:
    """Ask every question, and return the mean recalls of plain BM25, of each strategy alone and of all together.

    Several questions are asked at once, in threads, so that no worker waits for the next one. The results come in
    order.
    """
    found: dict[str, dict[int, list[Recall]]] = {
        name: {each: [] for each in budgets} for name in (FLOOR, *names, FUSION)
    }
    failures: dict[str, str] = {}
    asker = _Asker(client, data, names, budgets)
    with progress_bar.count_bar("asking") as advance, ThreadPoolExecutor(limits.EVALUATION_THREADS) as threads:
        for done, (recalls, failed) in enumerate(threads.map(asker.ask, data.questions), 1):
            advance(done, len(data.questions), "")
            for (name, budget), recalled in recalls.items():
                found[name][budget].append(recalled)
            # The last failure of a strategy stands for all of them: they are mostly the same, once for each question.
            failures.update(failed)
    means = {name: {budget: mean(each) for budget, each in by_budget.items()} for name, by_budget in found.items()}
    return RecallMeasurement(means, dict(sorted(failures.items())))


class _Asker:
    """Asks questions. Safe to be used from several threads, because a client is."""

    def __init__(self, client: Client, data: EvaluationData, names: Sequence[str], budgets: Sequence[int]) -> None:
        self._client: Final = client
        self._evaluation: Final = Evaluation(client)
        self._names: Final = names
        self._budgets: Final = budgets
        self._documents: Final = data.documents
        self._floors: Final = {
            project: PlainBm25([each.text for each in documents]) for project, documents in data.documents.items()
        }

    def ask(self, question: EvaluationQuestion) -> tuple[dict[tuple[str, int], Recall], dict[str, str]]:
        """Return the recall of the evidence by row and budget, and the failures.

        All rows read the same view, so that they are compared on the same state.
        """
        view = self._client.view([question.project])
        tokens = _tokens(view, question)
        request = ContextRequest(projects=[question.project], query=question.query, budget_tokens=max(self._budgets))
        asked = self._evaluation.ask(request, self._names, view)
        found: dict[tuple[str, int], Recall] = {}
        for budget in self._budgets:
            found[FLOOR, budget] = recall_of(self._floor(question, view, budget), question.evidence, tokens)
            for name in self._names:
                answer = asked.answer([name], budget, SINGLE_STRATEGY)
                found[name, budget] = recall(answer, question.evidence, tokens)
            found[FUSION, budget] = recall(asked.answer(self._names, budget, {}), question.evidence, tokens)
        return found, asked.failures

    def _floor(self, question: EvaluationQuestion, view: View, budget: int) -> set[str]:
        """Return the documents that plain BM25 ranks highest, as many as fit, without any text around them."""
        documents = self._documents[question.project]
        shown: set[str] = set()
        for place in self._floors[question.project].ranking(question.query):
            fragment = view.get(documents[place].id, project=question.project)
            if fragment is not None and fragment.row.tokens <= budget:
                budget -= fragment.row.tokens
                shown.add(documents[place].id)
        return shown


def _tokens(view: View, question: EvaluationQuestion) -> dict[str, int]:
    """Return the tokens of each document of the evidence that is stored, for the recall by tokens."""
    found = {each: view.get(each, project=question.project) for each in question.evidence}
    return {each: fragment.row.tokens for each, fragment in found.items() if fragment is not None}
