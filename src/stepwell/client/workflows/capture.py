"""Record the changes in a tree while a block runs as one changeset, derived from file contents alone.

`trees.capture` finds the changes; this module checks that they can be recorded, before and after the block, and sends
them to the manager. Many changes take several requests, but only the last one closes the changeset. Because an open
changeset counts for nothing, the capture is recorded completely or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress

from stepwell import limits
from stepwell.client.api.changesets import ChangesetApi
from stepwell.client.api.plans import PlanApi
from stepwell.client.session.calls import Call
from stepwell.domain.changesets.model import Change, EntryRow, check_path
from stepwell.domain.checks import utf8
from stepwell.domain.plans.model import Phase, PlanState, Position
from stepwell.errors import InvalidArgument, LeaseLost, PlanNotReady, StepwellError
from stepwell.trees.capture import TreeCapture, TreeDifference
from stepwell.trees.entry import TreeEntry


class Captured:
    """The outcome of a capture, filled in when its block has ended; no changeset if nothing changed."""

    def __init__(self) -> None:
        self.changeset_id: str | None = None
        self.entries: tuple[EntryRow, ...] = ()

    def __repr__(self) -> str:
        return f"<stepwell.types.Captured {self.changeset_id!r}: {len(self.entries)} entries>"


@contextmanager
def capture(context: ChangesetApi, root: str | os.PathLike[str], tool: str) -> Generator[Captured]:
    """Record what changes below `root` while the block runs, as `PlanExecutionContext.capture` promises.

    An exception in the block passes through, and nothing is recorded.
    """
    _require_executing(context)
    captured = Captured()
    with TreeCapture(root) as tree_capture:
        yield captured
        found = tree_capture.differences()
        _refuse_names(found)  # before the changeset is opened, so that a refusal leaves nothing to abort
        if found:
            _record(context.of(context.plan_id, context.lease), tree_capture, found, tool, captured)


def _require_executing(context: ChangesetApi) -> None:
    """Raise `PlanNotReady` or `LeaseLost` if changes could not be recorded now.

    Otherwise the refusal would come at the end of the block, perhaps after an hour of work.
    """
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
            f"{len(refused)} paths changed that cannot be recorded, so that nothing was; rename them, or have git "
            f"ignore them: {shown}",
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
