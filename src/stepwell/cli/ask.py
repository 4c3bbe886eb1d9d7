"""`stepwell ask`: show the fragments that each strategy of a running manager finds for a question.

It prints one table for each strategy: score, tokens, id and reason of the best fragments, and in the title the
confidence and the time. It is a tool to look at strategies one by one. `stepwell assemble` combines them into a
context. A strategy that fails is reported on stderr, and the others are still shown.
"""

from __future__ import annotations

import argparse
from typing import Final

import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

from stepwell import limits
from stepwell.cli.common import progress_bar
from stepwell.cli.common.addresses import add_address, resolve_address
from stepwell.cli.common.output import print_error, print_struct, result_console
from stepwell.client.client import connect
from stepwell.client.workflows.strategy_executor import DefaultStrategyExecutor, Execution
from stepwell.errors import InvalidArgument
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import ContextRequest

SUMMARY: Final = "Ask strategies which fragments answer a question"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("question")
    add_address(parser)
    parser.add_argument("--project", action="append", default=[], metavar="NAME", help="may be given several times")
    parser.add_argument("--strategies", nargs="+", metavar="NAME", help="(default: all that the workers offer)")
    parser.add_argument("--budget", type=int, default=4_000, metavar="TOKENS", help="(default: %(default)s)")
    parser.add_argument("--deadline", type=float, metavar="SECONDS", help="for each strategy (default: 60)")
    parser.add_argument("--json", action="store_true", help="one JSON object, for machines, with all of them")


def run(arguments: argparse.Namespace) -> int:
    """Ask all strategies and print their results. The exit code is 1 only if every strategy failed.

    A project is required: without one the question would go to all projects of the manager at once.
    """
    if not arguments.project:
        raise InvalidArgument("name a project: give --project NAME")
    request = ContextRequest(projects=arguments.project, query=arguments.question, budget_tokens=arguments.budget)
    with (
        connect(resolve_address(arguments.address), arguments.project) as client,
        progress_bar.strategy_bars() as on_progress,
    ):
        execution = DefaultStrategyExecutor(client).execute(
            request, arguments.strategies, deadline_s=arguments.deadline, on_progress=on_progress
        )
    if arguments.json:
        print_struct(_json_object(execution))
    else:
        for name, result in execution.results.items():
            result_console().print(_table(name, result))
    for name, error in execution.failures.items():
        print_error(f"{name}: {error.message}")
    return 0 if execution.results else 1


def _json_object(execution: Execution) -> dict[str, object]:
    """Return the object for `--json`: the revision that was read, and the results and failures by strategy."""
    return {
        "epoch": execution.epoch,
        "revision": execution.revision,
        "results": {name: msgspec.structs.asdict(result) for name, result in execution.results.items()},
        "failures": {name: {"kind": each.kind, "message": each.message} for name, each in execution.failures.items()},
    }


def _table(name: str, result: StrategyResult) -> Table:
    """Return the table of one strategy's best fragments.

    Ids and reasons are wrapped in `Text`, so that rich does not read brackets in them as markup.
    """
    title = f"{name}: {len(result.fragments)} fragments, confidence {result.confidence:.2f}, {result.seconds:.3f} s"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for heading, justify in (("score", "right"), ("tokens", "right"), ("fragment", "left"), ("why", "left")):
        table.add_column(heading, justify="right" if justify == "right" else "left", overflow="fold")
    for each in result.fragments[: limits.FRAGMENTS_SHOWN]:
        table.add_row(f"{each.score:.3f}", f"{each.tokens:,}", Text(each.fragment_id), Text(each.reason))
    return table
