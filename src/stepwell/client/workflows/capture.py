"""Capturing: what changes in a tree while a block runs becomes a changeset, derived from content alone."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from stepwell import limits
from stepwell.client.api.plans import PlanApi
from stepwell.client.session.calls import Call
from stepwell.domain.changesets.model import Change, EntryRow, check_path
from stepwell.domain.checks import utf8
from stepwell.domain.plans.model import Phase, PlanState, Position
from stepwell.errors import InvalidArgument, LeaseLost, PlanNotReady, StepwellError
from stepwell.trees.capture import TreeCapture, TreeDifference
from stepwell.trees.entry import TreeEntry

if TYPE_CHECKING:
    from stepwell.client.execution import PlanExecutionContext


class Captured:
    """What was recorded, once the block has ended. Nothing changed: no changeset."""

    def __init__(self) -> None:
        self.changeset_id: str | None = None
        self.entries: tuple[EntryRow, ...] = ()

    def __repr__(self) -> str:
        return f"<stepwell.Captured {self.changeset_id!r}: {len(self.entries)} entries>"


@contextmanager
def capture(context: PlanExecutionContext, root: str | os.PathLike[str], tool: str) -> Generator[Captured]:
    """Record what changes while the block runs."""
    _require_executing(context)
    captured = Captured()
    with TreeCapture(root) as recording:
        yield captured
        found = recording.differences()
        _refuse_names(found)
        if found:
            _record(context.of(context.plan_id, context.lease), recording, found, tool, captured)


def _require_executing(context: PlanExecutionContext) -> None:
    """What could not be recorded at the end is refused at the beginning, before somebody works for an hour."""
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
            f"plan {plan.plan_id!r}: somebody else has its lease; if it was given to you, pass lease= to execution",
            plan_id=plan.plan_id,
        )


def _refuse_names(found: Sequence[TreeDifference]) -> None:
    """A tree may have names that no recorded path can be: said of all of them at once, before anything is recorded."""
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
    own: PlanExecutionContext, recording: TreeCapture, found: Sequence[TreeDifference], tool: str, captured: Captured
) -> None:
    """All or nothing: into a changeset of a context of its own, so that nobody else's changes go there."""
    changeset_id = own.start_changeset()
    try:
        entries = _sent(own, recording, found, tool, changeset_id)
        own.close_changeset(changeset_id)
    except BaseException:
        with suppress(StepwellError):
            own.abort_changeset(changeset_id)
        raise
    captured.changeset_id, captured.entries = changeset_id, entries


def _sent(
    own: PlanExecutionContext, recording: TreeCapture, found: Sequence[TreeDifference], tool: str, changeset_id: str
) -> tuple[EntryRow, ...]:
    entries: list[EntryRow] = []
    refusals: list[StepwellError] = []

    def calls() -> Iterator[Sequence[Call[EntryRow]]]:
        for changes in _frames(recording, found, tool):
            if refusals:
                return
            yield [type(own).record_change.call(own, change, changeset_id=changeset_id) for change in changes]

    for outcome in own.session.perform_many(calls()):
        if isinstance(outcome, StepwellError):
            refusals.append(outcome)
        else:
            entries.append(outcome)
    if refusals:
        raise refusals[0]
    return tuple(entries)


def _frames(recording: TreeCapture, found: Sequence[TreeDifference], tool: str) -> Iterator[list[Change]]:
    """As many at a time as fit in a frame: bodies are read when it is their turn."""
    chunk: list[Change] = []
    weight = 0
    for each in found:
        if len(chunk) == limits.STREAM_COMMANDS or weight >= limits.STREAM_BYTES:
            yield chunk
            chunk, weight = [], 0
        before, after = _body(recording, each.before), _body(recording, each.after)
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


def _body(recording: TreeCapture, leaf: TreeEntry | None) -> bytes | None:
    return None if leaf is None else recording.body(leaf.digest)
