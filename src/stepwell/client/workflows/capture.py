"""Record the changes in a tree while a block runs as one changeset, derived from file contents alone.

`trees.capture` finds the changes; this module checks that they can be recorded, before and after the block, and sends
them to the manager. Many changes take several requests, but only the last one closes the changeset. Because an open
changeset counts for nothing, the capture is recorded completely or not at all.

A `TreeLock` keeps other captures, applies and rollbacks away from the tree while the block runs: their changes would be
recorded as this plan's.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from stepwell import limits
from stepwell.client.api.changesets import ChangesetApi
from stepwell.client.api.plan_leases import plan_of
from stepwell.client.api.plans import PlanApi
from stepwell.client.session.calls import Call
from stepwell.client.workflows.heartbeat import Heartbeat, now_s
from stepwell.client.workflows.plan_delta import PlanDelta
from stepwell.domain.changesets.model import Change, EntryRow, check_path
from stepwell.domain.checks import utf8
from stepwell.domain.plans.commands import RenewLease
from stepwell.domain.plans.model import Phase, PlanState, Position
from stepwell.errors import InvalidArgument, LeaseLost, PlanNotReady, StepwellError
from stepwell.text import plural
from stepwell.trees.capture import TreeCapture, TreeDifference
from stepwell.trees.entry import TreeEntry
from stepwell.trees.ignore import Repository
from stepwell.trees.root import Root
from stepwell.trees.scratch import scratch_copy
from stepwell.trees.transaction import TreeTransaction
from stepwell.trees.tree_lock import Purpose, TreeLock

_UP_TO_DATE: Final = "earlier-changes-1"
"""The name of the transaction that brings a copy up to date. No process recovers it: the copy is removed instead."""


class Captured:
    """The outcome of a capture, filled in when its block has ended; no changeset if nothing changed."""

    def __init__(self) -> None:
        self.changeset_id: str | None = None
        self.entries: tuple[EntryRow, ...] = ()

    def __repr__(self) -> str:
        entries = plural(len(self.entries), "entry", "entries")
        return f"<stepwell.types.Captured {self.changeset_id!r}: {entries}>"


@contextmanager
def workspace(context: ChangesetApi, root: str | os.PathLike[str], tool: str, lease_ms: int) -> Generator[Path]:
    """Capture in a copy of a tree, as `PlanExecutionContext.workspace` promises.

    An exception in the block passes through, and nothing is recorded. The copy is removed in any case; so the lease is
    renewed until all is recorded, because without it the work would be lost.
    """
    token = _require_executing(context, tool)
    asked_at_s = now_s()
    context.session.perform(Call(RenewLease(context.plan_id, token, lease_ms), plan_of))
    with (
        Heartbeat(context.session, context.plan_id, token, lease_ms, asked_at_s=asked_at_s),
        scratch_copy(root) as copy,
    ):
        _bring_up_to_date(context, copy.path)
        with capture(context, copy.path, tool, copy.repositories):
            yield Path(copy.path)


def _bring_up_to_date(context: ChangesetApi, copy: str) -> None:
    """Make the changes in a copy that the plan has recorded or merged already, so that its work goes on from there.

    Raises `TreeConflict` if the tree is not what these changes found: then the plan could not be applied either.
    """
    delta = PlanDelta(context)
    if delta.deltas:
        with TreeTransaction(copy, _UP_TO_DATE, delta.deltas, delta.read_body) as change:
            change.apply()
            change.commit()
            change.finalize()


@contextmanager
def capture(
    context: ChangesetApi,
    root: str | os.PathLike[str],
    tool: str,
    repositories: Mapping[str, Repository] | None = None,
) -> Generator[Captured]:
    """Record what changes below `root` while the block runs, as `PlanExecutionContext.capture` promises.

    An exception in the block passes through, and nothing is recorded. `repositories` are those whose rules hold in a
    copy of a tree.
    """
    _require_executing(context, tool)
    captured = Captured()
    with (
        Root(root) as opened,
        TreeLock(opened, Purpose.CAPTURE, plan_id=context.plan_id, tool=tool),
        TreeCapture(root, repositories=repositories) as tree_capture,
    ):
        yield captured
        found = tree_capture.differences()
        _refuse_names(found)  # before the changeset is opened, so that a refusal leaves nothing to abort
        if found:
            _record(context.of(context.plan_id, context.lease), tree_capture, found, tool, captured)


def _require_executing(context: ChangesetApi, tool: str) -> int:
    """Return the token of the plan's lease; raise `PlanNotReady` or `LeaseLost` if changes could not be recorded now.

    Otherwise the refusal would come at the end of the block, perhaps after an hour of work. The same is true of a tool
    with a name that no change can have.
    """
    Change(path="any", after=b"", tool=tool)
    plan = PlanApi(context.session).get_plan(context.plan_id)
    if plan.position != Position(Phase.EXECUTE, PlanState.PROCESSING):
        raise PlanNotReady(
            f"plan {plan.plan_id!r} is {plan.position}: changes are captured while it executes",
            plan_id=plan.plan_id,
            phase=str(plan.phase),
            state=str(plan.state),
        )
    if plan.lease is None or plan.lease.token != context.session.lease_token(plan.plan_id, context.lease):
        raise LeaseLost(
            f"plan {plan.plan_id!r}: another session has its lease; if it was given to you, pass lease= to execution",
            plan_id=plan.plan_id,
        )
    return plan.lease.token


def _refuse_names(found: Sequence[TreeDifference]) -> None:
    """Raise `InvalidArgument` naming every changed path that cannot be recorded, because it is not valid text, say."""
    refused: dict[str, str] = {}
    for path in (path for each in found for path in (each.path, each.source_path) if path is not None):
        try:
            utf8(path, "path")
            check_path(path)
        except InvalidArgument as error:
            refused[ascii(path)] = error.message
    if refused:
        shown = "; ".join(f"{path}: {why}" for path, why in [*refused.items()][: limits.TREE_NAMED_MAX])
        raise InvalidArgument(
            f"{plural(len(refused), 'path')} changed that cannot be recorded, so that nothing was: rename, or have "
            f"git ignore, {shown}",
            paths=[*refused],
        )


def _record(
    context: ChangesetApi, tree_capture: TreeCapture, found: Sequence[TreeDifference], tool: str, captured: Captured
) -> None:
    """Record the differences in a new changeset and close it; on an error, abort it.

    `context` is made for this capture, so that changes which other threads record meanwhile do not go into its
    changeset.
    """
    changeset_id = context.start_changeset()
    try:
        entries = _send(context, tree_capture, found, tool, changeset_id)
        context.close_changeset(changeset_id)
    except BaseException:
        with suppress(StepwellError):
            context.abort_changeset(changeset_id)
        raise
    captured.changeset_id, captured.entries = changeset_id, entries


def _send(
    context: ChangesetApi, tree_capture: TreeCapture, found: Sequence[TreeDifference], tool: str, changeset_id: str
) -> tuple[EntryRow, ...]:
    """Send all changes, several requests in flight, and return their rows; stop and raise at the first refusal."""
    entries: list[EntryRow] = []
    refusals: list[StepwellError] = []

    def calls() -> Iterator[Sequence[Call[EntryRow]]]:
        for changes in _frames(tree_capture, found, tool):
            if refusals:  # the rest would be refused for the same reason, or be of no use
                return
            yield [type(context).record_change.call(context, change, changeset_id=changeset_id) for change in changes]

    for outcome in context.session.perform_many(calls()):
        if isinstance(outcome, StepwellError):
            refusals.append(outcome)
        else:
            entries.append(outcome)
    if refusals:
        raise refusals[0]
    return tuple(entries)


def _frames(tree_capture: TreeCapture, found: Sequence[TreeDifference], tool: str) -> Iterator[list[Change]]:
    """Yield the changes in groups that fit into a frame; bodies are read from the spool only when they are sent."""
    chunk: list[Change] = []
    weight = 0
    for each in found:
        if len(chunk) == limits.STREAM_COMMANDS or weight >= limits.STREAM_BYTES:
            yield chunk
            chunk, weight = [], 0
        before, after = _body(tree_capture, each.before), _body(tree_capture, each.after)
        chunk.append(
            Change(
                path=each.path,
                before=before,
                after=after,
                source_path=each.source_path,
                tool=tool,
                before_mode=each.before.mode if each.before else None,
                after_mode=each.after.mode if each.after else None,
            )
        )
        weight += len(before or b"") + len(after or b"")
    yield chunk


def _body(tree_capture: TreeCapture, entry: TreeEntry | None) -> bytes | None:
    return None if entry is None else tree_capture.body(entry.digest)
