"""`stepwell plan cancel PLAN`: end a plan for good, with all its children."""

from __future__ import annotations

from typing import Final

from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.error_report import EXIT_CODES, reports_errors
from stepwell.cli.plan.common.control import REASON, PlanJson, Reason, report_moved
from stepwell.cli.plan.common.plan_id import PlanId, find_plan
from stepwell.client.client import connect

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(*, plan: PlanId, reason: Reason = REASON, address: Address = None, json: PlanJson = False) -> int:
    """Its changes stay readable. A session that works on it is refused from then on."""
    with connect(resolve_address(address)) as client:
        moved = client.plans.cancel_plan(find_plan(client, plan).plan_id, reason)
    report_moved(moved, "cancelled", as_json=json)
    return 0
