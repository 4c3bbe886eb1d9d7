"""Children through the client: agents that take what is ready, and a parent that merges what they left."""

from __future__ import annotations

import threading

import pytest

import stepwell as sw
from stepwell import limits
from tests.support.client.sessions import act, executing, in_threads, refused


@pytest.fixture
def parent(client: sw.Client) -> sw.Plan:
    """A plan that this client executes."""
    project = (client.projects or ("",))[0]
    return executing(client, f"parent-{project.lower()}"[:60], project)


def work(client: sw.Client, plan_id: str, path: str, before: bytes | None, after: bytes) -> None:
    """Change a file in the name of a child that this client has."""
    context = client.execution(plan_id)
    changeset_id = context.start_changeset()
    context.record_change(sw.Change(path=path, before=before, after=after))
    context.close_changeset(changeset_id)
    client.plans.complete_execute(plan_id)


def test_agents_take_what_is_ready(runtime: sw.Runtime, client: sw.Client, parent: sw.Plan) -> None:
    """Each child once, by whoever comes first, in spite of failures; whoever finds nothing is told whether to wait."""
    children = [sw.subplan(parent.action_name, alias=f"c{number}") for number in range(12)]
    client.plans.declare_subplans(parent.plan_id, children, max_parallel=3, retries=1)
    done: list[str] = []
    failed: set[str] = set()
    lock = threading.Lock()

    def agent(_number: int) -> None:
        with runtime.client(projects=client.projects) as own, own.watch() as events:
            while True:
                found = own.plans.start_ready(parent.plan_id, straight=True)
                if found.plan is None:
                    if found.is_over:
                        return
                    next(events)  # something happened, to a child most likely
                    continue
                child = found.plan.plan_id
                with lock:
                    fails = child not in failed and len(failed) < 4
                    failed.update([child] if fails else [])
                if fails:
                    own.plans.fail_execute(child, "unlucky")
                else:
                    own.plans.complete_execute(child)
                    with lock:
                        done.append(child)

    in_threads(4, agent)
    assert sorted(done) == sorted(child.plan_id for child in children)
    attempts = {each.plan_id: each.attempt for each in client.plans.list_plans(parent_plan_id=parent.plan_id).plans}
    assert {child for child, attempt in attempts.items() if attempt == 2} == failed
    assert client.plans.start_ready(parent.plan_id) == sw.types.ReadyStarted(None, is_over=True)


def test_merge_and_resolve(client: sw.Client, parent: sw.Plan) -> None:
    """Both sides of a conflict are kept until somebody chooses: ours, theirs, or a body of any size."""
    plans, plan_id = client.plans, parent.plan_id
    names = ("one", "two", "three", "four")
    declared = plans.declare_subplans(plan_id, [sw.subplan(parent.action_name, alias=name) for name in names])
    assert declared.subplans is not None
    for child in declared.subplans.children:
        found = plans.start_ready(plan_id)
        assert found.plan is not None
        assert found.plan.plan_id == child.plan_id
        plans.proceed(child.plan_id)
        work(client, child.plan_id, "a.txt", b"base", child.alias.encode())
    ids = [child.plan_id for child in declared.subplans.children]
    with pytest.raises(sw.PlanNotReady, match="is not merged"):
        plans.complete_execute(plan_id)
    context = client.execution(plan_id)
    changeset_id = context.start_changeset()
    context.record_change(sw.Change(path="a.txt", before=b"base", after=b"one"))
    with client.transaction() as transaction:
        transaction.execution(context).close_changeset(changeset_id)
        pending = transaction.plans.record_merge(
            plan_id, children=ids, changeset_id=changeset_id, conflicts=[("a.txt", each) for each in ids[1:]]
        )
    conflict = pending.result().conflicts[0]
    assert (conflict.alias, conflict.state) == ("two", sw.ConflictState.OPEN)
    sides = [side and bytes(context.body(side.digest)) for side in (conflict.base, conflict.ours, conflict.theirs)]
    assert sides == [b"base", b"one", b"two"]
    with refused(client, sw.MergeConflicts, "has an open conflict at 'a.txt'"):
        plans.complete_execute(plan_id)
    large = b"\0" * (limits.INLINE_BODY_BYTES_MAX + 1)
    context.resolve("a.txt", accept="ours")
    context.resolve("a.txt", accept="theirs")
    resolved = context.resolve("a.txt", body=large, mode=0o100755)
    assert [each.resolution for each in resolved.conflicts] == [
        sw.Resolution.ACCEPT_OURS,
        sw.Resolution.ACCEPT_THEIRS,
        sw.Resolution.BODY,
    ]
    plans.complete_execute(plan_id)
    (net,) = context.net_changes().values()
    assert net.after is not None
    assert (net.after.digest, net.after.mode) == (sw.Digest.of(large).value, 0o100755)
    assert bytes(context.body(net.after.digest)) == large


def test_watchers_are_told_of_children(client: sw.Client, parent: sw.Plan) -> None:
    """What an agent waits for names the parent."""
    with client.watch() as events:
        client.plans.declare_subplans(parent.plan_id, [sw.subplan(act(client, "watched-child"), alias="a")])
        found = client.plans.start_ready(parent.plan_id)
        assert found.plan is not None
        for event in events:
            if isinstance(event, sw.events.PlanMoved):
                assert (event.plan_id, event.parent_plan_id) == (found.plan.plan_id, parent.plan_id)
                return
