"""`stepwell ask`: show the fragments that each strategy of a running manager finds for a question.

It prints one table for each strategy: score, tokens, id and reason of the best fragments, and in the title the
confidence and the time. It is a tool to look at strategies one by one. `stepwell assemble` combines them into a
context. A strategy that fails is reported on stderr, and the others are still shown.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

from stepwell import limits
from stepwell.cli.common import progress_bar
from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.completions import complete_projects
from stepwell.cli.common.console import result_console
from stepwell.cli.common.output import print_error, print_struct
from stepwell.cli.common.parameters import JsonFlag, argument, option, whole_number
from stepwell.cli.common.request_options import Deadline, Strategies
from stepwell.client.client import connect
from stepwell.client.workflows.strategy_executor import DefaultStrategyExecutor, Execution
from stepwell.errors import InvalidArgument
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import ContextRequest
from stepwell.text import plural

app: Final = command_app()


@app.command(cls=ShellCommand)
def run(
    *,
    question: Annotated[str, argument("QUESTION", "in words")],
    address: Address = None,
    project: Annotated[
        list[str] | None,
        option(
            "--project",
            metavar="NAME",
            about="project to search; may be given several times",
            complete=complete_projects,
        ),
    ] = None,
    strategies: Strategies = None,
    budget: Annotated[
        int, option("--budget", metavar="TOKENS", about="bound of the fragments of each strategy", parse=whole_number)
    ] = 4_000,
    deadline: Deadline = None,
    json: JsonFlag = False,
) -> int:
    """Each strategy prints a table of its best fragments: score, tokens, id and reason. `stepwell assemble` combines
    the strategies into a context. The exit code is 1 only if every strategy failed.
    """
    # Without a project the question would go to all projects of the manager at once.
    if not project:
        raise InvalidArgument("name a project: give --project NAME")
    request = ContextRequest(projects=project, query=question, budget_tokens=budget)
    with (
        connect(resolve_address(address), project) as client,
        progress_bar.strategy_bars() as on_progress,
    ):
        execution = DefaultStrategyExecutor(client).execute(
            request, strategies, deadline_s=deadline, on_progress=on_progress
        )
    if json:
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
    count = plural(len(result.fragments), "fragment")
    title = f"{name}: {count}, confidence {result.confidence:.2f}, {result.seconds:.3f} s"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for heading, justify in (("score", "right"), ("tokens", "right"), ("fragment", "left"), ("why", "left")):
        table.add_column(heading, justify="right" if justify == "right" else "left", overflow="fold")
    for each in result.fragments[: limits.FRAGMENTS_SHOWN]:
        table.add_row(f"{each.score:.3f}", f"{each.tokens:,}", Text(each.fragment_id), Text(each.reason))
    return table
