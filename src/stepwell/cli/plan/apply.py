"""`stepwell plan apply`: bring a plan's changes into a tree.

All files are changed, or none. Each file has to have the content that the plan expects; otherwise the command lists the
differing files, changes nothing and ends with exit code 3. The plan's validations run in the changed tree. If a
required one fails, the changes are undone, the output of the validation is shown and the exit code is 4.

With `--wait` the plan takes its turn among those that are to be applied to the same tree. Without it, the command is
refused while others wait.

It can be repeated: a plan that is applied is reported as such, and nothing is changed again.

The tree may have come with a `.stepwell` of its own. What this user's processes did not put there is left alone, with a
line on stderr for each such directory.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Final

from typer.models import OptionInfo

from stepwell import limits
from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.error_report import EXIT_CODES, reports_errors
from stepwell.cli.common.exit_codes import CONSTRAINED, FAILED
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_error, print_json, print_result
from stepwell.cli.common.parameters import decimal_number, flag, json_flag, option, whole_number
from stepwell.cli.common.state_directory import directory_path
from stepwell.cli.plan.common.format import local_time
from stepwell.cli.plan.common.plan_id import PlanId, find_plan
from stepwell.client.client import connect
from stepwell.client.execution import PlanExecutionContext
from stepwell.domain.plans.model import Plan
from stepwell.domain.plans.validations import ValidationResult
from stepwell.domain.replies import ApplyQueued
from stepwell.errors import AlreadyRolledBack, ValidationFailed
from stepwell.terminal import escape_line, escape_terminal
from stepwell.text import plural

app: Final = command_app()


def root_option(about: str) -> OptionInfo:
    """Return the option `--root`, the directory whose files are changed."""
    return option("--root", metavar="DIR", parse=directory_path, about=f"{about} (default: this directory)")


def tree_root(given: Path | None) -> Path:
    """Return the root with all symbolic links resolved.

    The path is stored with the plan and printed, so it has to mean the same in every working directory.
    """
    return (given or Path()).resolve()


@contextmanager
def sigterm_as_interrupt() -> Generator[None]:
    """Treat SIGTERM like Ctrl-C for the duration of the block: the changes that are half done are undone before the
    end.
    """

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    plan: PlanId,
    root: Annotated[Path | None, root_option("the tree to change")] = None,
    wait: Annotated[
        bool, flag("--wait", "wait in the queue of the tree until it is the plan's turn; its place is told on stderr")
    ] = False,
    priority: Annotated[
        int,
        option(
            "--priority",
            metavar="NUMBER",
            parse=whole_number,
            about="with --wait: a plan with a larger one comes first, from -100 to 100",
        ),
    ] = 0,
    timeout: Annotated[
        float | None,
        option(
            "--timeout",
            metavar="SECONDS",
            parse=decimal_number,
            about="with --wait: leave the queue after this time, with exit code 1",
        ),
    ] = None,
    address: Address = None,
    json: Annotated[
        bool,
        json_flag(
            "`outcome` (`applied`, `applied_before`, `constrained` or `rolled_back`) and `plan`, with the fields of "
            "`stepwell.Plan` by name; or `error`, with `kind`, `message` and `details`"
        ),
    ] = False,
) -> int:
    """Each file has to be what the plan found there, or already what it shall be. Its validations run in the tree; if a
    required one fails, all is undone. Applied once, it is not applied again.
    """
    apply = partial(
        PlanExecutionContext.apply,
        root=(tree := tree_root(root)),
        wait=wait,
        priority=priority,
        timeout_s=timeout,
        on_place=partial(_tell_place, tree) if wait else None,
        on_warning=print_error,
    )
    return _apply(plan, tree, resolve_address(address), apply, as_json=json)


def _tell_place(root: Path, found: ApplyQueued) -> None:
    """Say at which place the plan is, and which plan is being applied."""
    now = f", while plan {found.applying} is being applied" if found.applying else ""
    print_error(f"waiting for {escape_line(str(root))}: {found.place} of {found.plans}{now}")


def _apply(
    given: str, root: Path, address: str, apply: Callable[[PlanExecutionContext], Plan], *, as_json: bool
) -> int:
    """Apply the plan and report the outcome: 0, applied now or before; 4, constrained; 1, it was rolled back before."""
    with connect(address) as client:
        before = find_plan(client, given)
        with sigterm_as_interrupt():
            try:
                plan = apply(client.execution(before.plan_id))
            except (ValidationFailed, AlreadyRolledBack):  # both are outcomes here, with an exit code of their own
                plan = client.plans.get_plan(before.plan_id)
    # Applying an applied plan returns it unchanged. Only the plan from before the call shows which of the two happened.
    was_before = before.applied is not None
    if as_json:
        print_json({"outcome": _outcome(plan, was_before=was_before), "plan": to_json_value(plan)})
    if plan.applied is None:
        _report_constrained(plan, root)
        return CONSTRAINED
    if plan.rolled_back is not None:
        print_error(f"plan {plan.plan_id} was rolled back at {local_time(plan.rolled_back.at_ms)}: make another one")
        return FAILED
    if not as_json:
        print_result(_applied_text(plan, was_before=was_before))
    return 0


def _outcome(plan: Plan, *, was_before: bool) -> str:
    """Return the value of the JSON key `outcome`."""
    if plan.applied is None:
        return "constrained"
    if plan.rolled_back is not None:
        return "rolled_back"
    return "applied_before" if was_before else "applied"


def _applied_text(plan: Plan, *, was_before: bool) -> str:
    """Return the line that reports an apply: the number of paths, the root and the validations."""
    applied = plan.applied
    assert applied is not None
    what = f"{plural(applied.paths, 'path')} in {escape_line(applied.root)}"
    if was_before:
        return f"plan {plan.plan_id} was applied before, at {local_time(applied.at_ms)}: {what}"
    passed = sum(each.passed for each in applied.validations)
    proven = f", {passed} of {plural(len(applied.validations), 'validation')} passed" if applied.validations else ""
    return f"applied {plan.plan_id}: {what}{proven}"


def _report_constrained(plan: Plan, root: Path) -> None:
    """Report why the tree is unchanged, with the end of the output of each validation that failed."""
    constrained = plan.constrained
    reason = constrained.reason if constrained else "a required validation failed"
    print_error(
        f"plan {plan.plan_id} is constrained, and {escape_line(str(root))} is as it was: {reason}; "
        "`stepwell plan revert` it, or `cancel` it"
    )
    for result in constrained.validations if constrained else ():
        if not result.passed:
            print_error(f"  {result.name}: {result.summary}")
            for line in output_tail(result, limits.OUTPUT_LINES_SHOWN):
                print_error(f"    {line}")


def output_tail(result: ValidationResult, count: int) -> list[str]:
    """Return the last lines of a validation's output, escaped for a terminal. Empty if it wrote nothing."""
    return escape_terminal(result.output).rstrip().split("\n")[-count:] if result.output.strip() else []
