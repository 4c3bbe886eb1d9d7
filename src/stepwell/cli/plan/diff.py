"""`stepwell plan diff`: show the changes of a plan as a unified diff, as git writes it.

By default it shows the net change of each path: a file that was created and deleted again does not appear. With
`--changeset` it shows the entries of one changeset as they were recorded, also of one that was aborted. `--path` and
`--tool` select, `--stat` counts lines instead of showing them.

In a pipe or a file the diff is exact and `git apply` accepts it. On a terminal it is coloured and control characters in
file contents are escaped. If there is nothing to show, a line on stderr says so and the exit code is 0.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Struct
from rich.text import Text

from stepwell import limits
from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.console import result_console
from stepwell.cli.common.error_report import EXIT_CODES, reports_errors
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_error, print_json, write_result
from stepwell.cli.common.parameters import flag, json_flag, option
from stepwell.cli.plan.common.diffstat import FileStat, file_stats
from stepwell.cli.plan.common.plan_id import PlanId, find_plan
from stepwell.client.api.entry_diff import entry_diff
from stepwell.client.client import connect
from stepwell.client.execution import PlanExecutionContext
from stepwell.domain.changesets.model import EntryRow
from stepwell.domain.patterns import glob_matcher
from stepwell.errors import NotFound
from stepwell.terminal import escape_line, escape_terminal
from stepwell.text import plural

app: Final = command_app()

_STYLES: Final = {"+++": "bold", "---": "bold", "@@ ": "cyan", "dif": "bold"}
_LINE_STYLES: Final = {"+": "green", "-": "red"}


class _Selection(Struct, frozen=True):
    """The part of a plan's changes that is shown: globs of paths, tools, and one changeset. Empty means all."""

    paths: list[str]
    tools: list[str]
    changeset: str | None


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    plan: PlanId,
    # Globs have the same syntax as everywhere in stepwell: `**` also matches slashes.
    path: Annotated[
        list[str] | None,
        option("--path", metavar="GLOB", about="only paths such as 'src/**/*.py'; several may be given"),
    ] = None,
    tool: Annotated[
        list[str] | None, option("--tool", metavar="NAME", about="only what these tools changed; several may be given")
    ] = None,
    changeset: Annotated[
        str | None,
        option("--changeset", metavar="ID", about="only this one, as it was recorded, whether or not it counts"),
    ] = None,
    stat: Annotated[bool, flag("--stat", "how many lines of which files, instead of the lines")] = False,
    address: Address = None,
    json: Annotated[
        bool,
        json_flag("`plan_id`, `diff`, and `files`, a list, each with `path`, `added`, `removed` and `is_binary`"),
    ] = False,
) -> int:
    """In a pipe or a file the diff is exact, and `git apply` takes it; on a terminal control characters are spelled
    out.
    """
    selection = _Selection(path or [], tool or [], changeset)
    with connect(resolve_address(address)) as client:
        found = find_plan(client, plan)
        diff = _diff(client.execution(found.plan_id), found.changeset_ids, selection)
    files = file_stats(diff)
    if json:
        print_json({"plan_id": found.plan_id, "files": to_json_value(files), "diff": diff})
    elif not diff:
        print_error("there is no such change" if selection.paths or selection.tools else "nothing is changed")
    elif stat:
        _print_stat(files)
    else:
        _print_diff(diff)
    return 0


def _diff(context: PlanExecutionContext, changeset_ids: tuple[str, ...], selection: _Selection) -> str:
    """Return the diff of a selection. Raise `NotFound` if the changeset is not one of the plan's."""
    if selection.changeset is None:
        return context.plan_diff(paths=selection.paths, tools=selection.tools)
    if selection.changeset not in changeset_ids:
        raise NotFound(f"the plan has no changeset {selection.changeset!r}: `stepwell plan show` has their ids")
    matches_path = glob_matcher(selection.paths)

    # A move is shown if its source or its target matches. Net changes are filtered by the library instead, in
    # `plan_diff`.
    def is_shown(entry: EntryRow) -> bool:
        named = matches_path(entry.path) or (entry.source_path is not None and matches_path(entry.source_path))
        return named and (not selection.tools or entry.tool in selection.tools)

    parts: list[str] = []
    cursor: str | None = None
    while True:
        page = context.page(selection.changeset, limit=limits.PAGE_ROWS_MAX, cursor=cursor, with_bodies=True)
        parts += [entry_diff(entry, page.bodies) for entry in page.reply.entries if is_shown(entry)]
        cursor = page.reply.cursor
        if cursor is None:
            return "".join(parts)


def _print_diff(diff: str) -> None:
    """Print the diff: unchanged where another program reads it, coloured and escaped on a terminal."""
    console = result_console()
    if not console.is_terminal:
        write_result(diff)
        return
    for line in escape_terminal(diff).removesuffix("\n").split("\n"):
        style = _STYLES.get(line[:3]) or _LINE_STYLES.get(line[:1], "")
        console.print(Text(line, style), soft_wrap=True)


def _print_stat(files: list[FileStat]) -> None:
    """Print a line for each file, with a bar in proportion to its changed lines, and a sum, as `git diff
    --stat` does.
    """
    console = result_console()
    most = max(each.added + each.removed for each in files)
    width = max(len(escape_line(each.path)) for each in files)
    scale = min(1.0, limits.DIFFSTAT_SIGNS_MAX / most) if most else 1.0
    for each in files:
        line = Text(f" {escape_line(each.path):<{width}} | ")
        if each.is_binary:
            line.append("binary")
        else:
            line.append(f"{each.added + each.removed:>5} ")
            line.append("+" * _signs(each.added, scale), "green").append("-" * _signs(each.removed, scale), "red")
        console.print(line, soft_wrap=True)
    added, removed = sum(each.added for each in files), sum(each.removed for each in files)
    lines = f"{plural(added, 'line')} added, {plural(removed, 'line')} removed"
    console.print(Text(f" {plural(len(files), 'file')} changed, {lines}"), soft_wrap=True)


def _signs(lines: int, scale: float) -> int:
    """Return the length of a bar. A change that is not zero has at least one sign."""
    return max(1, round(lines * scale)) if lines else 0
