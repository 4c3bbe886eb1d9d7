"""Changesets: every acknowledged change is recorded once, in its own changeset, and a closed one does not change."""

from __future__ import annotations

from contextlib import suppress

import stepwell as sw
from stepwell.aio.services import PlanExecutionContext
from tests.simulator.violation import Violation
from tests.simulator.workloads.base import PROJECT, Actor
from tests.simulator.workloads.plans import ACTION, ensure_action, note_lease


async def record_changes(actor: Actor) -> None:
    """Execute a plan of one's own: some changes, of one or two contexts, and the close."""
    plans, oracle = actor.client.plans, actor.oracle
    await ensure_action(actor)
    plan = await plans.begin(ACTION, projects=[PROJECT], lease_ms=3_600_000)
    note_lease(actor, plan)
    contexts = [actor.client.execution(plan.plan_id) for _ in range(actor.random.randint(1, 2))]
    changesets = [await context.start_changeset() for context in contexts]
    for _ in range(actor.random.randint(1, 6)):
        number = actor.random.randrange(len(contexts))
        await _record(actor, contexts[number], changesets[number])
    for context, changeset_id in zip(contexts, changesets, strict=True):
        await context.close_changeset(changeset_id)
    late = sw.Change(path=f"{actor.unique()}.py", before=None, after=b"late")
    with suppress(sw.ChangesetClosed):
        await contexts[0].record_change(late, changeset_id=changesets[0])
        raise Violation(f"{late.path} was recorded in {changesets[0]}, which is closed")
    token = actor.client.blocking_client.session.leases.get(plan.plan_id)
    if token is not None:
        oracle.note_finished(await plans.complete_execute(plan.plan_id), token)


async def _record(actor: Actor, context: PlanExecutionContext, changeset_id: str) -> None:
    """Record a change in the changeset that its context opened last."""
    path = f"{actor.unique()}.py"
    change = sw.Change(path=path, before=None, after=actor.unique().encode())
    actor.oracle.note_change(changeset_id, path, None)  # it may be recorded from now on
    entry = await context.record_change(change)
    actor.oracle.note_change(changeset_id, path, entry.seq)
