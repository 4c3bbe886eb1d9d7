"""Futures of tasks: a task runs once, whichever of its submissions reaches the manager first."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

import pytest

import stepwell as sw
from stepwell.client.session.calls import Call
from stepwell.client.session.environment import SYSTEM
from stepwell.client.session.task_futures import TaskFuture
from stepwell.domain.tasks.commands import SubmitTask
from stepwell.domain.tasks.model import TaskState
from stepwell.errors import StepwellError
from stepwell.strategies.payload import StrategyTask, encoder
from stepwell.strategies.protocol import StrategyView
from stepwell.testing import LocalRuntime
from tests.support.wait import eventually

Submission = Call[TaskState]


class Counted:
    """A strategy that notes how often it ran for each query."""

    name, capabilities = "counted", frozenset[str]()

    def __init__(self) -> None:
        self.queries: list[str] = []

    def can_handle(self, _request: sw.ContextRequest, _view: StrategyView) -> float:
        return 1.0

    def assemble(self, request: sw.ContextRequest, _view: StrategyView, _budget: int) -> Sequence[sw.ScoredFragment]:
        self.queries.append(request.query)
        return []

    def explain(self) -> str:
        return ""


@pytest.fixture
def strategy() -> Counted:
    return Counted()


@pytest.fixture
def client(strategy: Counted) -> Iterator[sw.Client]:
    with LocalRuntime(strategies=[strategy]) as runtime, runtime.client(["p"]) as connected:
        yield connected


@pytest.fixture
def overtaken(client: sw.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first submission of this thread is sent when the outcomes of its tasks have arrived.

    They do arrive, because the listener, which starts with it, submits each registered task that the manager does not
    know.
    """
    session, caller, set_outcome = client.session, threading.get_ident(), TaskFuture.set_outcome
    perform, perform_many = session.perform, session.perform_many
    arrived: list[str] = []
    waited: list[object] = []

    def noted(future: TaskFuture[object], outcome: bytes | BaseException) -> None:
        set_outcome(future, outcome)
        arrived.append(future.task_id)

    def await_outcomes(calls: Iterable[Submission]) -> None:
        if threading.get_ident() == caller and not waited:
            waited.append(calls)
            wanted = {call.command.task_id for call in calls if isinstance(call.command, SubmitTask)}
            eventually(lambda: wanted <= {*arrived})

    def late(call: Submission) -> TaskState:
        await_outcomes([call])
        return perform(call)

    def late_many(groups: Iterable[Sequence[Submission]]) -> Iterator[TaskState | StepwellError]:
        given = [*groups]
        await_outcomes([call for group in given for call in group])
        return perform_many(given)

    monkeypatch.setattr(TaskFuture, "set_outcome", noted)
    monkeypatch.setattr(session, "perform", late)
    monkeypatch.setattr(session, "perform_many", late_many)


def asking(query: str) -> sw.ContextRequest:
    return sw.ContextRequest(projects=["p"], query=query)


@pytest.mark.usefixtures("overtaken")
def test_submission_that_its_outcome_has_overtaken(client: sw.Client, strategy: Counted) -> None:
    """The listener has submitted the task for its caller. The caller's own submission then begins no second task."""
    client.strategies.submit("counted", asking("first")).result(60)
    client.strategies.submit("counted", asking("later")).result(60)
    assert strategy.queries == ["first", "later"]


@pytest.mark.usefixtures("overtaken")
def test_submissions_that_their_outcomes_have_overtaken(client: sw.Client, strategy: Counted) -> None:
    """The same holds for many that are submitted together."""
    payloads = {query: encoder.encode(StrategyTask(asking(query), 1)) for query in ("first", "second", "third")}
    commands = [SubmitTask(SYSTEM.new_id(), "counted", ("p",), payload) for payload in payloads.values()]
    for future in client.strategies._tasks.submit_many(commands, bytes):
        assert future.result(60)
    client.strategies.submit("counted", asking("later")).result(60)
    assert strategy.queries == [*payloads, "later"]
