"""`stepwell action create NAME`: make a template for plans.

It prints the name under which the action was stored, which is its canonical form. A name that exists is refused (exit
code 1), because plans may rely on the existing action.
"""

from __future__ import annotations

from typing import Annotated, Final

from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.error_report import EXIT_CODES, reports_errors
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_json, print_result
from stepwell.cli.common.parameters import argument, flag, json_flag, option
from stepwell.cli.common.validations import Validate, validations_of
from stepwell.client.client import connect
from stepwell.domain.plans.model import Argument

app: Final = command_app()

_ACTOR: Final = "local/shell"
"""The actor of actions that are made in a shell. The manager does not interpret it; agents can."""
_DONE: Final = "all validations pass"
"""The definition of done of actions that are made in a shell: validations are the only part that is checked there."""


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    name: Annotated[str, argument("NAME", "such as fix-bug or team/fix-bug")],
    description: Annotated[
        str | None,
        option(
            "--description",
            metavar="TEXT",
            about="what its plans do; {name} stands for an argument (default: its name)",
        ),
    ] = None,
    done: Annotated[str, option("--done", metavar="TEXT", about="definition of done of its plans")] = _DONE,
    arguments: Annotated[
        list[str] | None,
        option(
            "--argument",
            metavar="NAME[=DEFAULT]",
            about="a text that its plans are given; required if there is no default; may be given several times",
        ),
    ] = None,
    validate: Validate = None,
    strategy_actor: Annotated[
        str, option("--strategy-actor", metavar="NAME", about="actor of the strategize phase")
    ] = _ACTOR,
    execution_actor: Annotated[
        str, option("--execution-actor", metavar="NAME", about="actor of the execute phase")
    ] = _ACTOR,
    once: Annotated[bool, flag("--once", "it can be used for one plan only")] = False,
    address: Address = None,
    json: Annotated[bool, json_flag("`action`, with the fields of `stepwell.types.Action` by name")] = False,
) -> int:
    """A name that exists is refused, because plans may rely on the existing action."""
    with connect(resolve_address(address)) as client:
        action = client.plans.create_action(
            name,
            description=description or name,
            definition_of_done=done,
            strategy_actor=strategy_actor,
            execution_actor=execution_actor,
            arguments=[_argument(each) for each in arguments or ()],
            reusable=not once,
            validations=validations_of(validate),
        )
    if json:
        print_json({"action": to_json_value(action)})
    else:
        print_result(f"created {action.name}: use it with `stepwell plan new {action.name} --project NAME`")
    return 0


def _argument(text: str) -> Argument:
    """Return the parameter that NAME or NAME=DEFAULT declares. It is a string, because a shell knows no other type."""
    name, separator, default = text.partition("=")
    return Argument(name=name, required=not separator, default=default if separator else None)
