"""`stepwell eval DATA.jsonl`: measure how much of the evidence for questions is in the answers.

The file has documents and questions, and for each question the ids of the documents that answer it. The command stores
the documents in a manager of its own and asks every strategy every question once. From the rankings it makes the
answers at each budget, with each strategy alone and with all of them combined (`fusion`), and prints a table of recall:
the part of the evidence that is in the answer, by tokens and by count. It shows whether a change of a strategy, or of
the pipeline, makes answers better. The row `bm25` is plain BM25 over whole documents, below which nothing should be.

A file of bug reports is measured by the files and functions that their fixes changed, in the sources of `--sources`.

The exit code is 1 if a strategy failed at a question; the table is printed nevertheless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

from stepwell.assembly.evaluation import EvaluationData, parse
from stepwell.assembly.localisation import FILES_AT, BugReport, is_localisation, parse_reports
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.console import result_console
from stepwell.cli.common.localisation_run import LocalisationMeasurement, measure_localisation
from stepwell.cli.common.output import print_error, print_struct
from stepwell.cli.common.parameters import JsonFlag, argument, option
from stepwell.cli.common.recall_run import FUSION, RecallMeasurement, measure_recall, store_documents
from stepwell.cli.common.worker_options import workers_option
from stepwell.client.client import Client
from stepwell.errors import InvalidArgument, NotFound
from stepwell.runtime import Runtime
from stepwell.text import plural

app: Final = command_app()

_FORMAT: Final = """\
\b
The data, a JSON object to a line:
  {"type": "document", "project": "p", "id": "1", "text": "..."}
      and optionally "speaker", "order" (its place in its source, from 0),
      "source" (default: the project) and "kind" (default: turn)
  {"type": "question", "project": "p", "id": "q1", "query": "...", "evidence": ["1"]}
      with the ids of the documents that answer it

or, with --sources, bug reports:
  {"id": "b1", "package": "p", "version": "1.0", "query": "...", "files": ["src/a.py"], "functions": ["f"]}
      with the files that the fix changed, and the functions in them

Recall is the part of the evidence that is in an answer as it is, by tokens and by count, each question counting the
same. A strategy alone is what it ranks highest; the fusion is what `stepwell assemble` gives; bm25 is plain BM25 over
whole documents or files. Of bug reports, the table has the share of answers with a right file among the first 1, 3, 5
and 10 files of code, and with all of a changed function.
"""


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
    sources: Annotated[
        Path | None,
        option(
            "--sources", metavar="DIR", about="of bug reports: PACKAGE-VERSION or PACKAGE-VERSION.tar.gz", parse=Path
        ),
    ] = None,
    workers: Annotated[int | None, workers_option("worker processes (default: one for each core)")] = None,
    json: JsonFlag = False,
) -> int:
    """Every strategy is asked every question once, and the answers at each budget are made from that. The exit code is
    1 if a strategy failed at a question; the table is printed nevertheless.
    """
    sizes = _budgets(budgets)
    given = _read(data)
    if isinstance(given, EvaluationData):
        facts, table, failures = _recall(given, strategies, sizes, workers)
    elif sources is None:
        raise InvalidArgument(f"{data} has bug reports: give the directory of the sources with --sources")
    else:
        facts, table, failures = _localisation(given, sources, strategies, sizes, workers)
    if json:
        print_struct(facts)
    else:
        result_console().print(table)
    for name, message in failures.items():
        print_error(f"{name}: {message}")
    return 1 if failures else 0


_Measured = tuple[dict[str, object], Table, Mapping[str, str]]
"""The object for `--json`, the table, and the failures."""


def _recall(
    data: EvaluationData, strategies: Sequence[str] | None, budgets: Sequence[int], workers: int | None
) -> _Measured:
    """Measure the recall of documents. The manager ends with the command, and nothing is kept."""
    with Runtime.start(workers=workers) as runtime, runtime.client() as client:
        names = _strategy_names(client, strategies)
        # The names are checked before the documents are stored, because storing takes the longest.
        store_documents(client, data)
        measured = measure_recall(client, data, names, budgets)
    return _json_object(data, measured), _table(data, measured), measured.failures


def _localisation(
    reports: Sequence[BugReport],
    sources: Path,
    strategies: Sequence[str] | None,
    budgets: Sequence[int],
    workers: int | None,
) -> _Measured:
    """Measure the localisation of bug reports."""
    with Runtime.start(workers=workers) as runtime, runtime.client() as client:
        names = _strategy_names(client, strategies)
        measured = measure_localisation(client, reports, sources, names, budgets)
    facts: dict[str, object] = {
        "reports": len(reports),
        "localisation": {
            name: {
                str(budget): {"files_at": {str(at): part for at, part in each.files_at.items()}, "bodies": each.bodies}
                for budget, each in by_budget.items()
            }
            for name, by_budget in measured.shares.items()
        },
        "failures": measured.failures,
    }
    return facts, _localisation_table(reports, measured), measured.failures


def _budgets(text: str) -> tuple[int, ...]:
    """Return the numbers of tokens of a list such as 512,1024, without duplicates."""
    try:
        budgets = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise InvalidArgument(f"--budgets {text!r} is no list of numbers: give for instance 512,1024") from None
    if min(budgets) < 1:
        raise InvalidArgument(f"--budgets {text!r}: a budget is at least one token")
    return budgets


def _read(path: Path) -> EvaluationData | list[BugReport]:
    """Return the data of the file: what its first line looks like. Errors name the file, and where possible the
    line.
    """
    try:
        with path.open("rb") as lines:
            first = next((line for line in lines if line.strip()), b"")
            lines.seek(0)
            return parse_reports(lines) if is_localisation(first) else parse(lines)
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


def _json_object(data: EvaluationData, measured: RecallMeasurement) -> dict[str, object]:
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


def _table(data: EvaluationData, measured: RecallMeasurement) -> Table:
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


def _localisation_table(reports: Sequence[BugReport], measured: LocalisationMeasurement) -> Table:
    """Return a table with a row for each mode; the files at the largest budget, and the functions at each."""
    largest = max(measured.shares[FUSION])
    table = Table(
        title=f"% of {plural(len(reports), 'report')} with a right file among the first ones (of {largest:,} tokens), "
        "and with a changed function",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("strategy")
    for at in FILES_AT:
        table.add_column(f"@{at}", justify="right")
    for budget in measured.shares[FUSION]:
        table.add_column(plural(budget, "token"), justify="right")
    for name, by_budget in measured.shares.items():
        files = [f"{100 * each:.0f}" for each in by_budget[largest].files_at.values()]
        bodies = [f"{100 * each.bodies:.0f}" for each in by_budget.values()]
        table.add_row(Text(name, style="bold" if name == FUSION else ""), *files, *bodies)
    return table
