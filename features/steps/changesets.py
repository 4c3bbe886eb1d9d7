"""Changes recorded by many at once."""

from __future__ import annotations

from functools import partial

from behave import given, then, when
from behave.runner import Context

import stepwell as sw
from tests.support.features import work
from tests.support.features.outcomes import no_errors
from tests.support.features.processes import in_processes
from tests.support.features.work import Recorded


@given("a plan that is being executed")
def step_executing(context: Context) -> None:
    queued = work.queue_execution(context.services, "local/executed")
    context.plan = context.services.plans.start_execute(queued.plan_id)


@given("an execution context without a changeset")
def step_context(context: Context) -> None:
    context.execution = work.execution_of(context.services, context.plan)


@given("an execution context with one changeset")
def step_context_with_changeset(context: Context) -> None:
    context.execution = work.execution_of(context.services, context.plan)
    context.changeset_id = context.execution.start_changeset()


@when("{callers:d} threads each start a changeset and record {count:d} changes in it")
def step_record_in_threads(context: Context, callers: int, count: int) -> None:
    context.outcomes = context.schedule.run(
        [
            partial(work.record_own, context.services, context.plan, f"thread-{caller}", count)
            for caller in range(callers)
        ]
    )


@when("{callers:d} processes each start a changeset and record {count:d} changes in it")
def step_record_in_processes(context: Context, callers: int, count: int) -> None:
    context.outcomes = in_processes(
        [
            partial(work.record_from_elsewhere, context.services, context.plan, f"process-{caller}", count)
            for caller in range(callers)
        ]
    )


@when("{callers:d} threads share it, each with a changeset of its own that it names {count:d} times")
def step_record_shared(context: Context, callers: int, count: int) -> None:
    context.outcomes = context.schedule.run(
        [partial(work.record_named, context.execution, f"thread-{caller}", count) for caller in range(callers)]
    )


@when("one thread records a change while another closes the changeset")
def step_record_and_close(context: Context) -> None:
    context.outcomes = context.schedule.run(
        [
            partial(context.execution.record_change, work.change("late.py")),
            partial(context.execution.close_changeset, context.changeset_id),
        ]
    )


@when("a change is recorded")
def step_record(context: Context) -> None:
    context.outcomes = context.schedule.run([partial(context.execution.record_change, work.change("early.py"))])


@then("every change is in the changeset of whoever recorded it")
def step_own_changesets(context: Context) -> None:
    execution = work.execution_of(context.services, context.plan)
    recorded: list[Recorded] = no_errors(context.outcomes)
    assert len({each.changeset_id for each in recorded}) == len(recorded), "two callers got one changeset"
    for changeset_id, paths in recorded:
        try:
            found = [entry.path for entry in execution.entries(changeset_id)]
        except sw.NotFound:
            found = []
        assert found == paths, f"recorded {paths}, found {found}"


@then("whoever is refused gets a PlanError")
def step_typed(context: Context) -> None:
    strange = [each for each in context.outcomes if isinstance(each, Exception) and not isinstance(each, sw.PlanError)]
    assert not strange, f"somebody got {strange[0]!r}"


@then("the change is in the changeset, or was refused")
def step_recorded_or_refused(context: Context) -> None:
    entry, closed = context.outcomes
    assert isinstance(closed, sw.types.Changeset), repr(closed)
    found = [*context.execution.entries(context.changeset_id)]
    assert found == ([] if isinstance(entry, sw.PlanError) else [entry]), found


@then("it is refused with NoActiveChangeset, which is a PlanError and no IndexError")
def step_no_active_changeset(context: Context) -> None:
    (outcome,) = context.outcomes
    assert type(outcome) is sw.NoActiveChangeset, repr(outcome)
    assert isinstance(outcome, sw.PlanError)
    assert not isinstance(outcome, IndexError)
    assert "start_changeset" in outcome.message
