"""`stepwell assemble`: print the best context for a question, within a budget of tokens.

Without `--connect` the command reads the directory first (only files that changed since the last time), starts its own
manager and workers, asks, and stops them. With `--connect` it asks a running manager.

Stdout has the context alone, so that it can be piped into a model's prompt. With `--explain` a Markdown table of the
candidates follows; with `--json` stdout has one object instead. Files that were left out, redacted places, failed
strategies and names that match nothing are reported on stderr. On a terminal a table of the strategies is printed to
stderr too.
"""

from __future__ import annotations

import argparse
from typing import Final

import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

from stepwell import limits
from stepwell.assembly.answer import Answer
from stepwell.assembly.components import named
from stepwell.assembly.receipt import Receipt
from stepwell.cli.common import progress_bar
from stepwell.cli.common.output import error_console, print_error, print_struct, write_result
from stepwell.cli.common.secret_options import report_left_out, report_redacted
from stepwell.cli.common.source import Source, add_source, open_source, source_of
from stepwell.client.client import Client
from stepwell.client.workflows.ingest import IngestReport
from stepwell.domain.tiers.source_outline import FILE_KIND
from stepwell.errors import InvalidArgument, OutcomeUnknown, RuntimeLost
from stepwell.strategies.protocol import ContextRequest

SUMMARY: Final = "Assemble the best context for a question"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options. The budget is in tokens of the manager's encoding; it bounds the whole text that is printed."""
    parser.add_argument("question")
    add_source(parser)
    parser.add_argument("--budget", type=int, default=8_000, metavar="TOKENS", help="(default: %(default)s)")
    parser.add_argument("--focus", nargs="+", default=[], metavar="SOURCE", help="paths or ids to begin at")
    parser.add_argument("--kinds", nargs="+", default=[], metavar="KIND", help="such as code, markdown, text, turn")
    parser.add_argument("--strategies", nargs="+", metavar="NAME", help="(default: all that the workers offer)")
    parser.add_argument("--plan", metavar="ID", help="a plan of that manager, whose decisions are part of the context")
    parser.add_argument("--component", action="append", default=[], metavar="STAGE=NAME", help="replace a stage")
    parser.add_argument("--deadline", type=float, metavar="SECONDS", help="for each strategy (default: 60)")
    parser.add_argument("--json", action="store_true", help="one JSON object, for machines")
    parser.add_argument(
        "--explain", action="store_true", help="also print the decision about every candidate, with its reason"
    )


def run(arguments: argparse.Namespace) -> int:
    """Assemble a context and print it. The exit code is 1 only if every strategy failed.

    If the command's own manager dies, for instance because the cache is damaged in a way that its checks do not find,
    the command tries once more without the cache. A running manager is not the command's to replace, so its error is
    raised.
    """
    source = source_of(arguments)
    request = ContextRequest(
        projects=[source.project],
        query=arguments.question,
        focus=arguments.focus,
        kinds=arguments.kinds,
        budget_tokens=arguments.budget,
    )
    # A later --component for the same stage replaces an earlier one.
    components = dict(map(_component, arguments.component))
    named(components)  # raises for an unknown component now, before processes are started
    try:
        with open_source(source) as client:
            answer = _ingest_and_assemble(client, source, request, components, arguments)
    except (OutcomeUnknown, RuntimeLost) as error:
        if source.address is not None:
            raise
        print_error(f"{error.message}. Trying once more, without the cache")
        with open_source(source, use_cache=False) as client:
            answer = _ingest_and_assemble(client, source, request, components, arguments)
    if arguments.json:
        print_struct(_json_object(answer, with_receipt=arguments.explain))
    else:
        _print(answer, with_receipt=arguments.explain)
    report_redacted(answer.redacted)
    _report_failures(answer)
    return 1 if len(answer.failures) == len(answer.strategies) else 0


def _ingest_and_assemble(
    client: Client, source: Source, request: ContextRequest, components: dict[str, str], arguments: argparse.Namespace
) -> Answer:
    """Bring the project up to date with the source's path, if there is one, and return the answer."""
    if source.path is not None:
        with progress_bar.count_bar() as on_reading:
            report = client.ingest(
                source.path,
                include_secrets=arguments.include_secrets,
                redact_entropy=arguments.redact_entropy,
                on_progress=on_reading,
            )
        report_left_out(report)
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
    """Name a few files that were not read, with the reason, and count the others."""
    for source, reason in [*report.skipped.items()][: limits.SKIPPED_SHOWN_BY_ASSEMBLE]:
        print_error(f"left out {source}: {reason}")
    if report.skipped_count > limits.SKIPPED_SHOWN_BY_ASSEMBLE:
        print_error(f"left out {report.skipped_count - limits.SKIPPED_SHOWN_BY_ASSEMBLE:,} more")


def _report_unknown_names(client: Client, request: ContextRequest, answer: Answer) -> None:
    """Report kinds, focus paths and projects that match nothing.

    Strategies ignore a name that they do not find, so a spelling mistake would only show as a worse answer. The rows
    are read only if there is a name to check or nothing was found.
    """
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
    """Report the strategies that failed. If nothing failed and nothing was found, say that, with each strategy's
    reason.
    """
    for failure in answer.failures:
        print_error(f"{failure.strategy}: {failure.message}")
    if not answer.fragments and not answer.failures:
        without_hits = [f"{each.strategy}: {each.explanation}" for each in answer.strategies if not each.candidates]
        print_error("nothing was found that fits: ask otherwise, or give a larger --budget")
        for each in without_hits if len(without_hits) == len(answer.strategies) else []:
            print_error(each)


def _component(text: str) -> tuple[str, str]:
    """Return the parts of STAGE=NAME."""
    stage, is_given, name = text.partition("=")
    if not is_given:
        raise InvalidArgument(f"--component is STAGE=NAME, such as fuse=reciprocal, not {text!r}")
    return stage, name


def _json_object(answer: Answer, *, with_receipt: bool) -> dict[str, object]:
    """Return the object for `--json`. The receipt is large, so it is part of it only with `--explain`."""
    found = msgspec.structs.asdict(answer)
    if not with_receipt:
        del found["receipt"]
    return found


def _print(answer: Answer, *, with_receipt: bool) -> None:
    """Print the context to stdout, and on a terminal the table of strategies to stderr.

    The table is for a person who watches. A script gets the same numbers with `--json`.
    """
    write_result(f"{answer.text}\n" if answer.text else "")
    if with_receipt:
        write_result(f"\n{_receipt_table(answer.receipt)}\n")
    console = error_console()
    if console.is_terminal:
        console.print(_table(answer))


def _table(answer: Answer) -> Table:
    """Return the table of strategies: how confident each was, its weight, and how many of its candidates were kept."""
    receipt = f", receipt {answer.receipt_id}" if answer.receipt_id else ""
    table = Table(
        title=f"{len(answer.fragments)} fragments, {answer.total_tokens:,} of {answer.budget_tokens:,} tokens{receipt}",
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
    """Return the best candidates, and the decision about each of them, as a Markdown table."""
    lines = ["| rank | fragment | tokens | score | by strategy | what became of it |", "|---|---|---|---|---|---|"]
    for rank, entry in enumerate(receipt.entries[: limits.RECEIPT_ENTRIES_SHOWN], 1):
        votes = ", ".join(f"{vote.strategy} {vote.rank}" for vote in entry.votes) or f"near {entry.near}"
        name = entry.fragment_id.replace("|", "\\|")
        outcome = f"{entry.decision}: {entry.reason}".replace("|", "\\|")
        lines.append(f"| {rank} | {name} | {entry.tokens} | {entry.scores.total:.3f} | {votes} | {outcome} |")
    if (more := len(receipt.entries) - limits.RECEIPT_ENTRIES_SHOWN) > 0:
        lines.append(f"\n{more:,} more: --json --explain has all of them")
    return "\n".join(lines)
