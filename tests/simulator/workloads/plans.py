"""Plans that several clients drive at once: every lease has one holder, and an old one can do nothing."""

from __future__ import annotations

import stepwell as sw
from tests.simulator.workloads.base import PROJECT, Actor

PLANS = 3
ACTION = "local/simulated"
NEEDS: tuple[tuple[str, ...], ...] = ((), (), ("gpu",), ("gpu", "python"))
ABLE: tuple[tuple[str, ...] | None, ...] = (None, (), ("gpu",), ("python", "gpu"))


async def ensure_action(actor: Actor) -> None:
    """Create the action, unless another client has."""
    try:
        await actor.client.plans.create_action(
            name=ACTION, description="d", definition_of_done="d", strategy_actor="local/s", execution_actor="local/e"
        )
    except sw.AlreadyExists:
        return


async def drive_plan(actor: Actor) -> None:
    """Do one step of one of a few plans, whatever it needs next."""
    plans, oracle = actor.client.plans, actor.oracle
    known = oracle.plan_ids
    if len(known) < PLANS:
        await ensure_action(actor)
        plan = await plans.use_action(ACTION, projects=[PROJECT])
        known.append(plan.plan_id)
        return
    plan_id = actor.random.choice(known)
    floor = oracle.versions[plan_id]
    plan = await plans.get_plan(plan_id)
    oracle.note_plan(plan, floor)
    lease_ms = actor.random.choice((200, 5_000, 60_000))
    phase, state = str(plan.phase), str(plan.state)
    if state == "queued":
        start = {"strategize": plans.start_strategize, "execute": plans.start_execute, "apply": plans.start_apply}
        note_lease(actor, await start[phase](plan_id, lease_ms=lease_ms))
    elif state == "processing":
        await _finish(actor, plan)
    elif state == "complete" and phase == "strategize":
        expected = _expected_version(actor, plan)
        oracle.note_moved(await plans.execute_plan(plan_id, expected_version=expected), expected)
    elif state == "complete" and phase == "execute":
        await plans.revert_plan(plan_id, "again") if plan.reversion_count < 3 else await plans.cancel_plan(plan_id)
    elif state == "errored":
        expected = _expected_version(actor, plan)
        oracle.note_moved(await plans.retry_plan(plan_id, expected_version=expected), expected)
    elif state == "cancelled" and plan_id in known:
        known.remove(plan_id)


def _expected_version(actor: Actor, plan: sw.Plan) -> int:
    """Return the version that a client has seen; now and then that of a client which saw the plan earlier."""
    return plan.version - (actor.random.random() < 0.2)


def note_lease(actor: Actor, plan: sw.Plan) -> None:
    """Report the lease that this client was given."""
    assert plan.lease is not None
    actor.oracle.note_lease(plan.plan_id, plan.lease.token, plan.version)


async def _finish(actor: Actor, plan: sw.Plan) -> None:
    """Complete or fail a plan with the lease that this session remembers, if it has one."""
    plans, plan_id = actor.client.plans, plan.plan_id
    token = actor.client.blocking_client.session.leases.get(plan_id)
    if token is None:
        return
    choice = actor.random.random()
    if choice < 0.2:
        await plans.renew_lease(plan_id, lease_ms=1_000)
    elif choice < 0.4:
        fail = {"strategize": plans.fail_strategize, "execute": plans.fail_execute, "apply": plans.fail_apply}
        done = await fail[str(plan.phase)](plan_id, "it did not work")
        actor.oracle.note_finished(done, token)
    elif str(plan.phase) == "strategize":
        actor.oracle.note_finished(await plans.complete_strategize(plan_id), token)
    elif str(plan.phase) == "execute":
        actor.oracle.note_finished(await plans.complete_execute(plan_id), token)


async def work_on_children(actor: Actor) -> None:
    """Declare children of a plan, or take one that is ready and finish it."""
    plans, oracle = actor.client.plans, actor.oracle
    if not oracle.parents:
        await ensure_action(actor)
        parent = await plans.begin(ACTION, projects=[PROJECT], lease_ms=3_600_000)
        note_lease(actor, parent)
        count = actor.random.randint(2, 4)
        aliases = [f"c{number}" for number in range(count)]
        mode = actor.random.choice((sw.SubplanMode.PARALLEL, sw.SubplanMode.SEQUENTIAL))
        children = [sw.subplan(ACTION, alias=alias, labels=actor.random.choice(NEEDS)) for alias in aliases]
        oracle.teams.note_declared(parent.plan_id, [(each.plan_id, each.labels) for each in children])
        await plans.declare_subplans(parent.plan_id, children, mode=mode, max_parallel=2, retries=1)
        oracle.parents.append(parent.plan_id)
        return
    parent_id = oracle.parents[-1]
    labels = actor.random.choice(ABLE)
    able = None if labels is None else frozenset(labels)
    lease_ms = actor.random.choice((500, 60_000))
    ready = await plans.start_ready(parent_id, lease_ms=lease_ms, straight=True, labels=labels)
    if ready.plan is None:
        if ready.is_for_others:
            oracle.teams.note_sent_away(parent_id, able)
        if ready.is_over and parent_id in oracle.parents:
            oracle.parents.remove(parent_id)
        return
    note_lease(actor, ready.plan)
    oracle.teams.note_given(ready.plan, able)
    token = actor.client.blocking_client.session.leases[ready.plan.plan_id]
    if actor.random.random() < 0.2:
        done = await plans.fail_execute(ready.plan.plan_id, "it did not work")
    else:
        done = await plans.complete_execute(ready.plan.plan_id)
    oracle.note_finished(done, token)
