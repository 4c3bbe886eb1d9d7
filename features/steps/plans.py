"""Actions and plans under concurrent callers."""

from __future__ import annotations

from functools import partial

from behave import given, then, when
from behave.runner import Context

import stepwell as sw
from tests.support.features import work
from tests.support.features.outcomes import one_winner
from tests.support.features.processes import in_processes
from tests.support.features.work import PROJECT

NAME = "local/contested"


@given("an action that can be used once")
def step_action_for_one(context: Context) -> None:
    work.create_action(context.services, NAME, "for one", reusable=False)


@given("a plan that waits to be executed")
def step_queued(context: Context) -> None:
    context.plan = work.queue_execution(context.services, NAME)


@when("{callers:d} threads create an action of one name at the same moment")
def step_create_in_threads(context: Context, callers: int) -> None:
    context.outcomes = context.schedule.run(
        [partial(work.create_action, context.services, NAME, f"of caller {caller}") for caller in range(callers)]
    )


@when("{callers:d} processes create an action of one name at the same moment")
def step_create_in_processes(context: Context, callers: int) -> None:
    context.outcomes = in_processes(
        [
            partial(work.create_from_elsewhere, context.services, NAME, f"of caller {caller}")
            for caller in range(callers)
        ]
    )


@when("{callers:d} threads use it at the same moment")
def step_use_in_threads(context: Context, callers: int) -> None:
    use = partial(context.services.plans.use_action, NAME, projects=[PROJECT])
    context.outcomes = context.schedule.run([use] * callers)


@when("{callers:d} threads start its execution at the same moment")
def step_start_in_threads(context: Context, callers: int) -> None:
    start = partial(context.services.plans.start_execute, context.plan.plan_id)
    context.outcomes = context.schedule.run([start] * callers)


@then("one of them wins and the others get {refusal:w}")
def step_one_winner(context: Context, refusal: str) -> None:
    context.winner = one_winner(context.outcomes, getattr(sw, refusal))


@then("the action that is there is the winner's")
def step_winner_stored(context: Context) -> None:
    assert context.services.plans.get_action(NAME) == context.winner


@then("the action counts one use")
def step_used_once(context: Context) -> None:
    assert context.services.plans.get_action(NAME).uses == 1


@then("the lease is the winner's")
def step_winner_leases(context: Context) -> None:
    assert context.winner.lease is not None
    assert context.services.plans.get_plan(context.plan.plan_id).lease == context.winner.lease
