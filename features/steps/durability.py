"""What survives a manager, and what does not."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from behave import fixture, given, then, use_fixture, when
from behave.runner import Context

import stepwell as sw
from tests.support.wait import PATIENCE_SECONDS, eventually


@fixture
def durable_runtime(context: Context) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="sw-data-") as directory:
        context.data_dir = Path(directory) / "data"
        context.durable = sw.Runtime.start(workers=0, data_dir=context.data_dir)
        context.client = context.durable.client(projects=["p"])
        yield
        context.client.close()
        context.durable.close()


@fixture
def fleeting_runtime(context: Context) -> Iterator[None]:
    with sw.Runtime.start(workers=0) as context.fleeting, context.fleeting.client() as context.caller:
        yield


@given("a runtime with a data directory")
def step_durable(context: Context) -> None:
    use_fixture(durable_runtime, context)


@given("a runtime without a data directory")
def step_fleeting(context: Context) -> None:
    use_fixture(fleeting_runtime, context)


@given("{count:d} fragments, a plan that somebody works on, and a change recorded for it")
def step_state(context: Context, count: int) -> None:
    client: sw.Client = context.client
    tiers = [*sw.Tier]
    for number in range(count):
        fragment = sw.Fragment(fragment_id=f"f{number}", body=f"body {number} " * 20, tokens=1)
        client.tiers.store(fragment, tier=tiers[number % len(tiers)])
    client.plans.create_action(
        "work", description="d", definition_of_done="d", strategy_actor="local/a", execution_actor="local/b"
    )
    plan = client.plans.use_action("work", projects=["p"], arguments={})
    client.plans.start_strategize(plan.plan_id)
    client.plans.complete_strategize(plan.plan_id)
    client.plans.execute_plan(plan.plan_id)
    client.plans.start_execute(plan.plan_id)
    context.execution = client.execution(plan.plan_id)
    context.changeset_id = context.execution.start_changeset()
    context.execution.record_change(sw.Change(path="a.py", before=None, after=b"print()\n"))
    context.plan_id = plan.plan_id
    context.stored = {each.fragment_id: each.tier for each in client.tiers.scoped()}
    context.revision = client.status().revision


@given("{count:d} threads that store one fragment after the other")
def step_threads(context: Context, count: int) -> None:
    context.enough = threading.Event()
    context.placed = [[] for _ in range(count)]

    def store(number: int) -> None:
        placed: list[int] = context.placed[number]
        while not context.enough.is_set():
            fragment = sw.Fragment(fragment_id=f"{number}-{len(placed)}", body=f"{number} {len(placed)}", tokens=1)
            placed.append(context.client.tiers.store(fragment, expected_revision=0).revision)

    context.pool = ThreadPoolExecutor(count)
    context.add_cleanup(context.pool.shutdown)
    context.add_cleanup(context.enough.set)
    context.calls = [context.pool.submit(store, number) for number in range(count)]


@when("the manager is killed with kill -9")
def step_kill(context: Context) -> None:
    kill(context.durable)


@when("the manager is killed with kill -9 while they do")
def step_kill_in_the_middle(context: Context) -> None:
    everybody_goes_on(context)
    for _ in range(2):
        kill(context.durable)
        everybody_goes_on(context)
    context.enough.set()


@when("its manager is killed with kill -9")
def step_kill_fleeting(context: Context) -> None:
    os.kill(context.fleeting.pid, signal.SIGKILL)
    eventually(lambda: not context.fleeting.is_alive(), PATIENCE_SECONDS)


@when("the runtime is closed and another one started on its directory")
def step_again(context: Context) -> None:
    context.client.close()
    context.durable.close()
    context.durable = sw.Runtime.start(workers=0, data_dir=context.data_dir)
    context.client = context.durable.client(projects=["p"])


@when("another runtime is started on the same directory")
def step_second(context: Context) -> None:
    try:
        sw.Runtime.start(workers=0, data_dir=context.data_dir).close()
    except sw.StartFailed as refusal:
        context.refusal = refusal


@then("the same client finds the fragments, each in its tier")
@then("a new client finds the fragments, each in its tier")
def step_fragments(context: Context) -> None:
    found = {each.fragment_id: each.tier for each in context.client.tiers.scoped()}
    assert found == context.stored, found
    for fragment_id in found:
        number = fragment_id.removeprefix("f")
        assert context.client.tiers.get(fragment_id).text == f"body {number} " * 20


@then("the lease still counts, and the change is recorded once")
def step_lease(context: Context) -> None:
    context.execution.record_change(sw.Change(path="b.py", before=None, after=b"pass\n"))
    recorded = [entry.path for entry in context.execution.entries(context.changeset_id)]
    assert recorded == ["a.py", "b.py"], recorded
    context.execution.close_changeset(context.changeset_id)
    context.client.plans.complete_execute(context.plan_id)


@then("the revisions go on where they were")
def step_revisions(context: Context) -> None:
    placed = context.client.tiers.store(sw.Fragment(fragment_id="later", body="later", tokens=1))
    assert placed.revision > context.revision, (placed.revision, context.revision)


@then("no call has failed")
def step_no_failure(context: Context) -> None:
    for call in context.calls:
        call.result(PATIENCE_SECONDS)


@then("every fragment was stored exactly once, in the order of its thread")
def step_once(context: Context) -> None:
    found = {each.fragment_id: each.revision for each in context.client.tiers.scoped()}
    expected = {
        f"{number}-{at}": revision for number, each in enumerate(context.placed) for at, revision in enumerate(each)
    }
    assert found == expected, found.keys() ^ expected.keys()
    assert all(each == sorted(each) for each in context.placed)


@then("it is refused, and told which process has it")
def step_refused(context: Context) -> None:
    assert f"process {context.durable.pid}" in context.refusal.message, context.refusal


@then("its callers are told that it is gone")
def step_gone(context: Context) -> None:
    try:
        context.caller.tiers.store(sw.Fragment(fragment_id="a", project="p", body="a", tokens=1))
    except sw.RuntimeLost:
        return
    raise AssertionError("it was stored")


def kill(runtime: sw.Runtime) -> None:
    """Kill the manager, and wait until another one is there."""
    pid = runtime.pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: runtime.pid != pid and runtime.is_alive(), PATIENCE_SECONDS)


def everybody_goes_on(context: Context) -> None:
    before = [len(each) for each in context.placed]
    eventually(
        lambda: all(len(each) > count for each, count in zip(context.placed, before, strict=True)), PATIENCE_SECONDS
    )
