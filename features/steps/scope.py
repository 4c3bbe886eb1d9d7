"""A session sees the projects that it was opened for."""

from __future__ import annotations

from collections.abc import Callable

from behave import given, then, when
from behave.runner import Context

import stepwell as sw
from tests.support.features.schedules import attempt

OPERATIONS: dict[str, Callable[[sw.Client], object]] = {
    "stores into": lambda client: client.tiers.store(sw.Fragment(fragment_id="x", project="theirs", body="x")),
    "reads from": lambda client: client.tiers.get("a", project="theirs"),
    "lists": lambda client: client.tiers.list(project="theirs"),
    "promotes in": lambda client: client.tiers.promote("a", project="theirs"),
    "deletes from": lambda client: client.tiers.delete("a", project="theirs"),
}


@given("a fragment in each of the projects ours and theirs")
def step_two_projects(context: Context) -> None:
    for project in ("theirs", "ours"):
        context.services.tiers.store(sw.Fragment(fragment_id="a", project=project, body=project, tokens=10))


@given("a session for ours")
def step_scoped(context: Context) -> None:
    session = context.session = context.runtime.client(projects=["ours"])
    context.add_cleanup(session.close)


@when("it {operation} the project theirs")
def step_cross(context: Context, operation: str) -> None:
    context.before = context.services.status()
    context.outcome = attempt(lambda: OPERATIONS[operation](context.session))


@when("it evicts as much as it can")
def step_evict(context: Context) -> None:
    context.moved = context.session.tiers.evict_lru(count=100)


@then("it is refused with OutOfScope")
def step_out_of_scope(context: Context) -> None:
    assert type(context.outcome) is sw.OutOfScope, repr(context.outcome)
    assert "theirs" in context.outcome.message, context.outcome.message


@then("theirs is as it was")
def step_as_it_was(context: Context) -> None:
    after = context.services.status()
    assert (after.revision, after.metrics) == (context.before.revision, context.before.metrics), after


@then("only ours went down, and it counts only ours")
def step_only_ours(context: Context) -> None:
    assert [(move.project, move.fragment_id) for move in context.moved.moves] == [("ours", "a")], context.moved
    metrics = context.session.tiers.metrics()
    assert (metrics.hot.entries, metrics.warm.entries) == (0, 1), metrics
    assert context.services.tiers.get("a", project="theirs").tier is sw.Tier.HOT
