"""Children, the agents that work on them, and what their parent makes of it."""

from __future__ import annotations

import threading
from functools import partial
from unittest import mock

from behave import given, then, when
from behave.runner import Context

import stepwell as sw
from stepwell import limits
from tests.support.features import children
from tests.support.features.children import FILE
from tests.support.features.outcomes import no_errors
from tests.support.features.processes import in_processes
from tests.support.processes import kill, spawned
from tests.support.wait import PATIENCE_SECONDS, eventually


def ids(plan: sw.Plan) -> list[str]:
    assert plan.subplans is not None
    return [child.plan_id for child in plan.subplans.children]


@given("a plan with {count:d} children that each change a line of one file")
def step_children(context: Context, count: int) -> None:
    context.plan = children.declare(context.services, count)
    context.before = children.base(count)
    context.bodies = {each: children.edited(context.before, number) for number, each in enumerate(ids(context.plan))}


@given("a plan with 2 children that change the same line")
def step_rivals(context: Context) -> None:
    context.plan = children.declare(context.services, 2)
    context.before = b"line\n"
    context.bodies = dict(zip(ids(context.plan), (b"first\n", b"second\n"), strict=True))


@given("an agent that was killed while it had the first")
def step_killed(context: Context) -> None:
    client, first = context.services, ids(context.plan)[0]
    with spawned(children.take_and_wait, client.address, context.plan.plan_id) as agent:
        eventually(lambda: client.plans.get_plan(first).lease is not None, PATIENCE_SECONDS)
        assert agent.pid is not None
        kill(agent.pid)


@when("{count:d} processes work on its children")
def step_work(context: Context, count: int) -> None:
    work = partial(children.work_from_elsewhere, context.services, context.plan, context.bodies, context.before)
    context.outcomes = in_processes([work] * count)


@when("an agent works on its children")
def step_work_here(context: Context) -> None:
    context.outcomes = [children.work(context.services, context.plan, context.bodies, context.before)]


@when("the children are merged")
def step_merge(context: Context) -> None:
    execution = context.services.execution(context.plan.plan_id)
    execution.merge_children()
    context.execution = execution


@when("the conflict is resolved by {choice}")
def step_resolve(context: Context, choice: str) -> None:
    match choice:
        case "what was merged":
            context.execution.resolve(FILE, accept="ours")
        case "what came later":
            context.execution.resolve(FILE, accept="theirs")
        case "another line":
            context.execution.resolve(FILE, body=b"both\n")
        case _:
            raise NotImplementedError(choice)


@when("it is cancelled while {count:d} agents work on its children")
def step_cancel(context: Context, count: int) -> None:
    client, working = context.services, threading.Barrier(count + 1)

    def run(_plan: sw.Plan, execution: sw.WorkContext) -> None:
        working.wait(PATIENCE_SECONDS)
        eventually(execution.check, PATIENCE_SECONDS)

    def cancel() -> None:
        working.wait(PATIENCE_SECONDS)
        client.plans.cancel_plan(context.plan.plan_id)

    agents = [partial(client.plans.work_on, context.plan.plan_id, run)] * count
    with mock.patch.object(limits, "HEARTBEAT_SECONDS_MAX", 0.05):  # so that the agents are told soon
        context.outcomes = context.schedule.run([*agents, cancel])[:count]


@then("every child was completed by one of them")
def step_completed(context: Context) -> None:
    done: list[sw.types.WorkDone] = no_errors(context.outcomes)
    completed = sorted(plan_id for each in done for plan_id in each.completed)
    assert completed == sorted(ids(context.plan)), completed
    assert all(each.is_over and not each.failed and not each.lost for each in done), done


@then("the merged file has every child's line")
def step_merged(context: Context) -> None:
    execution = context.services.execution(context.plan.plan_id)
    plan = execution.merge_children()
    assert list(plan.merged.children) == ids(context.plan), "not in declared order"
    expected = context.before
    for number in range(len(context.bodies)):
        expected = children.edited(expected, number)
    assert merged_body(execution) == expected
    assert str(context.services.plans.complete_execute(plan.plan_id).position) == "execute/complete"


@then("the first child says that a lease was lost")
def step_lost(context: Context) -> None:
    plan = context.services.plans.get_plan(ids(context.plan)[0])
    assert [fault.message.partition(":")[0] for fault in plan.errors] == ["lease lost"], plan.errors
    assert plan.attempt == 2


@then("the parent is not completed, because of a conflict that shows both lines")
def step_blocked(context: Context) -> None:
    (outcome,) = context.schedule.run([partial(context.services.plans.complete_execute, context.plan.plan_id)])
    assert isinstance(outcome, sw.MergeConflicts), repr(outcome)
    assert outcome.details["paths"] == [FILE], outcome.details
    text = context.execution.conflict_text(FILE)
    assert text == "<<<<<<< ours\nfirst\n=======\nsecond\n>>>>>>> theirs (1)\n", text


@then('the merged line is "{line}", and the parent is completed')
def step_resolved(context: Context, line: str) -> None:
    assert merged_body(context.execution) == f"{line}\n".encode()
    assert str(context.services.plans.complete_execute(context.plan.plan_id).position) == "execute/complete"


@then("every agent was told, and has completed nothing")
def step_told(context: Context) -> None:
    done: list[sw.types.WorkDone] = no_errors(context.outcomes)
    assert [(len(each.completed), len(each.failed), len(each.lost)) for each in done] == [(0, 0, 1)] * len(done), done


def merged_body(execution: sw.PlanExecutionContext) -> bytes:
    (change,) = execution.net_changes().values()
    assert change.after is not None
    return bytes(execution.body(change.after.digest))
