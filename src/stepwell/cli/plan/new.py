"""`stepwell plan new ACTION --project NAME`: create a plan from an action and print its id.

Stdout has the id alone, so that a script can write `PLAN=$(stepwell plan new …)`. Values of `--argument` are converted
to the types that the action declares. An unknown argument or a value out of bounds is exit code 2.
"""

from __future__ import annotations

from typing import Annotated, Final

from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.completions import complete_actions, complete_projects
from stepwell.cli.common.error_report import EXIT_CODES, reports_errors
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_json, print_result
from stepwell.cli.common.parameters import NameValue, argument, json_flag, name_value, option
from stepwell.cli.common.validations import Validate, validations_of
from stepwell.client.client import connect
from stepwell.domain.plans.model import Action, ArgumentType, ArgumentValue
from stepwell.errors import InvalidArgument

app: Final = command_app()

_BOOLEANS: Final = {"true": True, "false": False}


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    action: Annotated[str, argument("ACTION", "its name; `stepwell action list` has them", complete=complete_actions)],
    project: Annotated[
        list[str],
        option(
            "--project",
            metavar="NAME",
            about="project to work on; may be given several times",
            complete=complete_projects,
        ),
    ],
    arguments: Annotated[
        list[NameValue] | None,
        option(
            "--argument",
            metavar="NAME=VALUE",
            about="argument of the action; may be given several times",
            parse=name_value,
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        option(
            "--label",
            metavar="LABEL",
            about="what an agent has to be able to do for the plan, such as gpu; may be given several times",
        ),
    ] = None,
    validate: Validate = None,
    address: Address = None,
    json: Annotated[bool, json_flag("`plan`, with the fields of `stepwell.Plan` by name")] = False,
) -> int:
    """Stdout has the id alone, so that a script can write PLAN=$(stepwell plan new ...)."""
    with connect(resolve_address(address)) as client:
        # The action is read first, because its declaration says how to convert the arguments.
        template = client.plans.get_action(action)
        plan = client.plans.use_action(
            # The canonical name, which may differ from the user's spelling.
            template.name,
            projects=project,
            arguments={name: _value(template, name, text) for name, text in arguments or ()},
            validations=validations_of(validate),
            labels=label or (),
        )
    if json:
        print_json({"plan": to_json_value(plan)})
    else:
        print_result(plan.plan_id)
    return 0


def _value(action: Action, name: str, text: str) -> ArgumentValue:
    """Return the text as a value of the argument's declared type. Raise `InvalidArgument` if it cannot be converted.

    An argument that the action does not declare stays a string; the manager refuses it, and its message names those
    that exist.
    """
    types = {each.name: each.type for each in action.arguments}
    try:
        match types.get(name, ArgumentType.STRING):
            case ArgumentType.INTEGER:
                return int(text)
            case ArgumentType.NUMBER:
                return float(text)
            case ArgumentType.BOOLEAN:
                return _BOOLEANS[text.lower()]
            case ArgumentType.STRING:
                return text
    except (ValueError, KeyError):
        raise InvalidArgument(f"argument {name!r} is {text!r}: give a {types[name]}") from None
