"""`stepwell plan cancel`, `retry` and `revert`: what an operator does with a plan that does not go on by itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from stepwell.cli.common.addresses import resolve
from stepwell.cli.common.json_values import plain
from stepwell.cli.common.output import print_result, say_json
from stepwell.cli.common.subcommand import Verb
from stepwell.cli.plan.resolve import add_plan, find
from stepwell.client.client import Client, connect
from stepwell.domain.plans.model import Phase, Plan, PlanState

_PLAN_KEY: Final = "`plan`, with the fields of `stepwell.Plan` by name"
_REASON: Final = "from the command line"

_Steer = Callable[[Client, Plan, str], Plan]


def _add_reason(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    parser.add_argument(
        "--reason", metavar="TEXT", default=_REASON, help="kept among the plan's errors (default: %(default)r)"
    )


def _steered(steer: _Steer, said: str) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        with connect(resolve(arguments.address)) as client:
            plan = steer(client, find(client, arguments.plan), getattr(arguments, "reason", ""))
        if arguments.json:
            say_json({"plan": plain(plan)})
        else:
            print_result(f"{said} {plan.plan_id}: {plan.position}, attempt {plan.attempt}")
            if plan.phase is Phase.APPLY and plan.state is PlanState.CANCELLED:
                print_result("if whoever applied it was killed: `stepwell plan apply` at that root undoes what is left")
        return 0

    return run


def _cancel(client: Client, plan: Plan, reason: str) -> Plan:
    return client.plans.cancel_plan(plan.plan_id, reason)


def _retry(client: Client, plan: Plan, _reason: str) -> Plan:
    return client.plans.retry_plan(plan.plan_id)


def _revert(client: Client, plan: Plan, reason: str) -> Plan:
    return client.plans.revert_plan(plan.plan_id, reason)


CANCEL: Final = Verb(
    "End a plan and all that are below it, for good",
    _add_reason,
    _steered(_cancel, "cancelled"),
    _PLAN_KEY,
    detail="What it recorded stays readable. Whoever works on it is refused from then on.",
)
RETRY: Final = Verb("Queue the phase that ended in an error once more", add_plan, _steered(_retry, "queued"), _PLAN_KEY)
REVERT: Final = Verb(
    "Send a plan that is not applied back to its beginning, at most three times",
    _add_reason,
    _steered(_revert, "reverted"),
    _PLAN_KEY,
    detail="What it recorded until then does not count any more, and its children are cancelled.",
)
