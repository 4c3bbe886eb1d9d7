"""`stepwell plan retry PLAN`: queue a phase that ended in an error once more."""

from __future__ import annotations

from typing import Final

from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.error_report import EXIT_CODES, reports_errors
from stepwell.cli.plan.common.control import PlanJson, report_moved
from stepwell.cli.plan.common.plan_id import PlanId, find_plan
from stepwell.client.client import connect

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(*, plan: PlanId, address: Address = None, json: PlanJson = False) -> int:
    """There is no reason to give, because the error that it follows is stored already."""
    with connect(resolve_address(address)) as client:
        moved = client.plans.retry_plan(find_plan(client, plan).plan_id)
    report_moved(moved, "queued", as_json=json)
    return 0
