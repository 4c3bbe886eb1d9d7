"""Merging children into their parent: what they left is read, joined and recorded, by whoever executes the parent.

All that a merge comes to is one changeset. Where it fits into one transaction, that and the word that it was merged are
one step. Where it does not, the changeset is recorded in parts, and the last part closes it together with that word: an
open changeset counts for nothing, so that from outside there is all of a merge or none. One that is interrupted in
between is begun anew by the next call, from the beginning; what is left of it is aborted, there or with the lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct
from ulid import ULID

from stepwell import limits
from stepwell.client.api.plan_leases import plan_of
from stepwell.client.api.service import BlockingService
from stepwell.client.api.subplans import SubplanCalls
from stepwell.client.session.calls import Call
from stepwell.client.workflows.merge_tree import MergedTree, TreeMerge, in_the_way
from stepwell.domain.changesets.commands import EndChangeset, StartChangeset
from stepwell.domain.changesets.mode import DIRECTORY
from stepwell.domain.changesets.model import Change, ChangesetState, Content, EntryRow
from stepwell.domain.changesets.net_changes import net_changes
from stepwell.domain.plans.commands import GetPlan
from stepwell.domain.plans.conflicts import MergeConflict
from stepwell.domain.plans.model import MergeStrategy, Plan
from stepwell.domain.plans.plan_tree import has_executed, is_finished
from stepwell.domain.plans.subplan_commands import ConflictFound, RecordMerge
from stepwell.domain.tiers.body_refs import Digest
from stepwell.errors import (
    AlreadyExists,
    NotFound,
    PlanError,
    PlanNotReady,
    StepTooLarge,
    StepwellError,
    TransactionAborted,
    revive,
)
from stepwell.trees.merge3 import Version, merge

if TYPE_CHECKING:
    from stepwell.client.execution import PlanExecutionContext

_MARK: Final = "merge-"
"""How the id of a merge's changeset begins, by which one that was interrupted is found."""


_MARKER: Final = "<<<<<<< "


class ConflictSides(Struct, frozen=True):
    """Both sides of a conflict, and what they had in common. None for "no file".

    `marked` is what git makes of the three: where they are text, with its conflict markers, or without any if they can
    be merged after all, as `is_clean` says; None where there is nothing to mark. `reason` says what the conflict is.
    """

    conflict: MergeConflict
    base: bytes | None
    ours: bytes | None
    theirs: bytes | None
    marked: bytes | None
    is_clean: bool
    reason: str


class Children(SubplanCalls, BlockingService):
    """The calls on children, for a context."""


def merge_children(context: PlanExecutionContext) -> Plan:
    """What `PlanExecutionContext.merge_children` does."""
    plan = plan_as_it_is(context, context.plan_id)
    lease = context.session.lease_token(context.plan_id, context.lease)
    if plan.merged is not None:
        if plan.lease is not None and plan.lease.token == lease:
            return plan
        # Whoever has not, or no longer, the right to it is told so.
        return context.session.perform(Call(RecordMerge(plan.plan_id, lease, ()), plan_of))
    executed = _executed(context, plan)
    _abort_remains(context, plan)
    strategy = plan.subplans.merge if plan.subplans else MergeStrategy.GIT_THREE_WAY
    joining = TreeMerge(strategy, context.net_changes(), lambda digest: bytes(context.body(digest)))
    for child in executed:
        entries = context.of(child.plan_id).recorded()
        joining.take(child.plan_id, net_changes(entries), last_tools(entries))
    merged = RecordMerge(
        plan_id=plan.plan_id,
        lease=lease,
        children=tuple(child.plan_id for child in executed),
        changeset_id=f"{_MARK}{ULID()}",
        conflicts=tuple(ConflictFound(path, child) for path, child in joining.conflicts),
    )
    try:
        return _record(context, joining, strategy, merged)
    except AlreadyExists:  # another thread of ours was quicker
        return plan_as_it_is(context, context.plan_id)


def resolve(
    context: PlanExecutionContext,
    path: str,
    *,
    accept: Literal["ours", "theirs"] | None,
    body: bytes | None,
    mode: int | None,
    alias: str | None,
) -> Plan:
    """What `PlanExecutionContext.resolve` does. A choice that no tree can have is refused while it can be helped."""
    plan = plan_as_it_is(context, context.plan_id)
    conflict = next((each for each in plan.open_conflicts if each.path == path), None)
    is_there = conflict is not None and (body is not None or (accept == "theirs" and _is_file(conflict.theirs)))
    if is_there and (other := in_the_way(path, context.net_changes())) is not None:
        raise PlanError(
            f"there cannot be a file at {path!r} as long as there is one at {other!r}: accept 'ours', or record first "
            f"that {other!r} is deleted",
            path=other,
        )
    children = Children(context.session)
    return children.resolve_conflict(
        context.plan_id, path, accept=accept, body=body, mode=mode, alias=alias, lease=context.lease
    )


def sides_of(context: PlanExecutionContext, path: str) -> ConflictSides:
    """What `PlanExecutionContext.conflict_sides` does."""
    plan = plan_as_it_is(context, context.plan_id)
    conflict = next((each for each in plan.open_conflicts if each.path == path), None)
    if conflict is None:
        raise NotFound(f"plan {plan.plan_id!r} has no open conflict at {path!r}", path=path)
    net = context.net_changes().get(path)
    sides = (net.after if net else conflict.ours, conflict.base, conflict.theirs)
    ours, base, theirs = (_version(context, side) for side in sides)
    merged = merge(ours, base, theirs, ("ours", "base", f"theirs ({conflict.alias})"))
    is_text = ours is not None and theirs is not None and all(each.is_text for each in (ours, base, theirs) if each)
    return ConflictSides(
        conflict=conflict,
        base=base.body if base else None,
        ours=ours.body if ours else None,
        theirs=theirs.body if theirs else None,
        marked=merged.version.body if is_text and merged.version else None,
        is_clean=merged.is_clean,
        reason=merged.reason or "the child did not find what those before it left, or they are not agreed upon yet",
    )


def text_of(context: PlanExecutionContext, path: str) -> str:
    """What `PlanExecutionContext.conflict_text` does."""
    sides = sides_of(context, path)
    conflict = sides.conflict
    with suppress(UnicodeDecodeError):
        text = None if sides.marked is None else sides.marked.decode()
        if text is not None and (_MARKER in text or not _differ_in_mode(conflict)):
            return text
    return f"{path}: {sides.reason}\nours: {_shown(conflict.ours)}\ntheirs: {_shown(conflict.theirs)}\n"


def _differ_in_mode(conflict: MergeConflict) -> bool:
    ours, theirs = conflict.ours, conflict.theirs
    return ours is not None and theirs is not None and ours.mode != theirs.mode


def _shown(side: Content | None) -> str:
    """A side of which there is no text to show."""
    if side is None:
        return "nothing"
    mode = "" if side.mode is None else f"mode {side.mode:o}, "
    return f"{mode}{'' if side.size is None else f'{side.size} bytes, '}sha256 {side.digest.hex()[:12]}"


def plan_as_it_is(context: PlanExecutionContext, plan_id: str) -> Plan:
    """A plan of the context's session."""
    return context.session.perform(Call(GetPlan(plan_id), plan_of))


def last_tools(entries: Sequence[EntryRow]) -> dict[str, str]:
    """Who changed each path last."""
    tools: dict[str, str] = {}
    for entry in entries:
        tools[entry.path] = entry.tool
        if entry.source_path is not None:
            tools[entry.source_path] = entry.tool
    return tools


def _executed(context: PlanExecutionContext, plan: Plan) -> list[Plan]:
    """The children that have changes to merge, in declared order; or a refusal, if one is not at its end."""
    declared = plan.subplans.children if plan.subplans else ()
    children = [plan_as_it_is(context, child.plan_id) for child in declared]
    for child in children:
        if not is_finished(child):
            raise PlanNotReady(
                f"child {child.plan_id!r} is {child.position}: let it finish, or cancel it", plan_id=child.plan_id
            )
    return [child for child in children if has_executed(child)]


def _abort_remains(context: PlanExecutionContext, plan: Plan) -> None:
    """End what is left of a merge that was interrupted, of whichever context it was."""
    for each in context.changesets():
        if each.state is ChangesetState.OPEN and each.changeset_id.startswith(_MARK):
            lease = context.session.lease_token(plan.plan_id, context.lease)
            command = EndChangeset(plan.plan_id, each.context_id, lease, each.changeset_id, abort=True)
            context.session.perform(Call(command, lambda answered: answered.reply.changeset))


def _record(context: PlanExecutionContext, joining: TreeMerge, strategy: MergeStrategy, merged: RecordMerge) -> Plan:
    """Send it all; the last that is sent makes it count."""
    changes = [*joining.changes()]
    if strategy is MergeStrategy.FAIL_ON_CONFLICT and merged.conflicts:
        changes = []  # and the manager says why
        conflicts = merged.conflicts[: limits.CONFLICTS_MAX]
        merged = RecordMerge(merged.plan_id, merged.lease, merged.children, None, conflicts)
    if len(merged.conflicts) > limits.CONFLICTS_MAX:
        raise StepTooLarge(
            f"the children are in conflict {len(merged.conflicts)} times, at most {limits.CONFLICTS_MAX} are kept: "
            "revert those that changed the same, and let them work one after the other"
        )
    if not changes:
        command = RecordMerge(merged.plan_id, merged.lease, merged.children, None, merged.conflicts)
        return context.session.perform(Call(command, plan_of))
    sending = _Sending(context, joining, merged)
    try:
        return sending.send(changes)
    except TransactionAborted as error:
        raise revive(str(error.details.get("cause")), error.message, {"plan_id": context.plan_id}) from error


class _Sending:
    """The parts of a merge on their way."""

    def __init__(self, context: PlanExecutionContext, joining: TreeMerge, merged: RecordMerge) -> None:
        assert merged.changeset_id is not None
        self._context = context
        self._joining = joining
        self._changeset_id = merged.changeset_id
        self._merged: Call[object] = Call(merged, plan_of)
        self._lease = merged.lease
        self._has_begun = False

    def send(self, changes: list[MergedTree]) -> Plan:
        """All parts, the last of which is the whole where it fits."""
        command = StartChangeset(self._context.plan_id, self._context.context_id, self._changeset_id, self._lease)
        part: list[Call[object]] = [Call(command, lambda answered: answered.reply.changeset)]
        size = 0
        try:
            for change in changes:
                if len(part) > limits.MERGED_ENTRIES or size > limits.MERGED_BYTES:
                    self._perform(part)
                    self._has_begun = True
                    part, size = [], 0
                sides = tuple(self._side(side) for side in (change.before, change.after))
                size += sum(len(side) for side in sides if isinstance(side, bytes))
                part.append(self._recorded(change, *sides))
            part += [self._end(abort=False), self._merged]
            plan = self._perform(part)
        except BaseException:
            if self._has_begun:
                with suppress(StepwellError):
                    self._context.session.perform(self._end(abort=True))
            raise
        assert isinstance(plan, Plan)
        return plan

    def _perform(self, part: list[Call[object]]) -> object:
        outcome, _ = self._context.session.perform_together(part)[-1]
        return outcome

    def _end(self, *, abort: bool) -> Call[object]:
        context = self._context
        command = EndChangeset(context.plan_id, context.context_id, self._lease, self._changeset_id, abort)
        return Call(command, lambda answered: answered.reply.changeset)

    def _recorded(
        self, change: MergedTree, before: bytes | Digest | None, after: bytes | Digest | None
    ) -> Call[object]:
        given = Change(
            path=change.path,
            before=before,
            after=after,
            tool=change.tool,
            before_mode=change.before.mode if change.before else None,
            after_mode=change.after.mode if change.after else None,
        )
        return type(self._context).record_change.call(self._context, given, changeset_id=self._changeset_id)

    def _side(self, side: Content | None) -> bytes | Digest | None:
        if side is None:
            return None
        body = self._joining.body(side)
        return Digest(side.digest) if body is None else body


def _version(context: PlanExecutionContext, side: Content | None) -> Version | None:
    return None if side is None else Version(bytes(context.body(side.digest)), side.mode)


def _is_file(content: Content | None) -> bool:
    return content is not None and content.mode != DIRECTORY
