"""Questions for strategies, good and bad ones, and workers that die."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

from behave import fixture, given, then, use_fixture, when
from behave.runner import Context

import stepwell as sw
from stepwell import limits
from stepwell.strategies.protocol import ContextRequest
from tests.support import strategies
from tests.support.wait import PATIENCE_SECONDS, eventually

ASKED = ContextRequest(projects=("p",), query="some words")


@fixture
def working_runtime(context: Context, workers: int, fragments: int) -> Iterator[None]:
    with sw.Runtime.start(workers=workers, strategies=strategies.ALL, log_level="error") as context.working:
        with context.working.client(projects=["p"]) as context.asker:
            context.asker.tiers.store_many(
                sw.Fragment(fragment_id=f"f{number}", body=f"some words of number {number}")
                for number in range(fragments)
            )
            context.expected = {f"f{number}" for number in range(fragments)}
            yield


@given("a runtime with {workers:d} workers and {fragments:d} fragments")
def step_working(context: Context, workers: int, fragments: int) -> None:
    use_fixture(working_runtime, context, workers, fragments)


@given("{count:d} questions that are waiting")
@when("{count:d} questions are asked of the workers at once")
def step_ask(context: Context, count: int) -> None:
    context.questions = [context.asker.strategies.submit("everything", ASKED) for _ in range(count)]


@when("a strategy is asked that {does}, with a deadline of {deadline:d} ms")
def step_ask_in_time(context: Context, does: str, deadline: int) -> None:
    assert does == "hangs"
    context.question = context.asker.strategies.submit("hanging", ASKED, deadline_s=deadline / 1000)


@when("a strategy is asked that raises")
def step_ask_raising(context: Context) -> None:
    context.question = context.asker.strategies.submit("raising", ASKED)


@when("a strategy is asked that kills its worker")
def step_ask_poison(context: Context) -> None:
    context.question = context.asker.strategies.submit("exiting", ASKED)


@when("one of the workers is killed with kill -9")
def step_kill(context: Context) -> None:
    os.kill(context.working.workers[0], signal.SIGKILL)


@when("the words of a question are looked for by {first:d}, {second:d} and {third:d} at once")
def step_share(context: Context, first: int, second: int, third: int) -> None:
    view = context.asker.view()
    shared = [
        context.asker.strategies.submit("keyword", ASKED, view=view, parts=each) for each in (first, second, third)
    ]
    context.found = [each.result(PATIENCE_SECONDS).fragments for each in shared]


@then("all of them are answered, with the same fragments")
def step_answered(context: Context) -> None:
    for question in context.questions:
        found = {each.fragment_id for each in question.result(PATIENCE_SECONDS).fragments}
        assert found == context.expected, found


@then("other questions are answered")
def step_others(context: Context) -> None:
    found = context.asker.strategies.submit("everything", ASKED).result(PATIENCE_SECONDS)
    assert len(found.fragments) == len(context.expected), found


@then("that question has failed, and says why")
def step_failed(context: Context) -> None:
    error = context.question.exception(PATIENCE_SECONDS)
    assert isinstance(error, sw.TaskFailed), error
    assert "ValueError: some words" in str(error), error


@then("that question has taken too long")
def step_late(context: Context) -> None:
    error = context.question.exception(PATIENCE_SECONDS)
    assert isinstance(error, sw.DeadlineExceeded), error


@then("that question is quarantined, with what {count:d} workers have left")
def step_quarantined(context: Context, count: int) -> None:
    assert count == limits.TASK_DEATHS_MAX

    def has_evidence() -> bool:
        """The manager waits a second for evidence, and a busy supervisor may take longer: then it is asked again."""
        error = context.question.exception(PATIENCE_SECONDS)
        assert isinstance(error, sw.TaskQuarantined), error
        left = error.details["evidence"]
        assert isinstance(left, list), left
        assert len(left) == count, left
        if all("these are my last words" in each for each in left):
            return True
        context.question = context.asker.strategies.submit("exiting", ASKED)
        return False

    eventually(has_evidence, PATIENCE_SECONDS)


@then("all have found the same, in the same order")
def step_same(context: Context) -> None:
    first, *others = context.found
    assert first, "nothing was found"
    assert all(each == first for each in others), others
