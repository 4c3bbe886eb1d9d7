"""`stepwell plan show PLAN`: everything that is known of one plan.

It prints the plan's fields, times and lease, and then, where they exist, its children, changesets, conflicts,
validations with the end of their output, and errors. An operator sees there why a plan does not go on. With `--json` it
prints one object with all fields of the plan, its changesets and its children.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepwell import limits
from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.console import result_console
from stepwell.cli.common.error_report import EXIT_CODES, reports_errors
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_json
from stepwell.cli.common.parameters import json_flag
from stepwell.cli.plan.apply import output_tail
from stepwell.cli.plan.common.children import ChildNode, child_nodes, render_tree
from stepwell.cli.plan.common.format import local_time, position_text
from stepwell.cli.plan.common.plan_id import PlanId, find_plan
from stepwell.client.client import connect
from stepwell.domain.changesets.model import Changeset, ChangesetState, Content
from stepwell.domain.plans.model import Lease, Phase, Plan
from stepwell.domain.plans.validations import ValidationResult
from stepwell.terminal import escape_line, escape_terminal
from stepwell.text import plural

app: Final = command_app()

_DIGEST_CHARS: Final = 12  # as many as tell contents apart at a glance; git shows fewer


class _PlanDetails(Struct, frozen=True):
    """A plan, its changesets and the tree of its children: the object that `--json` prints."""

    plan: Plan
    changesets: tuple[Changeset, ...]
    children: tuple[ChildNode, ...]


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    plan: PlanId,
    address: Address = None,
    json: Annotated[
        bool,
        json_flag(
            "`plan`, with the fields of `stepwell.Plan` by name, `changesets`, and `children`, a list as `stepwell "
            "plan subplans` has it"
        ),
    ] = False,
) -> int:
    """It says where the plan stands, who works on it, what it changes and what went wrong."""
    with connect(resolve_address(address)) as client:
        # The three are read one after another, not at once.
        found = find_plan(client, plan)
        changesets = tuple(client.execution(found.plan_id).changesets())
        details = _PlanDetails(found, changesets, child_nodes(client, found))
    if json:
        print_json(to_json_value(details))
    else:
        _print(result_console(), details)
    return 0


def _print(console: Console, details: _PlanDetails) -> None:
    """Print each part that the plan has."""
    plan = details.plan
    console.print(_fields_table(plan))
    if details.children:
        console.print(render_tree("children", details.children))
    if details.changesets:
        console.print(_changesets(plan, details.changesets))
    if plan.conflicts:
        console.print(_conflicts(plan))
    if plan.validations:
        console.print(_validations(plan))
        _print_outputs(console, plan)
    if plan.errors:
        console.print(_errors(plan))


def _fields_table(plan: Plan) -> Table:
    """Return the table of the plan's own fields."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _field_rows(plan):
        table.add_row(name, value)
    return table


def _field_rows(plan: Plan) -> Iterator[tuple[str, Text]]:
    """Yield the name and the text of each field that has something to say, escaped where a client wrote the text."""
    yield "plan", Text(plan.plan_id)
    yield "action", Text(plan.action_name)
    yield "description", Text(escape_terminal(plan.description))
    yield "done when", Text(escape_terminal(plan.definition_of_done))
    links = (f"{link.project} (read only)" if link.read_only else link.project for link in plan.project_links)
    yield "projects", Text(", ".join(links))
    if plan.labels:
        yield "labels", Text(", ".join(plan.labels))
    if plan.arguments:
        yield "arguments", Text(escape_line(", ".join(f"{name}={value}" for name, value in plan.arguments.items())))
    if plan.parent_plan_id is not None:
        yield "parent", Text(plan.parent_plan_id)
    where = position_text(plan.phase, plan.state, rolled_back=plan.rolled_back is not None)
    yield "stands at", where.append(f", attempt {plan.attempt}, version {plan.version}", "default")
    if plan.lease is not None:
        yield "lease", Text(_lease(plan.lease))
    if plan.read_only:
        yield "read only", Text("it may not change anything")
    yield "created", Text(local_time(plan.created_at_ms))
    for phase in Phase:
        if times := _times(plan, phase):
            yield str(phase), Text(times)
    if plan.reversion_count:
        yield "reverted", Text(plural(plan.reversion_count, "time"))
    # The source tells an invariant of the action from one that this plan, or its parent, added.
    for invariant in plan.invariants:
        yield "invariant", Text(f"{escape_terminal(invariant.text)} ({invariant.source})")
    if plan.decision_ids:
        yield "decisions", Text(f"{len(plan.decision_ids):,}")
    yield from _outcome_rows(plan)


def _lease(lease: Lease) -> str:
    """Return the lease in words. The manager runs on the same machine, so its clock and ours agree on the time left."""
    left_s = lease.expires_at_ms / 1000 - time.time()
    left = f"{left_s:.0f} s from now" if left_s > 0 else "over"
    return f"session {lease.session_id}, until {local_time(lease.expires_at_ms)} ({left}), token {lease.token}"


def _times(plan: Plan, phase: Phase) -> str:
    """Return the times of a phase in words; empty if the plan has not reached the phase."""
    times = plan.times.get(phase)
    if times is None:
        return ""
    texts = ("queued", times.queued_at_ms), ("started", times.started_at_ms), ("ended", times.ended_at_ms)
    return ", ".join(f"{verb} {local_time(at_ms)}" for verb, at_ms in texts if at_ms is not None)


def _outcome_rows(plan: Plan) -> Iterator[tuple[str, Text]]:
    """Yield a row for each way in which the plan ended: constrained, applied, rolled back."""
    if (constrained := plan.constrained) is not None:
        yield (
            "constrained",
            Text(f"{local_time(constrained.at_ms)}, attempt {constrained.attempt}: ", "red").append(
                escape_terminal(constrained.reason)
            ),
        )
    if (applied := plan.applied) is not None:
        what = (
            f"{plural(applied.paths, 'path')} in {escape_line(applied.root)}"
            if applied.root
            else (plural(applied.paths, "path"))
        )
        yield "applied", Text(f"{local_time(applied.at_ms)}, attempt {applied.attempt}: {what}", "green")
    if (undone := plan.rolled_back) is not None:
        why = f": {escape_terminal(undone.reason)}" if undone.reason else ""
        yield "rolled back", Text(f"{local_time(undone.at_ms)}, {plural(undone.paths, 'path')}{why}", "magenta")


def _changesets(plan: Plan, changesets: tuple[Changeset, ...]) -> Table:
    """Return the table of changesets. Those of earlier attempts and aborted ones do not count, and are listed to be
    read.
    """
    table = _table("changesets", "changeset", "state", "attempt", "changes", "started", "counts")
    # While the plan executes no attempt has completed yet, and the changesets of the present one are going to count.
    attempt = plan.attempt if plan.executed_attempt is None else plan.executed_attempt
    for each in changesets:
        counts = (each.state, each.attempt) == (ChangesetState.CLOSED, attempt)
        table.add_row(
            each.changeset_id,
            each.state,
            str(each.attempt),
            f"{each.entry_count:,}",
            local_time(each.started_at_ms),
            Text("yes", "green") if counts else Text("no", "dim"),
        )
    return table


def _conflicts(plan: Plan) -> Table:
    """Return the table of merge conflicts, with the beginning of each content's digest."""
    table = _table("conflicts of the children", "path", "child", "state", "base", "ours", "theirs")
    for each in plan.conflicts:
        state = Text("open", "red") if each.is_open else Text(f"resolved: {each.resolution}", "green")
        sides = (Text(_side(side)) for side in (each.base, each.ours, each.theirs))
        table.add_row(Text(escape_line(each.path)), each.alias, state, *sides)
    return table


def _side(content: Content | None) -> str:
    """Return one side of a conflict: the beginning of its digest, or "nothing" if there is no file."""
    return "nothing" if content is None else content.digest.hex()[:_DIGEST_CHARS]


def _results(plan: Plan) -> tuple[ValidationResult, ...]:
    """Return the results of the last apply that ended; empty before the first.

    An applied plan can also have a constrained attempt before. Its results are history then.
    """
    ending = plan.applied or plan.constrained
    return ending.validations if ending else ()


def _validations(plan: Plan) -> Table:
    """Return the table of validations with their results."""
    table = _table("validations", "validation", "command", "required", "result")
    # There is no result before the first apply, and none if an apply was interrupted.
    results_ = {each.name: each for each in _results(plan)}
    for each in plan.validations:
        result = results_.get(each.name)
        texts = Text("not run", "dim")
        if result is not None:
            texts = Text(result.summary, "green" if result.passed else "red")
        command = Text(escape_line(shlex.join(each.command)))
        table.add_row(each.name, command, "yes" if each.required else "no", texts)
    return table


def _print_outputs(console: Console, plan: Plan) -> None:
    """Print the end of the output of each validation that was run."""
    for result in _results(plan):
        if lines := output_tail(result, limits.OUTPUT_LINES_SHOWN):
            console.print(Text(f"end of the output of {result.name}", "bold"))
            console.print(Text("".join(f"  {line}\n" for line in lines)))


def _errors(plan: Plan) -> Table:
    """Return the table of the plan's errors, oldest first."""
    table = _table("errors", "when", "phase", "attempt", "what")
    for each in plan.errors:
        table.add_row(local_time(each.at_ms), each.phase, str(each.attempt), Text(escape_terminal(each.message)))
    return table


def _table(title: str, *headings: str) -> Table:
    """Return an empty table with a title and headings."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, overflow="fold", no_wrap=heading == "changeset")  # an id is copied
    return table
