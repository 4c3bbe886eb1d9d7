"""The rules of merging: the changes of finished children become changes of their parent, or conflicts.

The client that executes the parent computes the merge, because it has the bytes and the manager never reads them. The
manager checks the result against the entries that the children recorded:

- every child that executed is part of the merge, in declared order;
- a merge is recorded once for each attempt;
- the contents of a conflict are those of the recorded entries, so that their bodies stay stored as long as the plans.

The meaning of each strategy is documented at `MergeStrategy`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.changesets.model import ChangesetState, Content, is_same
from stepwell.domain.changesets.net_changes import NetChange, with_found_mode
from stepwell.domain.changesets.paths import check_mode
from stepwell.domain.changesets.rules import (
    closed_changesets,
    held_content,
    net_changes_of,
    new_changeset,
    new_entry,
)
from stepwell.domain.leases import require_executing
from stepwell.domain.plans.commands import ConflictFound, RecordMerge, ResolveConflict
from stepwell.domain.plans.conflicts import ConflictState, Merge, MergeConflict, Resolution
from stepwell.domain.plans.model import MergeStrategy, Plan, Subplans
from stepwell.domain.plans.plan_tree import children, has_executed, require_children_finished
from stepwell.domain.replies import PlanFound
from stepwell.domain.state import State
from stepwell.domain.verdict import AnyChange, Origin, RowChanged, Verdict, decides
from stepwell.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    MergeConflicts,
    NotFound,
    PlanNotReady,
    StepTooLarge,
)
from stepwell.text import plural

_NEED_BODY = frozenset({Resolution.BODY, Resolution.HUNKS})
"""The resolutions whose content is never that of one side as it is."""

MERGE_TOOL = "merge"
"""The tool that is recorded with a change that a merge or a resolution made, in place of a child's tool."""


@decides(RecordMerge)
def record_merge(state: State, command: RecordMerge, origin: Origin) -> Verdict:
    """Record the merged children and the conflicts that are left to be resolved. Needs the parent's lease.

    Raise `Conflict` if other children executed than the caller merged, for instance because one finished meanwhile. The
    caller then reads them again and repeats the merge.
    """
    plan = require_executing(state, command.plan_id, command.lease, origin)
    if plan.subplans is None:
        raise PlanNotReady(f"plan {plan.plan_id!r} has no children to merge: declare_subplans makes them")
    if plan.merged is not None:
        raise AlreadyExists(f"plan {plan.plan_id!r} has merged its children already", plan_id=plan.plan_id)
    require_children_finished(state, plan)
    executed = {child.plan_id: child for child in children(state, plan) if has_executed(child)}
    if command.children != tuple(executed):
        raise Conflict(
            f"plan {plan.plan_id!r} has {plural(len(executed), 'child', 'children')} that executed, and these or their "
            "order are not what was merged: read them again, and merge them in declared order"
        )
    _require_closed(state, plan, command.changeset_id)
    conflicts = _merge_conflicts(state, plan, plan.subplans, executed, command.conflicts)
    merge = Merge(origin.now_ms, plan.attempt, command.children, command.changeset_id)
    after = replace(plan, merged=merge, conflicts=conflicts)
    return Verdict(PlanFound(after), (RowChanged(plan, after),))


@decides(ResolveConflict)
def resolve_conflict(state: State, command: ResolveConflict, origin: Origin) -> Verdict:
    """Choose a content for the open conflict of a path, and record the change in a closed changeset of its own.

    If the chosen content is the present one, no changeset is recorded. `current` is computed from the recorded changes
    and not taken from the conflict, because the plan may have changed the path after the merge. Raise `Conflict` if the
    caller has seen another version of the conflict: its choice, or the body that it merged, may not fit any more.
    """
    plan = require_executing(state, command.plan_id, command.lease, origin)
    index, conflict = _first_open(plan, command.path)
    merged_so_far = net_changes_of(state, plan, plan.attempt, only=command.path).get(command.path)
    current = merged_so_far.after if merged_so_far else conflict.ours
    conflict = replace(conflict, ours=current)
    conflict.require_version(command.version)
    chosen = with_found_mode(current, _chosen_content(command, conflict, origin))
    if is_same(current, chosen):  # as far as is known: what is recorded stays, so that it is `ours` for the next child
        _require_no_other_mode(command, current)
        chosen = current
    resolved = replace(
        conflict,
        state=ConflictState.RESOLVED,
        resolution=command.resolution,
        chosen=chosen,
        resolved_at_ms=origin.now_ms,
    )
    # The chosen content is `ours` for the next conflict of the same path.
    later = (replace(each, ours=chosen) if each.path == resolved.path else each for each in plan.conflicts[index + 1 :])
    after = replace(plan, conflicts=(*plan.conflicts[:index], resolved, *later))
    if is_same(current, chosen):
        return Verdict(PlanFound(after), (RowChanged(plan, after),))
    after = replace(after, changeset_ids=(*plan.changeset_ids, command.changeset_id))
    recorded = _resolution_changeset(state, plan, command, NetChange(command.path, current, chosen), origin)
    bodies = {chosen.digest: command.body} if chosen and isinstance(command.body, bytes) else {}
    return Verdict(PlanFound(after), (*recorded, RowChanged(plan, after)), bodies=bodies)


def require_resolved(plan: Plan) -> None:
    """Raise `MergeConflicts`, with the paths, if the plan has open conflicts."""
    if conflicts := plan.open_conflicts:
        first, *others = conflicts
        more = f" and {len(others)} more" if others else ""
        raise MergeConflicts(
            f"plan {plan.plan_id!r} has an open conflict at {first.path!r} with child {first.alias!r}{more}: "
            "resolve each of them",
            plan_id=plan.plan_id,
            paths=[conflict.path for conflict in conflicts],
        )


def require_merged(state: State, plan: Plan) -> None:
    """Raise if a parent would complete its execution without the changes of its children, or with open conflicts.

    A child that executed and changed nothing need not be merged.
    """
    require_resolved(plan)
    if plan.merged is not None:
        return
    for child in children(state, plan):
        if has_executed(child) and closed_changesets(state, child, child.executed_attempt):
            raise PlanNotReady(
                f"what child {child.plan_id!r} changed is not merged: merge the children first", plan_id=child.plan_id
            )


def _require_closed(state: State, plan: Plan, changeset_id: str | None) -> None:
    """Raise unless the changeset is a closed one of the plan's present attempt: no other changeset counts."""
    if changeset_id is None:
        return
    changeset = state.changesets.get(changeset_id)
    if changeset is None or changeset.plan_id != plan.plan_id or changeset.attempt != plan.attempt:
        raise NotFound(
            f"this attempt of plan {plan.plan_id!r} has no changeset {changeset_id!r}", changeset_id=changeset_id
        )
    if changeset.state is not ChangesetState.CLOSED:
        raise PlanNotReady(f"changeset {changeset_id!r} is {changeset.state}: close it first")


def _merge_conflicts(
    state: State, plan: Plan, subplans: Subplans, executed: dict[str, Plan], found: Sequence[ConflictFound]
) -> tuple[MergeConflict, ...]:
    """Return the conflicts that the caller found, with their contents from the recorded entries.

    The caller sends only paths and children. Its own copies of the contents are not trusted, so that a conflict can
    only name bodies that are stored. With `fail_on_conflict` any conflict refuses the merge; with `last_wins` there are
    none, so a caller that reports one has made a mistake.
    """
    if not found:
        return ()
    if subplans.merge is MergeStrategy.FAIL_ON_CONFLICT:
        paths = list(dict.fromkeys(each.path for each in found))
        raise MergeConflicts(
            f"children changed the same lines of {plural(len(paths), 'path')}, and this plan fails then: revert or "
            "cancel it",
            plan_id=plan.plan_id,
            paths=paths,
        )
    if subplans.merge is MergeStrategy.LAST_WINS:
        raise InvalidArgument("with merge='last_wins' there are no conflicts: the later child's content is taken")
    _check_conflict_order(executed, found)
    concerned = {each.plan_id: executed[each.plan_id] for each in found}
    _require_bounded_work(state, plan, concerned.values())
    ours = net_changes_of(state, plan, plan.attempt)
    theirs = {plan_id: net_changes_of(state, child, child.executed_attempt) for plan_id, child in concerned.items()}
    aliases = {child.plan_id: child.alias for child in subplans.children}
    return tuple(
        _conflict(each, aliases[each.plan_id], ours.get(each.path), theirs[each.plan_id].get(each.path))
        for each in found
    )


def _check_conflict_order(executed: dict[str, Plan], found: Sequence[ConflictFound]) -> None:
    """Raise `InvalidArgument` if a conflict names a child that was not merged, occurs twice or is out of declared
    order.
    """
    places = {plan_id: place for place, plan_id in enumerate(executed)}
    for each in found:
        if each.plan_id not in places:
            raise InvalidArgument(f"the conflict at {each.path!r} is with {each.plan_id!r}, which was not merged")
    order = [places[each.plan_id] for each in found]
    if order != sorted(order) or len({(each.path, each.plan_id) for each in found}) < len(found):
        raise InvalidArgument("give each conflict once, in the declared order of the children")


def _require_bounded_work(state: State, plan: Plan, concerned: Iterable[Plan]) -> None:
    """Raise `StepTooLarge` if the net changes of the plans involved would occupy the manager's loop for too long."""
    entries = sum(each.entry_count for each in closed_changesets(state, plan, plan.attempt))
    for child in concerned:
        entries += sum(each.entry_count for each in closed_changesets(state, child, child.executed_attempt))
    if entries > limits.ENTRIES_PER_PLAN_MAX:
        raise StepTooLarge(
            f"the plans that are in conflict have {entries} entries, at most {limits.ENTRIES_PER_PLAN_MAX} can be "
            "looked at in one step: record what changed, not every step to it"
        )


def _conflict(found: ConflictFound, alias: str, ours: NetChange | None, theirs: NetChange | None) -> MergeConflict:
    """Return one conflict with its three contents.

    Raise `InvalidArgument` if the child did not change the path, or if a content was recorded by its digest alone:
    without its bytes a reader could not choose.
    """
    if theirs is None:
        raise InvalidArgument(f"child {alias!r} did not change {found.path!r}, so there is no conflict with it")
    merged_so_far = ours.after if ours else theirs.before
    conflict = MergeConflict(found.path, found.plan_id, alias, theirs.before, merged_so_far, theirs.after)
    for side in (conflict.base, conflict.ours, conflict.theirs):
        if side is not None and not side.held:
            raise InvalidArgument(
                f"the conflict at {found.path!r} is about a content of which only the digest was recorded: "
                "record changes with their bytes"
            )
    return conflict


def _first_open(plan: Plan, path: str) -> tuple[int, MergeConflict]:
    """Return the first open conflict of a path in declared order, with its index."""
    for index, conflict in enumerate(plan.conflicts):
        if conflict.path == path and conflict.is_open:
            return index, conflict
    raise NotFound(f"plan {plan.plan_id!r} has no open conflict at {path!r}", path=path)


def _chosen_content(command: ResolveConflict, conflict: MergeConflict, origin: Origin) -> Content | None:
    """Return the content that the resolution gives the path; None stands for "no file".

    A body has the mode that the caller gives, or else the mode of the present content or of the child's content.
    """
    if command.body is None:
        if command.resolution in _NEED_BODY:
            raise InvalidArgument(f"give a body with resolution={str(command.resolution)!r}")
        if command.mode is not None:
            raise InvalidArgument("a mode goes with a body: what is accepted has its own")
        return conflict.ours if command.resolution is Resolution.ACCEPT_OURS else conflict.theirs
    known = conflict.ours or conflict.theirs
    mode = known.mode if command.mode is None and known else command.mode
    content = held_content(command.body, mode, origin)
    check_mode(mode, content.digest, "body")
    return content


def _require_no_other_mode(command: ResolveConflict, current: Content | None) -> None:
    """Raise `InvalidArgument` for a body that differs by its mode alone from a content whose mode is not known.

    That would be no change, so that the mode would be dropped without a word.
    """
    is_given = command.resolution is Resolution.BODY and command.mode is not None
    if is_given and current is not None and current.mode is None:
        raise InvalidArgument(
            f"the mode of {command.path!r} is not known, so that a mode alone cannot be changed: leave it out, or "
            "record the change with before_mode and after_mode"
        )


def _resolution_changeset(
    state: State, plan: Plan, command: ResolveConflict, change: NetChange, origin: Origin
) -> tuple[AnyChange, ...]:
    """Return the changes that create a closed changeset with the one change of a resolution.

    The changeset is its own context, so that the contexts of clients that record at the same time stay as they are.
    """
    opened = new_changeset(state, plan, command.changeset_id, command.changeset_id, origin)
    entry = new_entry(
        state,
        opened,
        origin,
        path=change.path,
        source_path=None,
        before=change.before,
        after=change.after,
        tool=MERGE_TOOL,
    )
    closed = replace(opened, state=ChangesetState.CLOSED, entry_count=1, ended_at_ms=origin.now_ms)
    return RowChanged(None, opened), RowChanged(None, entry), RowChanged(opened, closed)
