"""`stepwell plan merge PLAN`: merge the changes of a plan's finished children into the plan.

If a session executes the plan, for instance an agent that waits for a person, the merge is recorded under the lease of
that session, which stays responsible for the plan: `stepwell plan resolve` resolves its conflicts, and the session
completes it. If no session executes the plan, one `merge` is one whole execution, as one `record` is: it takes the
lease, merges, resolves the conflicts with `--accept` or `--edit`, and completes the execute phase. Without a choice for
a conflict nothing is kept, and the plan is queued again.
"""

from __future__ import annotations

from typing import Annotated, Final

from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.console import error_console
from stepwell.cli.common.error_report import EXIT_CODES, reports_errors
from stepwell.cli.common.exit_codes import CONFLICTING
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_error, print_json, print_result
from stepwell.cli.common.parameters import json_flag
from stepwell.cli.plan.common.conflict_choice import (
    Accept,
    Edit,
    OpenConflict,
    conflict_table,
    given_sides,
    open_conflicts,
    resolve_by_editor,
)
from stepwell.cli.plan.common.execution import Lease, lease_renewer, start_execution
from stepwell.cli.plan.common.plan_id import PlanId, find_plan
from stepwell.client.client import Client, connect
from stepwell.client.workflows.merge import executed_children
from stepwell.domain.plans.model import Plan
from stepwell.errors import InvalidArgument, PlanNotReady
from stepwell.text import plural

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    plan: PlanId,
    accept: Accept = None,
    edit: Edit = False,
    lease: Lease = None,
    address: Address = None,
    json: Annotated[
        bool,
        json_flag(
            "`plan`, with the fields of `stepwell.Plan` by name, and `conflicts`, those that are open, each with "
            "`path`, `child`, `version`, `hunks`, `is_text`, `reason` and `waiting`"
        ),
    ] = False,
) -> int:
    """All children have to be finished. Edits that do not overlap are merged, in the order in which the children were
    declared. The others are conflicts: `--accept` takes one side of the lines in conflict, `--edit` lets you write
    them. If a session executes the plan, the conflicts that are left wait for `stepwell plan resolve`.
    """
    if edit and accept:
        raise InvalidArgument("give --accept or --edit, not both")
    if accept and len(accept) > 1:
        raise InvalidArgument("give one side for all conflicts: a side for each hunk is for `stepwell plan resolve`")
    with connect(resolve_address(address)) as client:
        found = find_plan(client, plan)
        held = lease if lease is not None else found.lease.token if found.lease else None
        _require_mergeable(client, found)
        found = start_execution(client, found, held)
        merged = _merge(client, found.plan_id, held, accept or [], edit=edit)
        conflicts = open_conflicts(client.execution(merged.plan_id, lease=held), merged)
        if held is None and not conflicts:
            merged = client.plans.complete_execute(merged.plan_id)
    _report(merged, conflicts, is_held=held is not None, as_json=json)
    return CONFLICTING if conflicts else 0


def _require_mergeable(client: Client, plan: Plan) -> None:
    """Raise `PlanNotReady` if there is nothing to merge, or not yet: before the lease, which would cost an attempt."""
    if plan.subplans is None:
        raise PlanNotReady(f"plan {plan.plan_id} has no children to merge", plan_id=plan.plan_id)
    executed_children(client.execution(plan.plan_id), plan)


def _merge(client: Client, plan_id: str, lease: int | None, accept: list[str], *, edit: bool) -> Plan:
    """Merge the children, and resolve the conflicts by the user's choice, if there is one; return the plan."""
    context = client.execution(plan_id, lease=lease)
    plan = context.merge_children()
    while plan.open_conflicts and (accept or edit):
        conflict = plan.open_conflicts[0]
        if edit:
            plan = resolve_by_editor(context, conflict.path, lease_renewer(client, plan_id, lease))
        else:
            plan = context.resolve(conflict.path, accept=given_sides(accept))
    return plan


def _report(plan: Plan, conflicts: list[OpenConflict], *, is_held: bool, as_json: bool) -> None:
    """Print what was merged, and the conflicts that are left."""
    if as_json:
        print_json({"plan": to_json_value(plan), "conflicts": to_json_value(conflicts)})
    elif not conflicts:
        number = len(plan.merged.children) if plan.merged else 0
        print_result(f"merged {plural(number, 'child', 'children')} into {plan.plan_id}: {plan.position}")
    else:
        error_console().print(conflict_table(conflicts))
    if conflicts:
        then = (
            f"`stepwell plan resolve {plan.plan_id} PATH` shows and resolves one"
            if is_held
            else "nothing was kept; merge again with --accept ours, --accept theirs or --edit"
        )
        print_error(f"{plural(len(conflicts), 'path')} in conflict: {then}")
