"""Plans that wait for their turn at one of two trees: in order, and never for a caller that is gone."""

from __future__ import annotations

from tests.simulator.workloads.base import PROJECT, Actor
from tests.simulator.workloads.plans import ACTION, ensure_action, note_lease

TREES = ("/tree", "/other")


async def take_turns(actor: Actor) -> None:
    """Do one step of a plan of this actor's own: make it, wait for its turn, or apply it, with or without a turn."""
    plans, mine = actor.client.plans, actor.oracle.queues.plans
    plan_id = mine.get(actor.number)
    if plan_id is None:
        await ensure_action(actor)
        mine[actor.number] = (await plans.begin(ACTION, projects=[PROJECT], lease_ms=3_600_000)).plan_id
        return
    plan = await plans.get_plan(plan_id)
    tree = TREES[actor.number % 3 == 0]
    match str(plan.position):
        case "execute/processing":
            await plans.complete_execute(plan_id)
            await plans.apply_plan(plan_id)
        case "execute/complete":
            await plans.apply_plan(plan_id)
        case "apply/queued":
            await _wait(actor, plan_id, tree)
        case "apply/errored":
            await plans.retry_plan(plan_id)
        case "apply/applied" | "execute/queued" | "strategize/queued":
            del mine[actor.number]
        case _:
            return


async def _wait(actor: Actor, plan_id: str, tree: str) -> None:
    """Join the queue, and apply if it is the plan's turn; now and then leave, or try without a turn."""
    plans, choice = actor.client.plans, actor.random.random()
    if choice < 0.1:
        await plans.leave_apply_queue(f"{plan_id}-{actor.number}")
        return
    if choice < 0.8:
        priority = actor.random.randint(-1, 1)
        ticket_id = f"{plan_id}-{actor.number}"
        found = await plans.join_apply_queue(plan_id, tree, priority=priority, ticket_id=ticket_id)
        if found.place > 1:
            return
    plan = await plans.start_apply(plan_id, tree=tree, lease_ms=actor.random.choice((500, 60_000)))
    note_lease(actor, plan)
    if choice < 0.6:
        await plans.complete_apply(plan_id, proof={})
    elif choice < 0.7:
        await plans.fail_apply(plan_id, "it did not work")
