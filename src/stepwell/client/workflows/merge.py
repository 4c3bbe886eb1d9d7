"""Merge finished children into their parent: read what they recorded, merge it, and record the result for the parent.

The session that executes the parent does this. All that a merge changes is one changeset. If it fits into one
transaction, the changeset and the command `RecordMerge` are recorded in one step. If not, the changeset is recorded in
parts, and the last part closes it together with `RecordMerge`. An open changeset counts for nothing, so from outside
there is a whole merge or none. A merge that is interrupted in between is started again by the next call; that call, or
the end of the lease, aborts the open changeset.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from stepwell import limits
from stepwell.client.api.changesets import ChangesetApi
from stepwell.client.api.plan_leases import plan_of
from stepwell.client.api.plans import PlanApi
from stepwell.client.session.calls import Call
from stepwell.client.workflows.merge_tree import MergedChange, TreeMerge
from stepwell.domain.changesets.commands import EndChangeset, StartChangeset
from stepwell.domain.changesets.model import Change, ChangesetState, Content, EntryRow
from stepwell.domain.changesets.net_changes import net_changes
from stepwell.domain.plans.commands import ConflictFound, RecordMerge
from stepwell.domain.plans.model import MergeStrategy, Plan
from stepwell.domain.plans.plan_tree import has_executed, is_finished
from stepwell.domain.tiers.body_refs import Digest
from stepwell.errors import (
    AlreadyExists,
    PlanNotReady,
    StepTooLarge,
    StepwellError,
    TransactionAborted,
    revive,
)
from stepwell.text import plural

_CHANGESET_PREFIX: Final = "merge-"
"""The beginning of the id of each merge's changeset, by which an interrupted merge is found."""


def merge_children(context: ChangesetApi) -> Plan:
    """Merge the children of the context's plan, as `PlanExecutionContext.merge_children` promises; return the plan."""
    plan = PlanApi(context.session).get_plan(context.plan_id)
    lease = context.session.lease_token(context.plan_id, context.lease)
    if plan.merged is not None:
        if plan.lease is not None and plan.lease.token == lease:
            return plan
        # The manager refuses this command with the right error, because the caller does not hold the lease.
        return context.session.perform(Call(RecordMerge(plan.plan_id, lease, ()), plan_of))
    executed = executed_children(context, plan)
    _abort_interrupted(context, plan)
    strategy = plan.subplans.merge if plan.subplans else MergeStrategy.GIT_THREE_WAY
    tree_merge = TreeMerge(strategy, context.net_changes(), lambda digest: bytes(context.body(digest)))
    for child in executed:
        entries = context.of(child.plan_id).recorded()
        tree_merge.add_child(child.plan_id, net_changes(entries), last_tools(entries))
    merged = RecordMerge(
        plan_id=plan.plan_id,
        lease=lease,
        children=tuple(child.plan_id for child in executed),
        changeset_id=f"{_CHANGESET_PREFIX}{context.session.new_id()}",
        conflicts=tuple(ConflictFound(path, child) for path, child in tree_merge.conflicts),
    )
    try:
        return _record(context, tree_merge, strategy, merged)
    except AlreadyExists:  # another thread with the same lease was quicker
        return PlanApi(context.session).get_plan(context.plan_id)


def last_tools(entries: Sequence[EntryRow]) -> dict[str, str]:
    """Return the tool that changed each path last; a move changes both of its paths."""
    tools: dict[str, str] = {}
    for entry in entries:
        tools[entry.path] = entry.tool
        if entry.source_path is not None:
            tools[entry.source_path] = entry.tool
    return tools


def executed_children(context: ChangesetApi, plan: Plan) -> list[Plan]:
    """Return the children that have changes to merge, in declared order; `PlanNotReady` if one is not finished."""
    declared = plan.subplans.children if plan.subplans else ()
    children = [PlanApi(context.session).get_plan(child.plan_id) for child in declared]
    for child in children:
        if not is_finished(child):
            raise PlanNotReady(
                f"child {child.plan_id!r} is {child.position}: let it finish, or cancel it", plan_id=child.plan_id
            )
    return [child for child in children if has_executed(child)]


def _abort_interrupted(context: ChangesetApi, plan: Plan) -> None:
    """Abort the open changesets of interrupted merges of this plan, of any context."""
    for each in context.changesets():
        if each.state is ChangesetState.OPEN and each.changeset_id.startswith(_CHANGESET_PREFIX):
            lease = context.session.lease_token(plan.plan_id, context.lease)
            command = EndChangeset(plan.plan_id, each.context_id, lease, each.changeset_id, abort=True)
            context.session.perform(Call(command, lambda answered: answered.reply.changeset))


def _record(context: ChangesetApi, tree_merge: TreeMerge, strategy: MergeStrategy, merged: RecordMerge) -> Plan:
    """Record the merge and return the plan.

    With `fail_on_conflict` and conflicts, no changes are sent, and the manager refuses with `MergeConflicts`. Raises
    `StepTooLarge` if there are more conflicts than a plan can hold.
    """
    changes = [*tree_merge.changes()]
    if strategy is MergeStrategy.FAIL_ON_CONFLICT and merged.conflicts:
        changes = []
        conflicts = merged.conflicts[: limits.CONFLICTS_MAX]
        merged = RecordMerge(merged.plan_id, merged.lease, merged.children, None, conflicts)
    if len(merged.conflicts) > limits.CONFLICTS_MAX:
        raise StepTooLarge(
            f"the children are in conflict {plural(len(merged.conflicts), 'time')}, at most {limits.CONFLICTS_MAX} are "
            "kept: revert those that changed the same, and let them work one after the other"
        )
    if not changes:
        command = RecordMerge(merged.plan_id, merged.lease, merged.children, None, merged.conflicts)
        return context.session.perform(Call(command, plan_of))
    writer = _MergeWriter(context, tree_merge, merged)
    try:
        return writer.send(changes)
    except TransactionAborted as error:
        raise revive(str(error.details.get("cause")), error.message, {"plan_id": context.plan_id}) from error


class _MergeWriter:
    """Sends the changes of one merge in as few transactions as fit; used once, by `_record`."""

    def __init__(self, context: ChangesetApi, tree_merge: TreeMerge, merged: RecordMerge) -> None:
        assert merged.changeset_id is not None
        self._context = context
        self._tree_merge = tree_merge
        self._changeset_id = merged.changeset_id
        self._merged: Call[object] = Call(merged, plan_of)  # the last call: it makes the merge count
        self._lease = merged.lease
        self._is_started = False

    def send(self, changes: list[MergedChange]) -> Plan:
        """Send all parts and return the plan; the last part closes the changeset and records the merge.

        If a later part fails, the changeset is aborted, so that no half of a merge stays open.
        """
        command = StartChangeset(self._context.plan_id, self._context.context_id, self._changeset_id, self._lease)
        part: list[Call[object]] = [Call(command, lambda answered: answered.reply.changeset)]
        size = 0
        try:
            for change in changes:
                # Bounded, so that a part is one frame and the manager's loop is not held up by it.
                if len(part) > limits.MERGED_ENTRIES or size > limits.MERGED_BYTES:
                    self._perform(part)
                    self._is_started = True
                    part, size = [], 0
                sides = tuple(self._side(side) for side in (change.before, change.after))
                size += sum(len(side) for side in sides if isinstance(side, bytes))
                part.append(self._record_call(change, *sides))
            part += [self._end_call(abort=False), self._merged]
            plan = self._perform(part)
        except BaseException:
            if self._is_started:
                with suppress(StepwellError):
                    self._context.session.perform(self._end_call(abort=True))
            raise
        assert isinstance(plan, Plan)
        return plan

    def _perform(self, part: list[Call[object]]) -> object:
        """Send one part as a transaction and return the outcome of its last call."""
        outcome, _ = self._context.session.perform_together(part)[-1]
        return outcome

    def _end_call(self, *, abort: bool) -> Call[object]:
        """Return the call that closes or aborts the merge's changeset."""
        context = self._context
        command = EndChangeset(context.plan_id, context.context_id, self._lease, self._changeset_id, abort)
        return Call(command, lambda answered: answered.reply.changeset)

    def _record_call(
        self, change: MergedChange, before: bytes | Digest | None, after: bytes | Digest | None
    ) -> Call[object]:
        """Return the call that records one merged change, with its bodies or digests."""
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
        """Return a side as it is recorded: its bytes, or its digest alone if the bytes were never recorded."""
        if side is None:
            return None
        body = self._tree_merge.body(side)
        return Digest(side.digest) if body is None else body
