"""Every call of a workload on a real manager, by a blocking client and by one of an event loop."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

import stepwell as sw
from stepwell.prove import performer
from stepwell.prove.history import (
    Accepted,
    AnyCall,
    AnyOutcome,
    Declined,
    DeleteCall,
    GetCall,
    LogAppendCall,
    LogPopCall,
    LogReadCall,
    NoAnswer,
    NotDone,
    PlanReadCall,
    PlanStepCall,
    ReplaceCall,
    SnapshotCall,
    StoreCall,
    TransactCall,
)
from stepwell.prove.performer import BlockingPerformer, LoopPerformer
from stepwell.prove.workload import Request
from stepwell.testing import LocalRuntime
from tests.support.prove.calls import saw

Script = Callable[[str], list[tuple[Request, list[AnyOutcome]]]]


def script(plan: str) -> list[tuple[Request, list[AnyOutcome]]]:
    """Requests with the outcomes that one caller alone has."""
    both = (ReplaceCall("x", None, "1"), StoreCall("y", "2"))
    return [
        ((GetCall("a"),), [saw(None)]),
        ((ReplaceCall("a", None, "1"),), [Accepted()]),
        ((ReplaceCall("a", None, "2"),), [Declined()]),
        ((ReplaceCall("a", "1", "2"),), [Accepted()]),
        ((ReplaceCall("a", "1", "3"),), [Declined()]),
        ((GetCall("a"), StoreCall("a", "3"), GetCall("b")), [saw("2"), Accepted(), saw(None)]),
        ((DeleteCall("b"),), [Declined()]),
        ((DeleteCall("a"),), [Accepted()]),
        ((TransactCall(both),), [Accepted()]),
        ((TransactCall(both),), [Declined()]),
        ((TransactCall((ReplaceCall("x", "1", "3"), ReplaceCall("y", "2", "4"))),), [Accepted()]),
        ((SnapshotCall(("x", "y", "z")),), [saw("3", "4", None)]),
        ((ReplaceCall("x", "3", "5"),), [Accepted()]),
        ((LogReadCall("l"), LogPopCall("l")), [saw(), saw(None)]),
        ((LogAppendCall("l", "1"),), [Accepted()]),
        ((LogAppendCall("l", "2"), LogReadCall("l")), [Accepted(), saw("1", "2")]),
        ((LogPopCall("l"),), [saw("2")]),
        ((LogPopCall("l"), LogReadCall("l")), [saw("1"), saw()]),
        ((PlanReadCall(plan),), [saw("strategize/queued")]),
        ((PlanStepCall(plan, "start_strategize"),), [Accepted()]),
        ((PlanStepCall(plan, "start_strategize"),), [Declined()]),
        ((PlanStepCall(plan, "complete_strategize"),), [Accepted()]),
        ((PlanStepCall(plan, "cancel_plan"),), [Accepted()]),
        ((PlanStepCall(plan, "execute_plan"), PlanReadCall(plan)), [Declined(), saw("strategize/cancelled")]),
    ]


@pytest.fixture
def runtime() -> Iterator[LocalRuntime]:
    with LocalRuntime() as runtime:
        yield runtime


def plan_of(runtime: LocalRuntime) -> str:
    with runtime.client(["p"]) as client:
        client.plans.create_action(
            "a", description="d", definition_of_done="d", strategy_actor="a/b", execution_actor="a/b"
        )
        return client.plans.use_action("a", projects=["p"]).plan_id


def test_blocking(runtime: LocalRuntime) -> None:
    """One call after the other, in batches and in transactions."""
    steps = script(plan_of(runtime))
    with runtime.client(["p"]) as client:
        performer = BlockingPerformer(client, "p")
        assert [performer.perform(request) for request, _ in steps] == [outcomes for _, outcomes in steps]


def test_event_loop(runtime: LocalRuntime) -> None:
    """The same with `await`."""
    steps = script(plan_of(runtime))

    async def run() -> list[list[AnyOutcome]]:
        async with sw.aio.connect(runtime.address, ["p"]) as client:
            performer = LoopPerformer(client, "p")
            return [await performer.perform(request) for request, _ in steps]

    assert asyncio.run(run()) == [outcomes for _, outcomes in steps]


@pytest.mark.parametrize(
    "call, error, outcome",
    [
        (GetCall("a"), sw.Busy("b"), NotDone()),
        (TransactCall(()), sw.TransactionAborted("t", index=0, cause="Busy"), NotDone()),
        (StoreCall("a", "1"), sw.OutcomeUnknown("o"), NoAnswer()),
        (StoreCall("a", "1"), sw.SessionExpired("s"), NoAnswer()),
    ],
)
def test_errors(call: AnyCall, error: sw.StepwellError, outcome: AnyOutcome) -> None:
    """An error that says that nothing happened is told from one that leaves it open."""
    assert performer._failed(call, error) == outcome


def test_manager_gone(runtime: LocalRuntime) -> None:
    """A manager that is gone for good ends the run, in both kinds of thread."""
    client = runtime.client(["p"])
    runtime.close()
    with client, pytest.raises(sw.RuntimeLost):
        BlockingPerformer(client, "p").perform((GetCall("a"),))


def test_body_gone(runtime: LocalRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot whose body was deleted meanwhile tells nothing."""

    def gone(*_: object) -> str:
        raise sw.BodyGone("gone")

    with runtime.client(["p"]) as client:
        blocking = BlockingPerformer(client, "p")
        blocking.perform((StoreCall("x", "1"),))
        monkeypatch.setattr("stepwell.client.api.views.ViewBodyReader.read", gone)
        assert blocking.perform((SnapshotCall(("x",)),)) == [NoAnswer()]


def test_unknown_revision(runtime: LocalRuntime) -> None:
    """A value that the client has given no revision for cannot be compared with: nothing is sent."""
    with runtime.client(["p"]) as client:
        blocking = BlockingPerformer(client, "p")
        assert blocking.perform((ReplaceCall("x", "never seen", "1"),)) == [NotDone()]
        assert blocking.perform((GetCall("x"),)) == [saw(None)]


def test_calls_of_their_own(runtime: LocalRuntime) -> None:
    """A transaction is never one of several calls of a batch."""
    with runtime.client(["p"]) as client, pytest.raises(AssertionError):
        BlockingPerformer(client, "p").perform((TransactCall(()), GetCall("a")))
