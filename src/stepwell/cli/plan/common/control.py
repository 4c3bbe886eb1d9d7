"""The parts that `stepwell plan cancel`, `retry` and `revert` share: an operator moves a plan that does not go on by
itself.

Each prints the new position and attempt of the plan. If the position of the plan does not allow the operation, the exit
code is 1 and the message lists what is allowed.
"""

from __future__ import annotations

from typing import Annotated, Final

from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_json, print_result
from stepwell.cli.common.parameters import json_flag, option
from stepwell.domain.plans.model import Phase, Plan, PlanState

REASON: Final = "from the command line"
"""The default reason. It is stored among the plan's errors, so that a reader knows that a person intervened."""

Reason = Annotated[str, option("--reason", metavar="TEXT", about="kept among the plan's errors")]
PlanJson = Annotated[bool, json_flag("`plan`, with the fields of `stepwell.Plan` by name")]


def report_moved(plan: Plan, done: str, *, as_json: bool) -> None:
    """Print the new position of a plan, or with `as_json` all of its fields. `done` says what was done with it."""
    if as_json:
        print_json({"plan": to_json_value(plan)})
        return
    print_result(f"{done} {plan.plan_id}: {plan.position}, attempt {plan.attempt}")
    if plan.phase is Phase.APPLY and plan.state is PlanState.CANCELLED:
        # A process that was killed while it applied the plan leaves its undo log at the root. The next apply at that
        # root, of any plan, finds the log and recovers.
        print_result(
            "if the process that applied it was killed: `stepwell plan apply` at that root undoes what is left"
        )
