"""`stepwell plan resolve PLAN [PATH]`: list, show and resolve the conflicts of a merge.

A merge belongs to one execution of its plan, so a session executes the plan while its conflicts are resolved: for
instance an agent that has merged and waits for a person. This command works under the lease of that session. Without
PATH it lists the open conflicts. With PATH alone it prints the text with conflict markers, which can be edited and
given back with `--body`. A conflict that has changed since it was shown is refused, if `--version` names the one that
was seen.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

from msgspec.structs import asdict

from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.console import result_console
from stepwell.cli.common.error_report import EXIT_CODES, reports_errors
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_detail, print_error, print_json, print_result, write_result
from stepwell.cli.common.parameters import argument, json_flag, option
from stepwell.cli.plan.common.conflict_choice import (
    Accept,
    Edit,
    conflict_table,
    given_sides,
    open_conflicts,
    resolve_by_editor,
)
from stepwell.cli.plan.common.execution import Lease, lease_renewer
from stepwell.cli.plan.common.plan_id import PlanId, find_plan
from stepwell.client.client import connect
from stepwell.client.execution import PlanExecutionContext
from stepwell.domain.plans.model import Plan
from stepwell.errors import InvalidArgument, PlanNotReady
from stepwell.text import plural

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    plan: PlanId,
    path: Annotated[
        str | None, argument("PATH", "the path in conflict; without it, all open conflicts are listed")
    ] = None,
    accept: Accept = None,
    edit: Edit = False,
    body: Annotated[
        Path | None, option("--body", metavar="FILE", parse=Path, about="take the content of this file; - is stdin")
    ] = None,
    version: Annotated[
        str | None, option("--version", metavar="VERSION", about="refuse if the conflict is not this one any more")
    ] = None,
    lease: Lease = None,
    address: Address = None,
    json: Annotated[
        bool,
        json_flag(
            "without a choice `plan_id` and `conflicts`, each with `path`, `child`, `version`, `hunks`, `is_text`, "
            "`reason`, `waiting` and, if PATH is given, `text`; with a choice `plan`, with the fields of `stepwell."
            "Plan` by name"
        ),
    ] = False,
) -> int:
    """As in git, a side is taken for the lines in conflict; all edits that do not overlap are in the result. Children
    that changed the same path later are then merged with it.
    """
    choices = [accept, edit, body is not None]
    if sum(map(bool, choices)) > 1:
        raise InvalidArgument("give one of --accept, --edit and --body")
    if version is not None and not any(choices):
        raise InvalidArgument("--version goes with a choice: give --accept, --edit or --body, too")
    if path is None and any(choices):
        raise InvalidArgument("give the PATH of the conflict that is to be resolved")
    with connect(resolve_address(address)) as client:
        found = find_plan(client, plan)
        held = lease if lease is not None else found.lease.token if found.lease else None
        context = client.execution(found.plan_id, lease=held)
        if path is None or not any(choices):
            _show(context, found, path, as_json=json)
            return 0
        if held is None:
            raise PlanNotReady(
                f"plan {found.plan_id} is {found.position}, and a merge ends with the session that made it: `stepwell "
                "plan merge` with --accept or --edit merges and resolves in one step"
            )
        if edit:
            resolved = resolve_by_editor(context, path, lease_renewer(client, found.plan_id, held), version)
        elif body is not None:
            resolved = context.resolve(path, body=_read(body), version=version)
        else:
            resolved = context.resolve(path, accept=given_sides(accept or []), version=version)
    _report(resolved, path, as_json=json)
    return 0


def _read(body: Path) -> bytes:
    """Return the content of a file, or of stdin for `-`."""
    if str(body) == "-":
        return sys.stdin.buffer.read()
    try:
        return body.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{str(body)!r} cannot be read: {error.strerror or error}") from error


def _show(context: PlanExecutionContext, plan: Plan, path: str | None, *, as_json: bool) -> None:
    """Print all open conflicts, or the text of one, whose version then goes to stderr.

    Stdout has nothing but a text that can be edited and given back: if there is none, the sides are described on
    stderr.
    """
    conflicts = [each for each in open_conflicts(context, plan) if path in {None, each.path}]
    text = None if path is None else context.conflict_text(path)
    if as_json:
        extra = {} if text is None else {"text": text}
        print_json({"plan_id": plan.plan_id, "conflicts": [asdict(each) | extra for each in conflicts]})
    elif text is not None:
        (shown,) = conflicts
        (write_result if shown.is_text else print_detail)(text)
        print_error(f"version {shown.version}, {plural(shown.hunks, 'hunk')}: {shown.reason}")
    elif conflicts:
        result_console().print(conflict_table(conflicts))
    else:
        print_error(f"plan {plan.plan_id} has no open conflicts")


def _report(plan: Plan, path: str, *, as_json: bool) -> None:
    """Print what is left to be resolved."""
    if as_json:
        print_json({"plan": to_json_value(plan)})
        return
    still_open = next((each.alias for each in plan.open_conflicts if each.path == path), None)
    here = f"; the next conflict there is with {still_open}" if still_open else ""
    print_result(f"resolved {path}{here}: {plural(len(plan.open_conflicts), 'path')} in conflict")
