"""`stepwell plan show`: all that an operator asks about one plan."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Iterator
from typing import Final

from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepwell.cli.common.addresses import resolve
from stepwell.cli.common.json_values import plain
from stepwell.cli.common.output import escape_terminal, in_line, results, say_json
from stepwell.cli.common.subcommand import Verb
from stepwell.cli.plan.apply import how_it_ended, last_lines
from stepwell.cli.plan.children import Relative, children_of, tree_of
from stepwell.cli.plan.format import counted, moment, position
from stepwell.cli.plan.resolve import add_plan, find
from stepwell.client.client import connect
from stepwell.domain.changesets.model import Changeset, ChangesetState, Content
from stepwell.domain.plans.model import Lease, Phase, Plan
from stepwell.domain.plans.validations import ValidationResult

_OUTPUT_LINES: Final = 10  # of the end of what a validation wrote
_DIGEST_CHARS: Final = 12


class _Shown(Struct, frozen=True):
    """What is known of a plan."""

    plan: Plan
    changesets: tuple[Changeset, ...]
    children: tuple[Relative, ...]


def _run(arguments: argparse.Namespace) -> int:
    with connect(resolve(arguments.address)) as client:
        plan = find(client, arguments.plan)
        changesets = tuple(client.execution(plan.plan_id).changesets())
        shown = _Shown(plan, changesets, children_of(client, plan))
    if arguments.json:
        say_json(plain(shown))
    else:
        _print(results(), shown)
    return 0


def _print(console: Console, shown: _Shown) -> None:
    plan = shown.plan
    console.print(_facts(plan))
    if shown.children:
        console.print(tree_of("children", shown.children))
    if shown.changesets:
        console.print(_changesets(plan, shown.changesets))
    if plan.conflicts:
        console.print(_conflicts(plan))
    if plan.validations:
        console.print(_validations(plan))
        _print_outputs(console, plan)
    if plan.errors:
        console.print(_errors(plan))


def _facts(plan: Plan) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(plan):
        table.add_row(name, value)
    return table


def _rows(plan: Plan) -> Iterator[tuple[str, Text]]:
    yield "plan", Text(plan.plan_id)
    yield "action", Text(plan.action_name)
    yield "description", Text(escape_terminal(plan.description))
    yield "done when", Text(escape_terminal(plan.definition_of_done))
    links = (f"{link.project} (read only)" if link.read_only else link.project for link in plan.project_links)
    yield "projects", Text(", ".join(links))
    if plan.arguments:
        yield "arguments", Text(in_line(", ".join(f"{name}={value}" for name, value in plan.arguments.items())))
    if plan.parent_plan_id is not None:
        yield "parent", Text(plan.parent_plan_id)
    where = position(plan.phase, plan.state, rolled_back=plan.rolled_back is not None)
    yield "stands at", where.append(f", attempt {plan.attempt}, version {plan.version}", "default")
    if plan.lease is not None:
        yield "lease", Text(_lease(plan.lease))
    if plan.read_only:
        yield "read only", Text("it may not change anything")
    yield "created", Text(moment(plan.created_at_ms))
    for phase in Phase:
        if times := _times(plan, phase):
            yield str(phase), Text(times)
    if plan.reversion_count:
        yield "reverted", Text(counted(plan.reversion_count, "time"))
    for invariant in plan.invariants:
        yield "invariant", Text(f"{escape_terminal(invariant.text)} ({invariant.source})")
    if plan.decision_ids:
        yield "decisions", Text(f"{len(plan.decision_ids):,}")
    yield from _endings(plan)


def _lease(lease: Lease) -> str:
    left_s = lease.expires_at_ms / 1000 - time.time()
    left = f"{left_s:.0f} s from now" if left_s > 0 else "over"
    return f"session {lease.session_id}, until {moment(lease.expires_at_ms)} ({left}), token {lease.token}"


def _times(plan: Plan, phase: Phase) -> str:
    times = plan.times.get(phase)
    if times is None:
        return ""
    told = ("queued", times.queued_at_ms), ("started", times.started_at_ms), ("ended", times.ended_at_ms)
    return ", ".join(f"{verb} {moment(at_ms)}" for verb, at_ms in told if at_ms is not None)


def _endings(plan: Plan) -> Iterator[tuple[str, Text]]:
    """How it was applied, why not, and how that was undone."""
    if (constrained := plan.constrained) is not None:
        yield (
            "constrained",
            Text(f"{moment(constrained.at_ms)}, attempt {constrained.attempt}: ", "red").append(
                escape_terminal(constrained.reason)
            ),
        )
    if (applied := plan.applied) is not None:
        what = (
            f"{counted(applied.paths, 'path')} in {in_line(applied.root)}"
            if applied.root
            else (counted(applied.paths, "path"))
        )
        yield "applied", Text(f"{moment(applied.at_ms)}, attempt {applied.attempt}: {what}", "green")
    if (undone := plan.rolled_back) is not None:
        why = f": {escape_terminal(undone.reason)}" if undone.reason else ""
        yield "rolled back", Text(f"{moment(undone.at_ms)}, {counted(undone.paths, 'path')}{why}", "magenta")


def _changesets(plan: Plan, changesets: tuple[Changeset, ...]) -> Table:
    """Those that do not count, of an earlier attempt or aborted, are there to be read."""
    table = _table("changesets", "changeset", "state", "attempt", "changes", "started", "counts")
    attempt = plan.attempt if plan.executed_attempt is None else plan.executed_attempt
    for each in changesets:
        counts = (each.state, each.attempt) == (ChangesetState.CLOSED, attempt)
        table.add_row(
            each.changeset_id,
            each.state,
            str(each.attempt),
            f"{each.entry_count:,}",
            moment(each.started_at_ms),
            Text("yes", "green") if counts else Text("no", "dim"),
        )
    return table


def _conflicts(plan: Plan) -> Table:
    table = _table("conflicts of the children", "path", "child", "state", "base", "ours", "theirs")
    for each in plan.conflicts:
        state = Text("open", "red") if each.is_open else Text(f"resolved: {each.resolution}", "green")
        sides = (Text(_side(side)) for side in (each.base, each.ours, each.theirs))
        table.add_row(Text(in_line(each.path)), each.alias, state, *sides)
    return table


def _side(content: Content | None) -> str:
    return "nothing" if content is None else content.digest.hex()[:_DIGEST_CHARS]


def _results(plan: Plan) -> tuple[ValidationResult, ...]:
    ending = plan.applied or plan.constrained
    return ending.validations if ending else ()


def _validations(plan: Plan) -> Table:
    table = _table("validations", "validation", "command", "required", "result")
    results_ = {each.name: each for each in _results(plan)}
    for each in plan.validations:
        result = results_.get(each.name)
        told = Text("not run", "dim")
        if result is not None:
            told = Text(how_it_ended(result), "green" if result.passed else "red")
        command = Text(in_line(shlex.join(each.command)))
        table.add_row(each.name, command, "yes" if each.required else "no", told)
    return table


def _print_outputs(console: Console, plan: Plan) -> None:
    for result in _results(plan):
        if lines := last_lines(result, _OUTPUT_LINES):
            console.print(Text(f"end of the output of {result.name}", "bold"))
            console.print(Text("".join(f"  {line}\n" for line in lines)))


def _errors(plan: Plan) -> Table:
    table = _table("errors", "when", "phase", "attempt", "what")
    for each in plan.errors:
        table.add_row(moment(each.at_ms), each.phase, str(each.attempt), Text(escape_terminal(each.message)))
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, overflow="fold", no_wrap=heading == "changeset")  # an id is copied
    return table


SHOW: Final = Verb(
    "Show all that is known of a plan: where it stands, who works on it, what it changed, and what went wrong",
    add_plan,
    _run,
    "`plan`, with the fields of `stepwell.Plan` by name, `changesets`, and `children`, a list, each with `plan_id`, "
    "`alias`, `depends_on`, `action_name`, `phase`, `state`, `attempt`, `error` and `children`",
)
