"""`stepwell plan record`: a command runs, and what it changes in a tree becomes the plan's.

A lease belongs to a process, and ends with it. So one `record` is one execution: it takes the lease, runs the command,
records, and completes. There is nothing to be left open for the next command of a shell, and nothing to be forgotten.
Several commands are one to a shell: `record PLAN -- sh -c 'one && two'`, or `record PLAN --keep -- bash` and whatever
is done in there; `--keep`, because a shell ends as its last command did. Whoever holds a lease in a process that stays,
an agent say, passes its token, and completes by itself.

However it ends without having recorded (the command fails, Ctrl-C, `kill -9`), the lease is given back with the
session, and the plan is queued for the next `record`, as another attempt.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from stepwell import limits
from stepwell.cli.common.addresses import resolve_address
from stepwell.cli.common.exit_codes import COMMAND_MISSING, COMMAND_UNRUNNABLE, RECORD_FAILED
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import escape_line, print_error, print_json
from stepwell.cli.common.subcommand import Subcommand, report_error
from stepwell.cli.plan import run_command
from stepwell.cli.plan.apply import add_root, tree_root
from stepwell.cli.plan.format import count_text, local_time
from stepwell.cli.plan.resolve import add_plan, find_plan
from stepwell.client.client import Client, connect
from stepwell.client.workflows.capture import Captured
from stepwell.domain.plans.model import Phase, Plan, PlanState
from stepwell.errors import InvalidArgument, PlanNotReady, StepwellError

_RENEW_SECONDS: Final = limits.LEASE_MS / 1000 / 5
_NOT_IN_TOOL_NAME: Final = re.compile(r"[^A-Za-z0-9._:-]+")


class _CommandFailed(Exception):
    """The command did, so that nothing is recorded."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    add_root(parser, "the tree in which changes count")
    parser.add_argument("--tool", metavar="NAME", help="who made the changes (default: the command's name)")
    parser.add_argument("--keep", action="store_true", help="record also what a command changed that failed")
    parser.add_argument(
        "--lease",
        type=int,
        metavar="TOKEN",
        help="work under a lease that another process holds, and leave it to that one to complete the execution",
    )
    parser.add_argument("command", metavar="COMMAND", nargs="+", help="behind `--`, with its arguments")


def _run(arguments: argparse.Namespace) -> int:
    if shutil.which(arguments.command[0]) is None:
        print_error(f"there is no command {arguments.command[0]!r}: nothing was run")
        return COMMAND_MISSING
    try:
        return _record(arguments)
    except run_command.CannotRun as error:
        print_error(str(error))
        return COMMAND_UNRUNNABLE
    except StepwellError as error:
        report_error(error, as_json=arguments.json)
        return RECORD_FAILED


def _record(arguments: argparse.Namespace) -> int:
    root = tree_root(arguments)
    if not root.is_dir():
        raise InvalidArgument(f"{str(root)!r} is no directory: give the tree that the command changes as --root")
    with connect(resolve_address(arguments.address)) as client:
        plan = _start_execution(client, find_plan(client, arguments.plan), arguments.lease)
        context = client.execution(plan.plan_id, lease=arguments.lease)
        try:
            with context.capture(root, tool=arguments.tool or _tool(arguments.command[0])) as captured:
                code = _run_command(arguments, _lease_renewer(client, plan, arguments.lease))
        except _CommandFailed as failed:
            _report_failed(plan, root, arguments, failed.code)
            return failed.code
        if arguments.lease is None:
            client.plans.complete_execute(plan.plan_id)
    _report_recorded(plan, root, captured, arguments, code)
    return code


def _run_command(arguments: argparse.Namespace, renew: Callable[[], None]) -> int:
    code = run_command.run(arguments.command, renew, _RENEW_SECONDS, stdout_to_stderr=arguments.json)
    if code and not arguments.keep:
        raise _CommandFailed(code)
    return code


def _start_execution(client: Client, plan: Plan, lease: int | None) -> Plan:
    """The plan, executing: under a lease of ours, or the one that was given."""
    plans = client.plans
    match plan.position:
        case (Phase.EXECUTE, PlanState.PROCESSING) if lease is not None:
            return plans.renew_lease(plan.plan_id, lease=lease)
        case (Phase.STRATEGIZE, PlanState.QUEUED) if lease is None:
            plans.start_strategize(plan.plan_id)
            return plans.proceed(plan.plan_id)
        case (Phase.STRATEGIZE, PlanState.COMPLETE) if lease is None:
            plans.execute_plan(plan.plan_id)
            return plans.start_execute(plan.plan_id)
        case (Phase.EXECUTE, PlanState.QUEUED) if lease is None:
            return plans.start_execute(plan.plan_id)
        case _:
            raise PlanNotReady(f"plan {plan.plan_id} is {plan.position}: {_advice(plan, lease)}; nothing was run")


def _advice(plan: Plan, lease: int | None) -> str:
    if plan.lease is not None:
        until = local_time(plan.lease.expires_at_ms)
        return f"somebody else works on it, until {until} at least; wait, or give --lease if it is yours"
    if lease is not None:
        return "nobody works on it, so that the lease is over; leave out --lease"
    match plan.state:
        case PlanState.ERRORED:
            return "`stepwell plan retry` queues it again"
        case PlanState.CANCELLED | PlanState.APPLIED:
            return "it is over; `stepwell plan new` makes another one"
        case _:
            return "what it changes is recorded; `stepwell plan apply` it, or `stepwell plan revert` it to begin anew"


def _lease_renewer(client: Client, plan: Plan, lease: int | None) -> Callable[[], None]:
    """What keeps the lease for as long as the command runs. That it is lost is said at once; recording is refused."""
    is_lost = False

    def renew() -> None:
        nonlocal is_lost
        if is_lost:
            return
        try:
            client.plans.renew_lease(plan.plan_id, lease=lease)
        except StepwellError as error:
            is_lost = not error.retry
            print_error(f"what the command changes may not be recorded: {error.message}")

    return renew


def _tool(program: str) -> str:
    """A name for it that changes can have."""
    name = _NOT_IN_TOOL_NAME.sub("-", Path(program).name).lstrip("._:-")
    return name[:64] or "command"


def _report_failed(plan: Plan, root: Path, arguments: argparse.Namespace, code: int) -> None:
    then = "; the plan is queued for another attempt" if arguments.lease is None else ""
    print_error(
        f"{shlex.join(arguments.command)} ended with {code}: what it changed in {escape_line(str(root))} stays there, "
        f"and was not recorded (--keep would have){then}"
    )
    if arguments.json:
        print_json(_json_object(plan.plan_id, code, None))


def _report_recorded(plan: Plan, root: Path, captured: Captured, arguments: argparse.Namespace, code: int) -> None:
    """On stderr: stdout is the command's."""
    if arguments.json:
        print_json(_json_object(plan.plan_id, code, captured))
        return
    changes = len(captured.entries)
    what = f"{count_text(changes, 'change')} in" if changes else "nothing changed in"
    then = "" if arguments.lease is not None else "; `stepwell plan diff` shows it, `stepwell plan apply` applies it"
    print_error(f"recorded into {plan.plan_id}: {what} {escape_line(str(root))}{then if changes else ''}")


def _json_object(plan_id: str, code: int, captured: Captured | None) -> dict[str, object]:
    return {
        "plan_id": plan_id,
        "exit_code": code,
        "changeset_id": captured.changeset_id if captured else None,
        "entries": to_json_value([*captured.entries]) if captured else [],
    }


RECORD: Final = Subcommand(
    "Run a command, and record into a plan what it changes in a tree",
    _add_arguments,
    _run,
    "`plan_id`, `exit_code`, `changeset_id` (null if nothing was recorded) and `entries`, a list with the fields of "
    "`stepwell.EntryRow` by name; what the command itself writes then goes to stderr",
    exit_codes="exit codes: that of the command, or 128 and the number of the signal that ended it; 125, the plan "
    "could not be started or recorded, and stderr says why; 126, the command cannot be run; 127, there is no such "
    "command; 2, asked for wrongly.",
    detail="It takes the plan's lease (a plan without a strategy goes straight to execute), runs the command with "
    "this terminal, records, and completes the execution: one record is one execution. For several commands, run a "
    "shell: `-- sh -c 'one && two'`, or `--keep -- bash`. If the command fails, nothing is recorded, what it changed "
    "stays in the tree, and the plan is queued for the next record.",
)
