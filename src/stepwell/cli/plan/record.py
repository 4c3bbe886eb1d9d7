"""`stepwell plan record PLAN -- COMMAND`: run a command, and record the changes that it makes in a tree.

A lease belongs to a session, and a session ends with its process. One `record` is therefore one whole execution: it
takes the lease, runs the command, records the changes and completes the execute phase. Nothing is left open for the
next command of a shell. Several commands are one command for a shell: `record PLAN -- sh -c 'one && two'`, or `record
PLAN --keep -- bash` for interactive work; `--keep`, because a shell exits with the code of its last command. A program
that holds the lease in a process of its own, such as an agent, passes the token with `--lease` and completes the phase
itself.

If it ends without having recorded (the command fails, Ctrl-C, `kill -9`), the lease is lost with the session and the
plan is queued for the next `record`, as another attempt.

The exit code is the command's, so that `record` can stand in front of a command in a script. 125 to 127 mean that
`record` itself failed. Stdout belongs to the command, so all messages go to stderr.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

from msgspec import Struct

from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.error_report import report_error
from stepwell.cli.common.exit_codes import COMMAND_MISSING, COMMAND_UNRUNNABLE, RECORD_FAILED
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_error, print_json
from stepwell.cli.common.parameters import argument, flag, json_flag, option
from stepwell.cli.plan.apply import root_option, tree_root
from stepwell.cli.plan.common import run_command
from stepwell.cli.plan.common.execution import RENEW_SECONDS, Lease, lease_renewer, start_execution
from stepwell.cli.plan.common.plan_id import PlanId, find_plan
from stepwell.client.client import connect
from stepwell.client.workflows.capture import Captured
from stepwell.domain.plans.model import Plan
from stepwell.errors import InvalidArgument, StepwellError
from stepwell.terminal import escape_line
from stepwell.text import plural

app: Final = command_app()

_NOT_IN_TOOL_NAME: Final = re.compile(r"[^A-Za-z0-9._:-]+")


class _CommandFailed(Exception):
    """The command failed, so nothing is recorded. It leaves the capture by an exception, which discards the changes."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Arguments(Struct, frozen=True):
    """The arguments of the command."""

    plan: str
    command: list[str]
    root: Path | None
    tool: str | None
    keep: bool
    lease: int | None
    address: str | None
    json: bool


@app.command(
    cls=ShellCommand,
    epilog="exit codes: that of the command, or 128 and the number of the signal that ended it; 125, the plan could "
    "not be started or recorded, and stderr says why; 126, the command cannot be run; 127, there is no such command; "
    "2, asked for wrongly.",
)
def run(
    *,
    plan: PlanId,
    command: Annotated[list[str], argument("-- COMMAND", "the command to run, with its arguments")],
    root: Annotated[Path | None, root_option("the tree in which changes count")] = None,
    tool: Annotated[
        str | None, option("--tool", metavar="NAME", about="who made the changes (default: the command's name)")
    ] = None,
    keep: Annotated[bool, flag("--keep", "record the changes of a command that failed, too")] = False,
    lease: Lease = None,
    address: Address = None,
    json: Annotated[
        bool,
        json_flag(
            "`plan_id`, `exit_code`, `changeset_id` (null if nothing was recorded) and `entries`, a list with the "
            "fields of `stepwell.types.EntryRow` by name; what the command itself writes then goes to stderr"
        ),
    ] = False,
) -> int:
    """It takes the plan's lease (a plan without a strategy goes straight to execute), runs the command with this
    terminal, records, and completes the execution: one record is one execution. For several commands, run a shell:
    `-- sh -c 'one && two'`, or `--keep -- bash`. If the command fails, nothing is recorded, what it changed stays in
    the tree, and the plan is queued for the next record.
    """
    return _run(_Arguments(plan, command, root, tool, keep, lease, address, json))


def _run(arguments: _Arguments) -> int:
    """Record, and turn errors into the exit codes 125 to 127.

    The command is looked up before the lease is taken, so that a spelling mistake does not cost the plan an attempt.
    """
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


def _record(arguments: _Arguments) -> int:
    """Take the lease, run the command while its changes are captured, and complete the execution."""
    root = tree_root(arguments.root)
    if not root.is_dir():
        raise InvalidArgument(f"{str(root)!r} is no directory: give the tree that the command changes as --root")
    with connect(resolve_address(arguments.address)) as client:
        plan = start_execution(client, find_plan(client, arguments.plan), arguments.lease)
        context = client.execution(plan.plan_id, lease=arguments.lease)
        try:
            with context.capture(root, tool=arguments.tool or _tool(arguments.command[0])) as captured:
                code = _run_command(arguments, lease_renewer(client, plan.plan_id, arguments.lease))
        except _CommandFailed as failed:
            _report_failed(plan, root, arguments, failed.code)
            return failed.code
        if arguments.lease is None:
            client.plans.complete_execute(plan.plan_id)
    _report_recorded(plan, root, captured, arguments, code)
    return code


def _run_command(arguments: _Arguments, renew: Callable[[], None]) -> int:
    """Run the command and return its exit code. Raise `_CommandFailed` if it is not 0 and `--keep` is not given."""
    code = run_command.run(arguments.command, renew, RENEW_SECONDS, stdout_to_stderr=arguments.json)
    if code and not arguments.keep:
        raise _CommandFailed(code)
    return code


def _tool(program: str) -> str:
    """Return a name for the program that is valid as the tool of a change."""
    name = _NOT_IN_TOOL_NAME.sub("-", Path(program).name).lstrip("._:-")
    return name[:64] or "command"


def _report_failed(plan: Plan, root: Path, arguments: _Arguments, code: int) -> None:
    """Report that the command failed and that nothing was recorded."""
    then = "; the plan is queued for another attempt" if arguments.lease is None else ""
    print_error(
        f"{shlex.join(arguments.command)} ended with {code}: what it changed in {escape_line(str(root))} stays there, "
        f"and was not recorded (--keep would have){then}"
    )
    if arguments.json:
        print_json(_json_object(plan.plan_id, code, None))


def _report_recorded(plan: Plan, root: Path, captured: Captured, arguments: _Arguments, code: int) -> None:
    """Report what was recorded, on stderr."""
    if arguments.json:
        print_json(_json_object(plan.plan_id, code, captured))
        return
    changes = len(captured.entries)
    what = f"{plural(changes, 'change')} in" if changes else "nothing changed in"
    then = "" if arguments.lease is not None else "; `stepwell plan diff` shows it, `stepwell plan apply` applies it"
    print_error(f"recorded into {plan.plan_id}: {what} {escape_line(str(root))}{then if changes else ''}")


def _json_object(plan_id: str, code: int, captured: Captured | None) -> dict[str, object]:
    """Return the object for `--json`."""
    return {
        "plan_id": plan_id,
        "exit_code": code,
        "changeset_id": captured.changeset_id if captured else None,
        "entries": to_json_value([*captured.entries]) if captured else [],
    }
