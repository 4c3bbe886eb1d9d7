"""The parts that `stepwell plan merge` and `resolve` share: the options of a choice, the editor, and the list of open
conflicts.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, cast

from msgspec import Struct
from rich import box
from rich.table import Table
from rich.text import Text

from stepwell.cli.common.output import print_error
from stepwell.cli.common.parameters import choice, flag
from stepwell.cli.plan.common import run_command
from stepwell.cli.plan.common.execution import RENEW_SECONDS
from stepwell.client.execution import PlanExecutionContext
from stepwell.client.workflows.conflicts import ConflictSides
from stepwell.domain.plans.conflicts import Side
from stepwell.domain.plans.model import Plan
from stepwell.errors import InvalidArgument, ToolMissing
from stepwell.terminal import escape_line
from stepwell.trees.merge.text_merge import HunkKind

Accept = Annotated[
    list[str] | None,
    choice(
        "--accept",
        values=("ours", "theirs"),
        about="take this side wherever both changed the same; given several times, a side for each hunk",
    ),
]
Edit = Annotated[bool, flag("--edit", "open the text with conflict markers in $VISUAL or $EDITOR, and take the result")]

_EDITOR: Final = "vi"  # as git does


def given_sides(accept: Sequence[str]) -> Side | list[Side]:
    """Return the sides of `--accept`: one is for all hunks."""
    sides = cast("list[Side]", [*accept])  # the option takes no other value
    return sides[0] if len(sides) == 1 else sides


def resolve_by_editor(
    context: PlanExecutionContext, path: str, renew: Callable[[], None], version: str | None = None
) -> Plan:
    """Let the user edit the text of a conflict, and resolve the conflict with it.

    If the text is refused, for instance because it still has markers, its file is kept and named. `version` is that of
    the conflict that the user has seen, if it was given.
    """
    sides = context.conflict_sides(path)
    if version is not None:
        sides.conflict.require_version(version)
    if sides.marked is None or not sides.is_text or any(hunk.kind is HunkKind.MODE for hunk in sides.hunks):
        raise InvalidArgument(f"{path!r} cannot be edited ({sides.reason}): give --accept ours or --accept theirs")
    editor = _editor()
    directory = Path(tempfile.mkdtemp(prefix="merge-"))
    file = directory / PurePosixPath(path).name  # an editor knows the language by the name
    file.write_bytes(sides.marked)
    try:
        plan = _edit_and_resolve(context, sides, [*editor, str(file)], file, renew)
    except BaseException:
        print_error(f"the text that you edited is in {file}")
        raise
    shutil.rmtree(directory)
    return plan


def _editor() -> list[str]:
    """Return the command of the user's editor; `ToolMissing` if there is no such program."""
    given = os.environ.get("VISUAL") or os.environ.get("EDITOR") or _EDITOR
    try:
        command = shlex.split(given)
    except ValueError:  # an open quote
        command = []
    if not command or shutil.which(command[0]) is None:
        raise ToolMissing(f"there is no editor {given!r}: set EDITOR to a program that edits a file")
    return command


def _edit_and_resolve(
    context: PlanExecutionContext, sides: ConflictSides, command: list[str], file: Path, renew: Callable[[], None]
) -> Plan:
    try:
        code = run_command.run(command, renew, RENEW_SECONDS)
    except run_command.CannotRun as error:
        raise ToolMissing(f"{error}: set EDITOR to a program that edits a file") from error
    if code:
        raise InvalidArgument(f"the editor ended with {code}, so nothing is resolved")
    return context.resolve(sides, body=file.read_bytes())


class OpenConflict(Struct, frozen=True):
    """An open conflict, for `--json` and for the table. `waiting` are the children that come behind it at the path.

    `is_text` is true if the conflict can be shown as text with markers, edited, and given back.
    """

    path: str
    child: str
    version: str
    hunks: int
    is_text: bool
    reason: str
    waiting: tuple[str, ...]


def open_conflicts(context: PlanExecutionContext, plan: Plan) -> list[OpenConflict]:
    """Return the open conflicts of a plan, one for each path."""
    found: list[OpenConflict] = []
    for conflict in plan.open_conflicts:
        sides = context.conflict_sides(conflict.path)
        aliases = tuple(each.alias for each in plan.conflicts if each.is_open and each.path == conflict.path)
        found.append(
            OpenConflict(
                path=conflict.path,
                child=aliases[0],
                version=sides.version,
                hunks=len(sides.hunks),
                is_text=sides.is_text,
                reason=sides.reason,
                waiting=aliases[1:],
            )
        )
    return found


def conflict_table(conflicts: Sequence[OpenConflict]) -> Table:
    """Return the open conflicts as a table. Paths come from files, so they are escaped."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("path", "child", "hunks", "reason", "waiting behind it"):
        table.add_column(heading, overflow="fold")
    for each in conflicts:
        cells = (escape_line(each.path), each.child, str(each.hunks), each.reason, ", ".join(each.waiting))
        table.add_row(*(Text(cell) for cell in cells))
    return table
