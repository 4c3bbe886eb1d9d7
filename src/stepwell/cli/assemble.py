"""`stepwell assemble`: the best context for a question under a token budget, from a directory or a manager."""

from __future__ import annotations

import argparse
import sys
from typing import Final

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepwell.assembly.answer import Answer
from stepwell.assembly.components import named
from stepwell.assembly.receipt import Receipt
from stepwell.cli.common import progress_bar
from stepwell.cli.common.output import print_error
from stepwell.cli.common.source import Source, add_source, open_source, source_of
from stepwell.client.client import Client
from stepwell.client.workflows.ingest import IngestReport
from stepwell.domain.tiers.source_outline import FILE_KIND
from stepwell.errors import InvalidArgument, OutcomeUnknown, RuntimeLost
from stepwell.strategies.protocol import ContextRequest

SUMMARY: Final = "Assemble the best context for a question"

_SKIPPED: Final = 3  # files that are named
_ENTRIES: Final = 100  # of a receipt that are shown; --json has all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("question")
    add_source(parser)
    parser.add_argument("--budget", type=int, default=8_000, metavar="TOKENS", help="(default: %(default)s)")
    parser.add_argument("--focus", nargs="+", default=[], metavar="SOURCE", help="paths or ids to begin at")
    parser.add_argument("--kinds", nargs="+", default=[], metavar="KIND", help="such as code, markdown, text, turn")
    parser.add_argument("--strategies", nargs="+", metavar="NAME", help="(default: all that the workers offer)")
    parser.add_argument("--plan", metavar="ID", help="a plan of that manager, for whose sake it is asked")
    parser.add_argument("--component", action="append", default=[], metavar="STAGE=NAME", help="replace a stage")
    parser.add_argument("--deadline", type=float, metavar="SECONDS", help="for each strategy (default: 60)")
    parser.add_argument("--json", action="store_true", help="one JSON object, for machines")
    parser.add_argument("--explain", action="store_true", help="also what became of every candidate, and why")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 1 if every strategy failed."""
    source = source_of(arguments)
    request = ContextRequest(
        projects=[source.project],
        query=arguments.question,
        focus=arguments.focus,
        kinds=arguments.kinds,
        budget_tokens=arguments.budget,
    )
    components = dict(map(_component, arguments.component))
    named(components)  # or say now, before anything is started, that there is no such thing
    try:
        with open_source(source) as client:
            answer = _ingest_and_assemble(client, source, request, components, arguments)
    except (OutcomeUnknown, RuntimeLost) as error:
        if source.address is not None:
            raise
        print_error(f"{error.message}. Once more, and nothing is kept for the next time")
        with open_source(source, use_cache=False) as client:
            answer = _ingest_and_assemble(client, source, request, components, arguments)
    if arguments.json:
        sys.stdout.write(f"{msgspec.json.encode(_json_object(answer, with_receipt=arguments.explain)).decode()}\n")
    else:
        _print(answer, with_receipt=arguments.explain)
    _report_failures(answer)
    return 1 if len(answer.failures) == len(answer.strategies) else 0


def _ingest_and_assemble(
    client: Client, source: Source, request: ContextRequest, components: dict[str, str], arguments: argparse.Namespace
) -> Answer:
    """After reading what there is to read."""
    if source.path is not None:
        with progress_bar.count_bar() as on_reading:
            report = client.ingest(source.path, on_progress=on_reading)
        _report_skipped(report)
    with progress_bar.strategy_bars() as on_progress:
        answer = client.assemble(
            request,
            plan_id=arguments.plan,
            strategies=arguments.strategies,
            deadline_s=arguments.deadline,
            components=components,
            on_progress=on_progress,
        )
    _report_unknown_names(client, request, answer)
    return answer


def _report_skipped(report: IngestReport) -> None:
    for source, reason in [*report.skipped.items()][:_SKIPPED]:
        print_error(f"left out {source}: {reason}")
    if report.skipped_count > _SKIPPED:
        print_error(f"left out {report.skipped_count - _SKIPPED:,} more")


def _report_unknown_names(client: Client, request: ContextRequest, answer: Answer) -> None:
    """What was named and is not there: nobody looks for it among what was found instead."""
    if answer.fragments and not request.kinds and not request.focus:
        return
    view = client.view()
    rows = [row for project in request.projects for row in view.rows(project) if row.kind != FILE_KIND]
    if not rows:
        print_error(f"nothing is stored in project {request.projects[0]!r}: name another, or a PATH to be read first")
        return
    kinds = {row.kind for row in rows}
    for kind in request.kinds:
        if kind not in kinds:
            print_error(f"nothing is of kind {kind!r}, only of {', '.join(sorted(kinds))}")
    names = {f"/{name}" for row in rows for name in (row.source, row.fragment_id)}
    for focus in request.focus:
        if not any(name.endswith(f"/{focus}") for name in names):
            print_error(f"nothing is called {focus!r}: give a path as the answer names it, or a fragment's id")


def _report_failures(answer: Answer) -> None:
    """Why there is less than there could be; or nothing, though nobody failed."""
    for failure in answer.failures:
        print_error(f"{failure.strategy}: {failure.message}")
    if not answer.fragments and not answer.failures:
        silent = [f"{each.strategy}: {each.explanation}" for each in answer.strategies if not each.candidates]
        print_error("nothing was found that fits: ask otherwise, or give a larger --budget")
        for each in silent if len(silent) == len(answer.strategies) else []:
            print_error(each)


def _component(text: str) -> tuple[str, str]:
    stage, is_given, name = text.partition("=")
    if not is_given:
        raise InvalidArgument(f"--component is STAGE=NAME, such as fuse=reciprocal, not {text!r}")
    return stage, name


def _json_object(answer: Answer, *, with_receipt: bool) -> dict[str, object]:
    found = msgspec.structs.asdict(answer)
    if not with_receipt:
        del found["receipt"]
    return found


def _print(answer: Answer, *, with_receipt: bool) -> None:
    """The context to stdout; how it came about to the terminal, if there is one."""
    sys.stdout.write(f"{answer.text}\n" if answer.text else "")
    if with_receipt:
        sys.stdout.write(f"\n{_receipt_table(answer.receipt)}\n")
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        console.print(_table(answer))


def _table(answer: Answer) -> Table:
    kept = f", receipt {answer.receipt_id}" if answer.receipt_id else ""
    table = Table(
        title=f"{len(answer.fragments)} fragments, {answer.total_tokens:,} of {answer.budget_tokens:,} tokens{kept}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("strategy")
    for heading in ("confidence", "weight", "candidates", "kept", "seconds"):
        table.add_column(heading, justify="right")
    for each in answer.strategies:
        numbers = f"{each.confidence:.2f}", f"{each.weight:.2f}", f"{each.candidates:,}", f"{each.kept:,}"
        cells = (*numbers, f"{each.seconds:.3f}") if each.failure is None else (each.failure.kind, "", "", "", "")
        table.add_row(Text(each.strategy), *cells)
    return table


def _receipt_table(receipt: Receipt) -> str:
    """The best candidates and what became of them, as a Markdown table."""
    lines = ["| rank | fragment | tokens | score | by strategy | what became of it |", "|---|---|---|---|---|---|"]
    for rank, entry in enumerate(receipt.entries[:_ENTRIES], 1):
        votes = ", ".join(f"{vote.strategy} {vote.rank}" for vote in entry.votes) or f"near {entry.near}"
        name = entry.fragment_id.replace("|", "\\|")
        outcome = f"{entry.decision}: {entry.reason}".replace("|", "\\|")
        lines.append(f"| {rank} | {name} | {entry.tokens} | {entry.scores.total:.3f} | {votes} | {outcome} |")
    if len(receipt.entries) > _ENTRIES:
        lines.append(f"\n{len(receipt.entries) - _ENTRIES:,} more: --json --explain has all of them")
    return "\n".join(lines)
