"""The net effect of a whole plan on a tree, as a unified diff and as statistics.

Both are computed from net changes: a path that was changed five times has one difference, and a path that ends as it
began has none. A file that disappears at one path and appears unchanged at another is shown as a move.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from msgspec import Struct

from stepwell import limits
from stepwell.client.api.changesets import ChangesetApi
from stepwell.client.api.entry_diff import entry_diff
from stepwell.client.session.calls import Answered, Call
from stepwell.client.session.session import Session
from stepwell.client.workflows.plan_delta import tree_entry
from stepwell.domain.changesets.model import EntryRow, Operation, derive_operation
from stepwell.domain.changesets.net_changes import NetChange, net_changes
from stepwell.domain.patterns import glob_matcher
from stepwell.domain.replies import BodiesLocated
from stepwell.domain.tiers.commands import LocateBodies
from stepwell.errors import InvalidArgument
from stepwell.text import brief_repr
from stepwell.trees.capture import TreeDifference, pair_moves


class PlanChanges(Struct, frozen=True):
    """Statistics of a plan's net changes.

    `paths` are those that do not end as they began; `by_operation` counts them, moves as one. `entries` is the number
    of recorded changes before netting. A path that two tools changed counts for both in `by_tool`.
    """

    plan_id: str
    entries: int
    by_operation: dict[Operation, int]
    by_tool: dict[str, int]
    paths: tuple[str, ...]

    __repr__ = brief_repr


def plan_diff(context: ChangesetApi, paths: Sequence[str], tools: Sequence[str]) -> str:
    """Return the unified diff for `PlanExecutionContext.plan_diff`.

    Bodies are located in groups, because one request for all of a large plan would exceed a reply.
    """
    entries = context.recorded()
    net = net_changes(entries)
    rows = _rows(context.plan_id, net, _chosen(net, _tools(entries), paths, tools))
    parts: list[str] = []
    for start in range(0, len(rows), limits.PATHS_PER_DIFF_REQUEST):
        group = rows[start : start + limits.PATHS_PER_DIFF_REQUEST]
        bodies = _bodies(context.session, group)
        parts += [entry_diff(row, bodies) for row in group]
    return "".join(parts)


def plan_summary(context: ChangesetApi) -> PlanChanges:
    """Return the statistics for `PlanExecutionContext.plan_summary`."""
    entries = context.recorded()
    net = net_changes(entries)
    tools = _tools(entries)
    rows = _rows(context.plan_id, net, _chosen(net, tools, (), ()))
    changed = [path for path in sorted(net) if not net[path].is_nothing]
    return PlanChanges(
        plan_id=context.plan_id,
        entries=len(entries),
        by_operation=dict(Counter(row.operation for row in rows)),
        by_tool=dict(Counter(tool for path in changed for tool in sorted(tools[path]))),
        paths=tuple(changed),
    )


def _chosen(
    net: dict[str, NetChange], by_path: dict[str, set[str]], paths: Sequence[str], tools: Sequence[str]
) -> Iterator[NetChange]:
    """Yield the net changes at paths that match a glob and that one of the tools changed; empty means all."""
    for name, given in (("paths", paths), ("tools", tools)):
        if isinstance(given, str):
            raise InvalidArgument(f"{name} is a sequence: give [{given!r}]")
    matches, wanted = glob_matcher(paths), {*tools}
    for path, change in net.items():
        if not change.is_nothing and matches(path) and (not wanted or wanted & by_path[path]):
            yield change


def _rows(plan_id: str, net: dict[str, NetChange], chosen: Iterator[NetChange]) -> list[EntryRow]:
    """Return one row for each net change, in order of path, with moves detected as in a captured tree."""
    differences = pair_moves(
        TreeDifference(each.path, tree_entry(each.before), tree_entry(each.after)) for each in chosen
    )
    rows: list[EntryRow] = []
    for seq, each in enumerate(differences, 1):
        before, after = net[each.source_path or each.path].before, net[each.path].after
        operation = derive_operation(before, after, each.path, each.source_path)
        rows.append(EntryRow(plan_id, "", seq, operation, each.path, each.source_path, before, after, "", 0))
    return rows


def _tools(entries: Sequence[EntryRow]) -> dict[str, set[str]]:
    """Return the tools that changed each path; a move changes both of its paths."""
    tools: defaultdict[str, set[str]] = defaultdict(set)
    for entry in entries:
        tools[entry.path].add(entry.tool)
        if entry.source_path is not None:
            tools[entry.source_path].add(entry.tool)
    return tools


def _bodies(session: Session, rows: Sequence[EntryRow]) -> dict[bytes, memoryview]:
    """Return the bodies that the manager holds for these rows; entry_diff only names the others."""
    held = dict.fromkeys(digest for row in rows for digest, _ in row.held)

    def read(answered: Answered[BodiesLocated]) -> dict[bytes, memoryview]:
        return {digest: session.bodies.read(digest, handle) for digest, handle in answered.handles.items()}

    return session.perform(Call(LocateBodies(tuple(held)), read)) if held else {}
