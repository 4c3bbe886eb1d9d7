"""Changesets: every acknowledged change is recorded once, in its own changeset, and a closed one does not change."""

from __future__ import annotations

import stepwell as sw
from tests.simulator.workloads.base import PROJECT, Actor
from tests.simulator.workloads.plans import ACTION, ensure_action, note_lease


async def record_changes(actor: Actor) -> None:
    """Execute a plan of one's own: some changes, of one or two contexts, and the close."""
    plans, oracle = actor.client.plans, actor.oracle
    await ensure_action(actor)
    plan = await plans.begin(ACTION, projects=[PROJECT], lease_ms=3_600_000)
    note_lease(actor, plan)
    for _ in range(actor.random.randint(1, 2)):
        context = actor.client.execution(plan.plan_id)
        changeset_id = await context.start_changeset()
        for _ in range(actor.random.randint(1, 4)):
            path = f"{actor.unique()}.py"
            change = sw.Change(path=path, before=None, after=actor.unique().encode())
            oracle.note_change(changeset_id, path, None)  # it may be recorded from now on
            entry = await context.record_change(change)
            oracle.note_change(changeset_id, path, entry.seq)
        await context.close_changeset(changeset_id)
        oracle.closed_changesets.append(changeset_id)
    token = actor.client.blocking_client.session.leases.get(plan.plan_id)
    if token is not None:
        oracle.note_finished(await plans.complete_execute(plan.plan_id), token)
