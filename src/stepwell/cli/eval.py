"""`stepwell eval`: how much of the evidence for given questions is in the answers, for each strategy and for all."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from rich import box
from rich.table import Table
from rich.text import Text

from stepwell.assembly.components import SINGLE_STRATEGY
from stepwell.assembly.evaluation import Document, EvaluationData, EvaluationQuestion, Recall, mean, parse, recall
from stepwell.cli.common import progress_bar
from stepwell.cli.common.output import print_error, results
from stepwell.cli.workers import count
from stepwell.client.api.views import View
from stepwell.client.client import Client
from stepwell.domain.tiers.model import Fragment
from stepwell.domain.tiers.source_outline import Outline
from stepwell.errors import InvalidArgument, NotFound
from stepwell.runtime import Runtime
from stepwell.strategies.protocol import ContextRequest

SUMMARY: Final = "Measure how much of the evidence for questions is found"
FUSION: Final = "fusion"

_FORMAT: Final = """\
the data, a JSON object to a line:
  {"type": "document", "project": "p", "id": "1", "text": "..."}
      and optionally "speaker", "order" (its place in its source, from 0), "source" (default: the project)
      and "kind" (default: turn)
  {"type": "question", "project": "p", "id": "q1", "query": "...", "evidence": ["1"]}
      with the ids of the documents that answer it

Recall is the part of the evidence that is in an answer as it is, by tokens and by count, each question counting the
same. A strategy alone is what it ranks highest; the fusion is what `stepwell assemble` gives.
"""


class _Measured(Struct, frozen=True):
    """The recall of each way of asking, at each budget."""

    recalls: Mapping[str, Mapping[int, Recall]]
    failures: Mapping[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _FORMAT
    parser.add_argument("data", type=Path, metavar="DATA.jsonl")
    parser.add_argument(
        "--budgets", type=_budgets, default=(512, 1024, 2048, 4096), metavar="N,N", help="(default: 512,1024,2048,4096)"
    )
    parser.add_argument("--strategies", nargs="+", metavar="NAME", help="(default: all that there are)")
    parser.add_argument("--workers", type=count, metavar="N", help="(default: one for each core)")
    parser.add_argument("--json", action="store_true", help="one JSON object, for machines")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 1 if a strategy failed."""
    data = _read(arguments.data)
    with Runtime.start(workers=arguments.workers) as runtime, runtime.client() as client:
        names = _names(client, arguments.strategies)
        client.tiers.store_many(map(_fragment, _documents(data)))
        measured = _measured(client, data, names, arguments.budgets)
    if arguments.json:
        sys.stdout.write(f"{msgspec.json.encode(_facts(data, measured)).decode()}\n")
    else:
        results().print(_table(data, measured))
    for name, message in measured.failures.items():
        print_error(f"{name}: {message}")
    return 1 if measured.failures else 0


def _budgets(text: str) -> tuple[int, ...]:
    """Numbers of tokens, separated by commas."""
    try:
        budgets = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers: give for instance 512,1024") from None
    if min(budgets) < 1:
        raise argparse.ArgumentTypeError("a budget is at least one token")
    return budgets


def _read(path: Path) -> EvaluationData:
    try:
        with path.open("rb") as lines:
            return parse(lines)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from error
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error.message}") from None


def _names(client: Client, given: Sequence[str] | None) -> tuple[str, ...]:
    offered = tuple(sorted(each.name for each in client.strategies.list().offers))
    for name in given or ():
        if name not in offered:
            raise NotFound(f"there is no strategy {name!r}: there are {', '.join(offered) or 'none'}")
    return tuple(dict.fromkeys(given or offered))


def _documents(data: EvaluationData) -> Iterator[tuple[int, Document]]:
    for documents in data.documents.values():
        yield from enumerate(documents)


def _fragment(placed: tuple[int, Document]) -> Fragment:
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


def _measured(client: Client, data: EvaluationData, names: Sequence[str], budgets: Sequence[int]) -> _Measured:
    """Several questions are under way at once, so that no worker waits for us."""
    found: dict[str, dict[int, list[Recall]]] = {name: {each: [] for each in budgets} for name in (*names, FUSION)}
    failures: dict[str, str] = {}
    asking = _Asking(client, names, budgets)
    with progress_bar.reading("asking") as advance, ThreadPoolExecutor(max_workers=4) as threads:
        for done, answers in enumerate(threads.map(asking.ask, data.questions), 1):
            advance(done, len(data.questions), "")
            for (name, budget), (recalled, failed) in answers.items():
                found[name][budget].append(recalled)
                failures.update(failed)
    recalls = {name: {budget: mean(each) for budget, each in by_budget.items()} for name, by_budget in found.items()}
    return _Measured(recalls, dict(sorted(failures.items())))


class _Way(Struct, frozen=True):
    """A way of asking: which strategies, and by which pipeline."""

    name: str
    strategies: tuple[str, ...]
    components: Mapping[str, str]


class _Asking:
    """Asks each question in every way."""

    def __init__(self, client: Client, names: Sequence[str], budgets: Sequence[int]) -> None:
        self._client: Final = client
        self._ways: Final = [*(_Way(name, (name,), SINGLE_STRATEGY) for name in names), _Way(FUSION, tuple(names), {})]
        self._budgets: Final = budgets

    def ask(self, question: EvaluationQuestion) -> dict[tuple[str, int], tuple[Recall, dict[str, str]]]:
        """By way and budget: how much of the evidence was found, and what failed."""
        view = self._client.view([question.project])
        tokens = _tokens(view, question)
        found: dict[tuple[str, int], tuple[Recall, dict[str, str]]] = {}
        for way in self._ways:
            for budget in self._budgets:
                request = ContextRequest(projects=[question.project], query=question.query, budget_tokens=budget)
                answer = self._client.assemble(
                    request, strategies=way.strategies, view=view, components=way.components, keep_receipt=False
                )
                failed = {each.strategy: each.message for each in answer.failures}
                found[way.name, budget] = recall(answer, question.evidence, tokens), failed
        return found


def _tokens(view: View, question: EvaluationQuestion) -> dict[str, int]:
    found = {each: view.get(each, project=question.project) for each in question.evidence}
    return {each: fragment.row.tokens for each, fragment in found.items() if fragment is not None}


def _facts(data: EvaluationData, measured: _Measured) -> dict[str, object]:
    return {
        "projects": len(data.documents),
        "documents": sum(map(len, data.documents.values())),
        "questions": len(data.questions),
        "recall": {
            name: {str(budget): msgspec.structs.asdict(each) for budget, each in by_budget.items()}
            for name, by_budget in measured.recalls.items()
        },
        "failures": measured.failures,
    }


def _table(data: EvaluationData, measured: _Measured) -> Table:
    documents = sum(map(len, data.documents.values()))
    table = Table(
        title=f"% of evidence found, by tokens (by count): {len(data.questions):,} questions, {documents:,} documents",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("strategy")
    for budget in measured.recalls[FUSION]:
        table.add_column(f"{budget:,} tokens", justify="right")
    for name, by_budget in measured.recalls.items():
        cells = [f"{100 * each.by_tokens:.1f} ({100 * each.by_count:.1f})" for each in by_budget.values()]
        table.add_row(Text(name, style="bold" if name == FUSION else ""), *cells)
    return table
