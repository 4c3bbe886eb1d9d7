"""`stepwell plan new ACTION --project NAME`: create a plan from an action and print its id.

Stdout has the id alone, so that a script can write `PLAN=$(stepwell plan new …)`. Values of `--argument` are converted
to the types that the action declares. An unknown argument or a value out of bounds is exit code 2.
"""

from __future__ import annotations

import argparse
from typing import Final

from stepwell.cli.common.addresses import resolve_address
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_json, print_result
from stepwell.cli.common.subcommand import Subcommand
from stepwell.cli.common.validations import add_validations, name_value_pair, validations_of
from stepwell.client.client import connect
from stepwell.domain.plans.model import Action, ArgumentType, ArgumentValue
from stepwell.errors import InvalidArgument

_BOOLEANS: Final = {"true": True, "false": False}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="ACTION", help="its name; `stepwell action list` has them")
    parser.add_argument(
        "--project", action="append", required=True, metavar="NAME", help="may be given several times (required)"
    )
    parser.add_argument(
        "--argument",
        action="append",
        default=[],
        type=name_value_pair,
        metavar="NAME=VALUE",
        help="of the action; may be given several times",
    )
    add_validations(parser)


def _run(arguments: argparse.Namespace) -> int:
    """Create the plan. The action is read first, because its declaration says how to convert the arguments."""
    with connect(resolve_address(arguments.address)) as client:
        action = client.plans.get_action(arguments.action)
        plan = client.plans.use_action(
            # The canonical name, which may differ from the user's spelling.
            action.name,
            projects=arguments.project,
            arguments={name: _value(action, name, text) for name, text in arguments.argument},
            validations=validations_of(arguments.validate),
        )
    if arguments.json:
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


NEW: Final = Subcommand(
    "Create a plan from an action, and print its id",
    _add_arguments,
    _run,
    "`plan`, with the fields of `stepwell.Plan` by name",
)
