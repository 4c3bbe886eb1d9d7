"""`stepwell plan cancel`, `retry` and `revert`: for an operator, when a plan does not go on by itself.

`retry` queues a phase that ended in an error once more. `revert` sends a plan back to its beginning. `cancel` ends it
for good, with all its children. Each prints the new position and attempt of the plan. If the position of the plan does
not allow the operation, the exit code is 1 and the message lists what is allowed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from stepwell.cli.common.addresses import resolve_address
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_json, print_result
from stepwell.cli.common.subcommand import Subcommand
from stepwell.cli.plan.resolve import add_plan, find_plan
from stepwell.client.client import Client, connect
from stepwell.domain.plans.model import Phase, Plan, PlanState

_PLAN_KEY: Final = "`plan`, with the fields of `stepwell.Plan` by name"
_REASON: Final = "from the command line"
"""The default reason. It is stored among the plan's errors, so that a reader knows that a person intervened."""

_Operation = Callable[[Client, Plan, str], Plan]
"""A request on a plan: it takes the client, the plan and the reason, and returns the plan afterwards."""


def _add_reason(parser: argparse.ArgumentParser) -> None:
    """Add the plan and `--reason`. `retry` has no reason, because the error that it follows is stored already."""
    add_plan(parser)
    parser.add_argument(
        "--reason", metavar="TEXT", default=_REASON, help="kept among the plan's errors (default: %(default)r)"
    )


def _subcommand_run(operation: _Operation, done: str) -> Callable[[argparse.Namespace], int]:
    """Return the function that runs a subcommand: find the plan, call the operation and print the plan's new
    position.
    """

    def run(arguments: argparse.Namespace) -> int:
        with connect(resolve_address(arguments.address)) as client:
            plan = operation(client, find_plan(client, arguments.plan), getattr(arguments, "reason", ""))
        if arguments.json:
            print_json({"plan": to_json_value(plan)})
        else:
            print_result(f"{done} {plan.plan_id}: {plan.position}, attempt {plan.attempt}")
            if plan.phase is Phase.APPLY and plan.state is PlanState.CANCELLED:
                # A process that was killed while it applied the plan leaves its undo log at the root. The next apply
                # at that root, of any plan, finds the log and recovers.
                print_result(
                    "if the process that applied it was killed: `stepwell plan apply` at that root undoes what is left"
                )
        return 0

    return run


def _cancel(client: Client, plan: Plan, reason: str) -> Plan:
    """Cancel the plan with its children."""
    return client.plans.cancel_plan(plan.plan_id, reason)


def _retry(client: Client, plan: Plan, _reason: str) -> Plan:
    """Queue the failed phase again."""
    return client.plans.retry_plan(plan.plan_id)


def _revert(client: Client, plan: Plan, reason: str) -> Plan:
    """Send the plan back to strategize."""
    return client.plans.revert_plan(plan.plan_id, reason)


CANCEL: Final = Subcommand(
    "End a plan and all its descendants, for good",
    _add_reason,
    _subcommand_run(_cancel, "cancelled"),
    _PLAN_KEY,
    detail="What it recorded stays readable. A session that works on it is refused from then on.",
)
RETRY: Final = Subcommand(
    "Queue the phase that ended in an error once more", add_plan, _subcommand_run(_retry, "queued"), _PLAN_KEY
)
REVERT: Final = Subcommand(
    "Send a plan that is not applied back to its beginning, at most three times",
    _add_reason,
    _subcommand_run(_revert, "reverted"),
    _PLAN_KEY,
    detail="What it recorded until then does not count any more, and its children are cancelled.",
)
