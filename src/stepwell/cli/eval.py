"""`stepwell eval DATA.jsonl`: measure how much of the evidence for questions is in the answers.

The file has documents and questions, and for each question the ids of the documents that answer it. The command stores
the documents in a manager of its own, asks every question at each budget, once with each strategy alone and once with
all of them combined (`fusion`), and prints a table of recall: the part of the evidence that is in the answer, by tokens
and by count. It shows whether a change of a strategy, or of the pipeline, makes answers better.

The exit code is 1 if a strategy failed at a question; the table is printed nevertheless.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Struct
from rich import box
from rich.table import Table
from rich.text import Text

from stepwell import limits
from stepwell.assembly.components import SINGLE_STRATEGY
from stepwell.assembly.evaluation import Document, EvaluationData, EvaluationQuestion, Recall, mean, parse, recall
from stepwell.cli.common import progress_bar
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.output import print_error, print_struct, result_console
from stepwell.cli.common.parameters import JsonFlag, argument, option
from stepwell.cli.common.worker_options import workers_option
from stepwell.client.api.views import View
from stepwell.client.client import Client
from stepwell.domain.tiers.model import Fragment
from stepwell.domain.tiers.source_outline import Outline
from stepwell.errors import InvalidArgument, NotFound
from stepwell.runtime import Runtime
from stepwell.strategies.protocol import ContextRequest
from stepwell.text import plural

app: Final = command_app()

FUSION: Final = "fusion"
"""The name of the row that has all strategies combined, as `stepwell assemble` combines them."""

_FORMAT: Final = """\
\b
The data, a JSON object to a line:
  {"type": "document", "project": "p", "id": "1", "text": "..."}
      and optionally "speaker", "order" (its place in its source, from 0),
      "source" (default: the project) and "kind" (default: turn)
  {"type": "question", "project": "p", "id": "q1", "query": "...", "evidence": ["1"]}
      with the ids of the documents that answer it

Recall is the part of the evidence that is in an answer as it is, by tokens and by count, each question counting the
same. A strategy alone is what it ranks highest; the fusion is what `stepwell assemble` gives.
"""


class _Measurement(Struct, frozen=True):
    """The mean recall for each mode and budget, and the last failure of each strategy."""

    recalls: Mapping[str, Mapping[int, Recall]]
    failures: Mapping[str, str]


@app.command(cls=ShellCommand, epilog=_FORMAT)
def run(
    *,
    data: Annotated[Path, argument("DATA.jsonl", "documents and questions", parse=Path)],
    budgets: Annotated[
        str, option("--budgets", metavar="N,N", about="budgets to ask at, in tokens")
    ] = "512,1024,2048,4096",
    strategies: Annotated[
        list[str] | None,
        option("--strategies", metavar="NAME...", about="one or more strategies (default: all that there are)"),
    ] = None,
    workers: Annotated[int | None, workers_option("worker processes (default: one for each core)")] = None,
    json: JsonFlag = False,
) -> int:
    """Every question is asked at each budget, once with each strategy alone and once with all of them combined. The
    exit code is 1 if a strategy failed at a question; the table is printed nevertheless.
    """
    sizes = _budgets(budgets)
    evaluation = _read(data)
    # The manager ends with the command, and nothing is kept.
    with Runtime.start(workers=workers) as runtime, runtime.client() as client:
        names = _strategy_names(client, strategies)
        # The names are checked before the documents are stored, because storing takes the longest.
        client.tiers.store_many(map(_fragment, _documents(evaluation)))
        measured = _measure(client, evaluation, names, sizes)
    if json:
        print_struct(_json_object(evaluation, measured))
    else:
        result_console().print(_table(evaluation, measured))
    for name, message in measured.failures.items():
        print_error(f"{name}: {message}")
    return 1 if measured.failures else 0


def _budgets(text: str) -> tuple[int, ...]:
    """Return the numbers of tokens of a list such as 512,1024, without duplicates."""
    try:
        budgets = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise InvalidArgument(f"--budgets {text!r} is no list of numbers: give for instance 512,1024") from None
    if min(budgets) < 1:
        raise InvalidArgument(f"--budgets {text!r}: a budget is at least one token")
    return budgets


def _read(path: Path) -> EvaluationData:
    """Return the data of the file. Errors name the file, and where possible the line."""
    try:
        with path.open("rb") as lines:
            return parse(lines)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from error
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error.message}") from None


def _strategy_names(client: Client, given: Sequence[str] | None) -> tuple[str, ...]:
    """Return the strategies to measure: those given, or all that the workers offer. Raise `NotFound` for an unknown
    one.
    """
    found = client.strategies.list()
    offered = tuple(sorted(each.name for each in found.offers))
    not_loaded = {each.name: f"it could not be loaded, {each}" for each in found.problems}
    for name in given or ():
        if name not in offered:
            why = not_loaded.get(name) or f"there are {', '.join(offered) or 'none'}"
            raise NotFound(f"there is no strategy {name!r}: {why}")
    return tuple(dict.fromkeys(given or offered))


def _documents(data: EvaluationData) -> Iterator[tuple[int, Document]]:
    """Iterate over all documents, each with its position among the documents of its project."""
    for documents in data.documents.values():
        yield from enumerate(documents)


def _fragment(placed: tuple[int, Document]) -> Fragment:
    """Return the fragment of a document. Its place in the source is its order in the file, unless the document says
    another.
    """
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


def _measure(client: Client, data: EvaluationData, names: Sequence[str], budgets: Sequence[int]) -> _Measurement:
    """Ask every question in every mode and return the mean recalls.

    Several questions are asked at once, in threads, so that no worker waits for the next one. The results come in
    order.
    """
    found: dict[str, dict[int, list[Recall]]] = {name: {each: [] for each in budgets} for name in (*names, FUSION)}
    failures: dict[str, str] = {}
    evaluator = _Evaluator(client, names, budgets)
    with progress_bar.count_bar("asking") as advance, ThreadPoolExecutor(limits.EVALUATION_THREADS) as threads:
        for done, answers in enumerate(threads.map(evaluator.ask, data.questions), 1):
            advance(done, len(data.questions), "")
            for (name, budget), (recalled, failed) in answers.items():
                found[name][budget].append(recalled)
                # The last failure of a strategy stands for all of them: they are mostly the same, once for each
                # question.
                failures.update(failed)
    recalls = {name: {budget: mean(each) for budget, each in by_budget.items()} for name, by_budget in found.items()}
    return _Measurement(recalls, dict(sorted(failures.items())))


class _QueryMode(Struct, frozen=True):
    """One mode of asking: a strategy alone with a pipeline that only ranks and cuts, or all strategies with the full
    one.
    """

    name: str
    strategies: tuple[str, ...]
    components: Mapping[str, str]


class _Evaluator:
    """Asks each question in every mode, at every budget. Safe to be used from several threads, because a client is."""

    def __init__(self, client: Client, names: Sequence[str], budgets: Sequence[int]) -> None:
        self._client: Final = client
        self._modes: Final = [
            *(_QueryMode(name, (name,), SINGLE_STRATEGY) for name in names),
            _QueryMode(FUSION, tuple(names), {}),
        ]
        self._budgets: Final = budgets

    def ask(self, question: EvaluationQuestion) -> dict[tuple[str, int], tuple[Recall, dict[str, str]]]:
        """Return, by mode and budget, the recall of the evidence and the failures.

        All modes and budgets of one question read the same view, so that they are compared on the same state.
        """
        view = self._client.view([question.project])
        tokens = _tokens(view, question)
        found: dict[tuple[str, int], tuple[Recall, dict[str, str]]] = {}
        for mode in self._modes:
            for budget in self._budgets:
                request = ContextRequest(projects=[question.project], query=question.query, budget_tokens=budget)
                answer = self._client.assemble(
                    request, strategies=mode.strategies, view=view, components=mode.components, keep_receipt=False
                )
                failed = {each.strategy: each.message for each in answer.failures}
                found[mode.name, budget] = recall(answer, question.evidence, tokens), failed
        return found


def _tokens(view: View, question: EvaluationQuestion) -> dict[str, int]:
    """Return the tokens of each document of the evidence that is stored, for the recall by tokens."""
    found = {each: view.get(each, project=question.project) for each in question.evidence}
    return {each: fragment.row.tokens for each, fragment in found.items() if fragment is not None}


def _json_object(data: EvaluationData, measured: _Measurement) -> dict[str, object]:
    """Return the object for `--json`. Budgets are strings there, because JSON has no other keys."""
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


def _table(data: EvaluationData, measured: _Measurement) -> Table:
    """Return a table with a row for each mode and a column for each budget; the combined row is bold."""
    documents = sum(map(len, data.documents.values()))
    table = Table(
        title="% of evidence found, by tokens (by count): "
        f"{plural(len(data.questions), 'question')}, {plural(documents, 'document')}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("strategy")
    for budget in measured.recalls[FUSION]:
        table.add_column(plural(budget, "token"), justify="right")
    for name, by_budget in measured.recalls.items():
        cells = [f"{100 * each.by_tokens:.1f} ({100 * each.by_count:.1f})" for each in by_budget.values()]
        table.add_row(Text(name, style="bold" if name == FUSION else ""), *cells)
    return table
