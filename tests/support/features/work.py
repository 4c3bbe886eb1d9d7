"""The work of one caller in a race: functions of a client or its double, importable in a spawned process."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

import stepwell as sw
from tests.doubles.unsynchronised import PlanExecutionContext as UnsynchronisedContext
from tests.doubles.unsynchronised import Unsynchronised

PROJECT = "p"

Services = sw.Client | Unsynchronised
Execution = sw.PlanExecutionContext | UnsynchronisedContext


class Reading(NamedTuple):
    """The tiers as one caller saw them, and the revision, if there are revisions."""

    metrics: sw.types.TierMetrics
    revision: int | None = None

    @property
    def entries(self) -> int:
        return sum(tier.entries for tier in (self.metrics.hot, self.metrics.warm, self.metrics.cold))

    @property
    def tokens(self) -> int:
        return sum(tier.tokens for tier in (self.metrics.hot, self.metrics.warm, self.metrics.cold))


class Recorded(NamedTuple):
    """A changeset of one caller, and the paths that the caller recorded in it."""

    changeset_id: str
    paths: list[str]


def make_fragments(whose: str, count: int, tokens: int) -> list[sw.Fragment]:
    return [
        sw.Fragment(fragment_id=f"{whose}-{number}", project=PROJECT, body=f"{whose} {number}", tokens=tokens)
        for number in range(count)
    ]


def store_and_read(services: Services, fragments: list[sw.Fragment]) -> list[Reading]:
    """Store each, and read what the tiers hold right after it."""
    return [_store_and_read(services, fragment) for fragment in fragments]


def _store_and_read(services: Services, fragment: sw.Fragment) -> Reading:
    """In one batch nothing comes between the two, so that the reading is of the very revision that the store made."""
    if isinstance(services, Unsynchronised):
        services.tiers.store(fragment)
        return Reading(services.tiers.metrics())
    with services.batch() as batch:
        placed = batch.tiers.store(fragment)
        metrics = batch.tiers.metrics()
    placed.result()
    assert metrics.revision == placed.revision, "a batch was interleaved"
    return Reading(metrics.result(), metrics.revision)


def move_all(services: Services, fragment_ids: list[str], caller: int) -> None:
    """Promote every other one and demote the rest; the next caller the other way round."""
    for number, fragment_id in enumerate(fragment_ids):
        move = services.tiers.promote if (caller + number) % 2 == 0 else services.tiers.demote
        move(fragment_id, project=PROJECT)


def create_action(services: Services, name: str, description: str, *, reusable: bool = True) -> sw.types.Action:
    return services.plans.create_action(
        name,
        description=description,
        definition_of_done="it is done",
        strategy_actor="local/planner",
        execution_actor="local/coder",
        reusable=reusable,
    )


def queue_execution(services: Services, name: str) -> sw.Plan:
    """A new plan that waits to be executed."""
    create_action(services, name, "to be executed")
    plan_id = services.plans.use_action(name, projects=[PROJECT]).plan_id
    services.plans.start_strategize(plan_id)
    services.plans.complete_strategize(plan_id)
    return services.plans.execute_plan(plan_id)


def execution_of(services: Services, plan: sw.Plan) -> Execution:
    """A context; the lease goes along, because another process is another session."""
    if isinstance(services, Unsynchronised):
        return services.execution(plan.plan_id)
    assert plan.lease is not None
    return services.execution(plan.plan_id, lease=plan.lease.token)


def change(path: str) -> sw.Change:
    return sw.Change(path=path, after=path.encode())


def record_own(services: Services, plan: sw.Plan, whose: str, count: int) -> Recorded:
    """Start a changeset and record into it, as one worker of a plan does."""
    execution = execution_of(services, plan)
    paths = [f"{whose}/{number}.py" for number in range(count)]
    changeset_id = execution.start_changeset()
    for path in paths:
        execution.record_change(change(path))
    return Recorded(changeset_id, paths)


def record_named(execution: sw.PlanExecutionContext, whose: str, count: int) -> Recorded:
    """The same in a context that others use too: each change names its changeset."""
    paths = [f"{whose}/{number}.py" for number in range(count)]
    changeset_id = execution.start_changeset()
    for path in paths:
        execution.record_change(change(path), changeset_id=changeset_id)
    return Recorded(changeset_id, paths)


def store_from_elsewhere(services: Services, fragments: list[sw.Fragment]) -> list[Reading]:
    with closing(services):
        return store_and_read(services, fragments)


def create_from_elsewhere(services: Services, name: str, description: str) -> sw.types.Action:
    with closing(services):
        return create_action(services, name, description)


def record_from_elsewhere(services: Services, plan: sw.Plan, whose: str, count: int) -> Recorded:
    with closing(services):
        return record_own(services, plan, whose, count)
