"""`stepwell action create` and `stepwell action list`: the templates that plans are made from.

An action has to exist before `stepwell plan new` can use it:

    stepwell action create team/fix-bug --argument ticket --validate 'tests=pytest -q'
    stepwell plan new team/fix-bug --project shop --argument ticket=4711

`create` prints the name under which the action was stored, which is its canonical form. A name that exists is refused
(exit code 1), because plans may rely on the existing action. `list` prints one line for each action: its name, its
state and how many plans it has been used for.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from rich import box
from rich.table import Table

from stepwell import limits
from stepwell.cli.common.addresses import resolve_address
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_error, print_json, print_result, result_console
from stepwell.cli.common.subcommand import Subcommand, add_subcommands, run_subcommand
from stepwell.cli.common.validations import add_validations, validations_of
from stepwell.client.client import Client, connect
from stepwell.domain.plans.model import Argument
from stepwell.domain.replies import ActionSummary

SUMMARY: Final = "Create and list the actions that plans are made of"

_ACTOR: Final = "local/shell"
"""The actor of actions that are made in a shell. The manager does not interpret it; agents can."""
_DONE: Final = "all validations pass"
"""The definition of done of actions that are made in a shell: validations are the only part that is checked there."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_subcommands(parser, {"create": _CREATE, "list": _LIST})


def run(arguments: argparse.Namespace) -> int:
    return run_subcommand(arguments)


def _add_create(parser: argparse.ArgumentParser) -> None:
    """Add the options of `create`. Only the name is required: a user in a shell seldom needs the other fields."""
    parser.add_argument("name", metavar="NAME", help="such as fix-bug or team/fix-bug")
    parser.add_argument(
        "--description", metavar="TEXT", help="what its plans do; {name} stands for an argument (default: its name)"
    )
    parser.add_argument(
        "--done", metavar="TEXT", default=_DONE, help="definition of done of its plans (default: %(default)r)"
    )
    parser.add_argument(
        "--argument",
        action="append",
        default=[],
        metavar="NAME[=DEFAULT]",
        help="a text that its plans are given; required if there is no default; may be given several times",
    )
    add_validations(parser)
    parser.add_argument(
        "--strategy-actor", metavar="NAME", default=_ACTOR, help="actor of the strategize phase (default: %(default)s)"
    )
    parser.add_argument(
        "--execution-actor", metavar="NAME", default=_ACTOR, help="actor of the execute phase (default: %(default)s)"
    )
    parser.add_argument("--once", action="store_true", help="it can be used for one plan only")


def _create(arguments: argparse.Namespace) -> int:
    """Create the action and print its name, or with `--json` all of its fields."""
    with connect(resolve_address(arguments.address)) as client:
        action = client.plans.create_action(
            arguments.name,
            description=arguments.description or arguments.name,
            definition_of_done=arguments.done,
            strategy_actor=arguments.strategy_actor,
            execution_actor=arguments.execution_actor,
            arguments=[_argument(each) for each in arguments.argument],
            reusable=not arguments.once,
            validations=validations_of(arguments.validate),
        )
    if arguments.json:
        print_json({"action": to_json_value(action)})
    else:
        print_result(f"created {action.name}: use it with `stepwell plan new {action.name} --project NAME`")
    return 0


def _argument(text: str) -> Argument:
    """Return the parameter that NAME or NAME=DEFAULT declares. It is a string, because a shell knows no other type."""
    name, separator, default = text.partition("=")
    return Argument(name=name, required=not separator, default=default if separator else None)


def _add_nothing(_parser: argparse.ArgumentParser) -> None:
    """Add no options: a `Subcommand` always has a function for its options."""


def _list(arguments: argparse.Namespace) -> int:
    """Print a table of all actions. If there are none, a hint goes to stderr and the exit code is still 0."""
    with connect(resolve_address(arguments.address)) as client:
        found = [*_found(client)]
    if arguments.json:
        print_json({"actions": to_json_value(found)})
    elif found:
        result_console().print(_table(found))
    else:
        print_error("there are no actions: make one with `stepwell action create NAME`")
    return 0


def _found(client: Client) -> Iterator[ActionSummary]:
    """Iterate over all actions, a page at a time."""
    cursor: str | None = None
    while True:
        page = client.plans.list_actions(limit=limits.PAGE_ROWS_MAX, cursor=cursor)
        yield from page.actions
        if page.cursor is None:
            return
        cursor = page.cursor


def _table(found: list[ActionSummary]) -> Table:
    """Return the table of actions. An action for one plan only is marked with "once"."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("action", style="bold", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("plans", justify="right")
    for each in found:
        state = str(each.state) if each.reusable else f"{each.state}, once"
        table.add_row(each.name, state, f"{each.uses:,}")
    return table


_CREATE: Final = Subcommand(
    "Create an action; a name that exists is refused",
    _add_create,
    _create,
    "`action`, with the fields of `stepwell.types.Action` by name",
)
_LIST: Final = Subcommand(
    "List actions by name",
    _add_nothing,
    _list,
    "`actions`, a list, each with `name`, `state`, `reusable` and `uses`",
)
