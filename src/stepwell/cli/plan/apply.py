"""`stepwell plan apply` and `rollback`: bring a plan's changes into a tree, or take them out again.

Both change all files or none. Each file has to have the content that the plan expects; otherwise the command lists the
differing files, changes nothing and ends with exit code 3. `apply` runs the plan's validations in the changed tree. If
a required one fails, the changes are undone, the output of the validation is shown and the exit code is 4.

Both can be repeated: a plan that is applied, or rolled back, is reported as such, and nothing is changed again.

The tree may have come with a `.stepwell` of its own. What this user's processes did not put there is left alone, with a
line on stderr for each such directory.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from stepwell import limits
from stepwell.cli.common.addresses import resolve_address
from stepwell.cli.common.exit_codes import CONSTRAINED, FAILED
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_error, print_json, print_result
from stepwell.cli.common.state_directory import directory_path
from stepwell.cli.common.subcommand import Subcommand
from stepwell.cli.plan.format import count_text, local_time
from stepwell.cli.plan.resolve import add_plan, find_plan
from stepwell.client.client import connect
from stepwell.domain.plans.model import Plan
from stepwell.domain.plans.validations import ValidationResult
from stepwell.terminal import escape_line, escape_terminal


def add_root(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option `--root`, the directory whose files are changed."""
    parser.add_argument("--root", metavar="DIR", type=directory_path, help=f"{what} (default: this directory)")


def tree_root(arguments: argparse.Namespace) -> Path:
    """Return the root with all symbolic links resolved.

    The path is stored with the plan and printed, so it has to mean the same in every working directory.
    """
    given: Path | None = arguments.root
    return (given or Path()).resolve()


@contextmanager
def _sigterm_as_interrupt() -> Generator[None]:
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


def _add_apply(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    add_root(parser, "the tree to change")


def _apply(arguments: argparse.Namespace) -> int:
    """Apply the plan and report the outcome: 0, applied now or before; 4, constrained; 1, it was rolled back before."""
    root = tree_root(arguments)
    with connect(resolve_address(arguments.address)) as client:
        before = find_plan(client, arguments.plan)
        with _sigterm_as_interrupt():
            plan = client.execution(before.plan_id).apply(root, on_warning=print_error)
    # Applying an applied plan returns it unchanged. Only the plan from before the call shows which of the two happened.
    was_before = before.applied is not None
    if arguments.json:
        print_json({"outcome": _outcome(plan, was_before=was_before), "plan": to_json_value(plan)})
    if plan.applied is None:
        _report_constrained(plan, root)
        return CONSTRAINED
    if plan.rolled_back is not None:
        print_error(f"plan {plan.plan_id} was rolled back at {local_time(plan.rolled_back.at_ms)}: make another one")
        return FAILED
    if not arguments.json:
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
    what = f"{count_text(applied.paths, 'path')} in {escape_line(applied.root)}"
    if was_before:
        return f"plan {plan.plan_id} was applied before, at {local_time(applied.at_ms)}: {what}"
    passed = sum(each.passed for each in applied.validations)
    proven = f", {passed} of {count_text(len(applied.validations), 'validation')} passed" if applied.validations else ""
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
            print_error(f"  {result.name}: {describe_result(result)}")
            for line in output_tail(result, limits.OUTPUT_LINES_SHOWN):
                print_error(f"    {line}")


def describe_result(result: ValidationResult) -> str:
    """Return the result of a validation in a few words."""
    if result.timed_out:
        return f"stopped after {result.duration_ms / 1000:.1f} s"
    if result.exit_code is None:
        return "did not end by itself, or could not be started"
    return f"ended with {result.exit_code} after {result.duration_ms / 1000:.1f} s"


def output_tail(result: ValidationResult, count: int) -> list[str]:
    """Return the last lines of a validation's output, escaped for a terminal. Empty if it wrote nothing."""
    return escape_terminal(result.output).rstrip().split("\n")[-count:] if result.output.strip() else []


def _add_rollback(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    add_root(parser, "the tree in which it was applied")
    parser.add_argument("--reason", metavar="TEXT", default="", help="kept with the plan")


def _rollback(arguments: argparse.Namespace) -> int:
    """Roll the plan back and report it. A plan that was never applied is refused by the manager."""
    root = tree_root(arguments)
    with connect(resolve_address(arguments.address)) as client:
        before = find_plan(client, arguments.plan)
        with _sigterm_as_interrupt():
            plan = client.execution(before.plan_id).rollback(root, reason=arguments.reason, on_warning=print_error)
    assert plan.rolled_back is not None
    was_before = before.rolled_back is not None
    if arguments.json:
        print_json({"outcome": "rolled_back_before" if was_before else "rolled_back", "plan": to_json_value(plan)})
    elif was_before:
        print_result(f"plan {plan.plan_id} was rolled back before, at {local_time(plan.rolled_back.at_ms)}")
    else:
        paths = count_text(plan.rolled_back.paths, "path")
        print_result(f"rolled back {plan.plan_id}: {paths} in {escape_line(str(root))} as before the plan")
    return 0


APPLY: Final = Subcommand(
    "Change the files of a tree as a plan says: all of them, or none",
    _add_apply,
    _apply,
    "`outcome` (`applied`, `applied_before`, `constrained` or `rolled_back`) and `plan`, with the fields of "
    "`stepwell.Plan` by name; or `error`, with `kind`, `message` and `details`",
    detail="Each file has to be what the plan found there, or already what it shall be. Its validations run in the "
    "tree; if a required one fails, all is undone. Applied once, it is not applied again.",
)
ROLLBACK: Final = Subcommand(
    "Restore the files of a tree as they were before a plan was applied",
    _add_rollback,
    _rollback,
    "`outcome` (`rolled_back` or `rolled_back_before`) and `plan`, with the fields of `stepwell.Plan` by name; or "
    "`error`, with `kind`, `message` and `details`",
    detail="Files that were changed since are a conflict, and then all files are left as they are.",
)
