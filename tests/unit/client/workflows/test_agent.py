"""Agents that work on children: each child once, under its lease, with a truthful end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.client.workflows.agent import SubplanAgent
from stepwell.testing import LocalRuntime
from tests.support.client.sessions import in_threads
from tests.support.client.subplans import declared, record, tree
from tests.support.wait import eventually


def positions(client: sw.Client, parent: sw.Plan) -> dict[str, str]:
    """Where each child stands, by alias."""
    assert parent.subplans is not None
    return {each.alias: str(client.plans.get_plan(each.plan_id).position) for each in parent.subplans.children}


def aliases(parent: sw.Plan) -> dict[str, str]:
    """Which child has which id."""
    assert parent.subplans is not None
    return {each.plan_id: each.alias for each in parent.subplans.children}


def agents(
    runtime: LocalRuntime, parent: sw.Plan, count: int, run: Callable[[sw.Plan, sw.WorkContext], object]
) -> Sequence[sw.types.WorkDone]:
    """So many agents, each a client of its own, until everything is over."""
    done: list[sw.types.WorkDone] = []

    def work(_number: int) -> None:
        with runtime.client(projects=parent.projects) as own:
            done.append(own.plans.work_on(parent.plan_id, run))

    in_threads(count, work)
    return done


def test_each_once(runtime: LocalRuntime, client: sw.Client) -> None:
    """By many agents, each child by one of them; the parent has all of it in declared order."""
    parent = declared(client, [f"c{number}" for number in range(20)], max_parallel=3)

    def run(plan: sw.Plan, context: sw.WorkContext) -> None:
        assert plan.phase is sw.Phase.EXECUTE
        context.check()
        record(context, {f"{aliases(parent)[plan.plan_id]}.txt": (None, b"done\n")})

    done = agents(runtime, parent, 4, run)
    completed = [plan_id for each in done for plan_id in each.completed]
    assert sorted(completed) == sorted(aliases(parent))
    assert [(each.failed, each.lost, each.errored, each.is_over) for each in done] == [((), (), (), True)] * 4
    context = client.execution(parent.plan_id)
    context.merge_children()
    assert len(tree(context)) == 20
    client.plans.complete_execute(parent.plan_id)


def test_failures_are_said(client: sw.Client) -> None:
    """What was raised is why; a child that fails is tried as often as declared, and then stays so."""
    parent = declared(client, ["good", "bad", "unlucky"], retries=1)
    names = aliases(parent)
    tried: list[str] = []

    def run(plan: sw.Plan, context: sw.WorkContext) -> None:
        alias = names[plan.plan_id]
        tried.append(alias)
        context.start_changeset()
        if alias == "bad" or (alias == "unlucky" and plan.attempt == 1):
            raise ValueError(f"{alias} has failed \ud800")
        context.close_changeset([*context.changesets()][-1].changeset_id)

    done = client.plans.work_on(parent.plan_id, run)
    assert tried == ["good", "bad", "bad", "unlucky", "unlucky"]
    ids = {alias: plan_id for plan_id, alias in names.items()}
    assert done.completed == (ids["good"], ids["unlucky"])
    assert done.failed == (ids["bad"], ids["bad"], ids["unlucky"])
    assert (done.errored, done.is_over) == ((ids["bad"],), True)
    assert positions(client, parent) == {
        "good": "execute/complete",
        "bad": "execute/errored",
        "unlucky": "execute/complete",
    }
    assert [each.message for each in client.plans.get_plan(ids["bad"]).errors] == ["ValueError: bad has failed ?"] * 2


def raising(_plan: sw.Plan, _context: sw.WorkContext) -> None:
    raise ZeroDivisionError("mine")


def test_traceback_is_logged(client: sw.Client, capsys: pytest.CaptureFixture[str]) -> None:
    """The agent goes on, and the line that raised can be found; of a child that was taken away, nothing is logged."""
    parent = declared(client, ["a", "b"])
    assert len(client.plans.work_on(parent.plan_id, raising).failed) == 2
    told = capsys.readouterr().err
    assert told.count("child.failed") == told.count("ZeroDivisionError: mine") == 2
    assert "in raising" in told
    assert all(plan_id in told for plan_id in aliases(parent))

    def cancelled(plan: sw.Plan, context: sw.WorkContext) -> None:
        client.plans.cancel_plan(plan.plan_id, "no")
        context.start_changeset()

    assert len(client.plans.work_on(declared(client, ["c"]).plan_id, cancelled, on_error="raise").lost) == 1
    assert capsys.readouterr().err == ""


def test_raised_to_the_caller(client: sw.Client, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is, after the child was reported; the others are left, and no lease is. What is raised is not logged."""
    parent = declared(client, ["a", "b"])
    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        client.plans.work_on(parent.plan_id, raising, on_error="raise")
    assert raised.traceback[-1].name == "raising"
    assert positions(client, parent) == {"a": "execute/errored", "b": "strategize/queued"}
    assert not client.session.leases.keys() & aliases(parent).keys()
    assert capsys.readouterr().err == ""
    assert len(client.plans.work_on(parent.plan_id, lambda *_: None, on_error="raise").completed) == 1


def test_lease_of_another_plan(client: sw.Client) -> None:
    """That it is lost is an error of the function, not the loss of the child."""
    parent = declared(client, ["a"])

    def run(_plan: sw.Plan, _context: sw.WorkContext) -> None:
        raise sw.LeaseLost("of another one", plan_id="another")

    with pytest.raises(sw.LeaseLost, match="of another one"):
        client.plans.work_on(parent.plan_id, run, on_error="raise")
    assert positions(client, parent) == {"a": "execute/errored"}


def test_unknown_choice(client: sw.Client) -> None:
    """It is refused before anything is begun."""
    parent = declared(client, ["a"])
    choice: Any = "ignore"
    with pytest.raises(sw.InvalidArgument, match="'raise' or 'continue'"):
        client.plans.work_on(parent.plan_id, raising, on_error=choice)
    assert positions(client, parent) == {"a": "strategize/queued"}


def test_retry_is_for_another_agent(runtime: LocalRuntime, client: sw.Client) -> None:
    """The agent that failed a child does not use up its retry while another one waits for work."""
    parent = declared(client, ["a"], retries=1)
    tried: list[str] = []
    begun, is_waiting = threading.Event(), threading.Event()

    def fail_first(plan: sw.Plan, _context: sw.WorkContext) -> None:
        assert plan.lease is not None
        tried.append(plan.lease.session_id)
        begun.set()
        assert is_waiting.wait(60)
        if plan.attempt == 1:
            raise ValueError("not with me")

    with runtime.client(projects=parent.projects) as first, runtime.client(projects=parent.projects) as second:
        worker = threading.Thread(target=lambda: first.plans.work_on(parent.plan_id, fail_first))
        worker.start()
        assert begun.wait(60)
        found = second.plans.start_ready(parent.plan_id)
        assert (found.plan, found.is_over) == (None, False), "it has asked, and waits"
        is_waiting.set()
        done = second.plans.work_on(parent.plan_id, fail_first)
        worker.join()
        assert tried == [first.session_id, second.session_id]
    assert (len(done.completed), done.is_over) == (1, True)


def test_what_cannot_be_completed_has_failed(client: sw.Client) -> None:
    """A changeset that was left open: what the manager says of it is the error."""
    parent = declared(client, ["a"])
    done = client.plans.work_on(parent.plan_id, lambda _, context: context.start_changeset())
    assert len(done.failed) == 1
    (error,) = client.plans.get_plan(done.failed[0]).errors
    assert error.message.startswith("PlanNotReady: ")
    assert "1 open changeset" in error.message


def test_strategy_of_its_own(client: sw.Client) -> None:
    """Without `straight`, both phases, under one lease after the other."""
    parent = declared(client, ["a", "b"])
    seen: list[tuple[str, sw.Phase]] = []

    def run(plan: sw.Plan, context: sw.WorkContext) -> None:
        seen.append((aliases(parent)[plan.plan_id], plan.phase))
        if plan.phase is sw.Phase.STRATEGIZE:
            client.plans.record_decision(plan.plan_id, question="how", choice="so", lease=context.lease)
        else:
            record(context, {"f": (None, b"x")})
            if seen[-1][0] == "b":
                raise OSError("no")

    done = client.plans.work_on(parent.plan_id, run, straight=False)
    assert seen == [(alias, phase) for alias in "ab" for phase in (sw.Phase.STRATEGIZE, sw.Phase.EXECUTE)]
    assert (len(done.completed), len(done.failed)) == (1, 1)
    assert not client.session.leases.keys() & aliases(parent).keys()


def test_interrupted(client: sw.Client) -> None:
    """Whoever interrupts an agent has interrupted it; the child says so."""
    parent = declared(client, ["a"])

    def run(_plan: sw.Plan, _context: sw.WorkContext) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.plans.work_on(parent.plan_id, run)
    (plan_id,) = aliases(parent)
    assert client.plans.get_plan(plan_id).errors[0].message == "KeyboardInterrupt: "


def test_fail_fast(runtime: LocalRuntime, client: sw.Client) -> None:
    """The first that fails takes the others along: those at work are told, and those that wait are never begun."""
    parent = declared(client, ["slow", "bad", "late"], max_parallel=2, fail_fast=True)
    names, both = aliases(parent), threading.Barrier(2)
    told: list[object] = []

    def run(plan: sw.Plan, context: sw.WorkContext) -> None:
        both.wait(60)
        if names[plan.plan_id] == "bad":
            raise ValueError
        eventually(lambda: client.plans.get_plan(plan.plan_id).state is sw.PlanState.CANCELLED)
        try:
            context.start_changeset()
        except sw.LeaseLost as error:
            told.append(error.details["plan_id"])
            raise

    done = agents(runtime, parent, 2, run)
    assert positions(client, parent) == {
        "slow": "execute/cancelled",
        "bad": "execute/errored",
        "late": "strategize/cancelled",
    }
    assert [names[str(plan_id)] for plan_id in told] == ["slow"]
    assert sorted((len(each.completed), len(each.failed), len(each.lost)) for each in done) == [(0, 0, 1), (0, 1, 0)]


def test_dependency_order(runtime: LocalRuntime, client: sw.Client) -> None:
    """Nobody begins before what they need is there."""
    needs = {"b": ["a"], "c": ["a"], "d": ["b", "c"]}
    parent = declared(client, ["d", "c", "b", "a"], mode=sw.SubplanMode.DEPENDENCY_ORDERED, needs=needs)
    names, lock = aliases(parent), threading.Lock()
    order: list[str] = []

    def run(plan: sw.Plan, _context: sw.WorkContext) -> None:
        with lock:
            assert {*needs.get(names[plan.plan_id], ())} <= {*order}
        order.append(names[plan.plan_id])

    agents(runtime, parent, 3, run)
    assert sorted(order) == ["a", "b", "c", "d"]
    assert (order[0], order[-1]) == ("a", "d")


def test_parent_is_cancelled(runtime: LocalRuntime, client: sw.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents at work are told, also those that record nothing; they stop, and those that wait go."""
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS_MAX", 0.02)
    parent = declared(client, ["a", "b", "c"], max_parallel=2)
    working = threading.Semaphore(0)

    def run(_plan: sw.Plan, context: sw.WorkContext) -> None:
        working.release()
        eventually(context.check)

    def cancel() -> None:
        for _ in range(2):
            assert working.acquire(timeout=60)
        client.plans.cancel_plan(parent.plan_id, "not wanted any more")

    canceller = threading.Thread(target=cancel)
    canceller.start()
    done = agents(runtime, parent, 3, run)
    canceller.join()
    assert sorted(len(each.lost) for each in done) == [0, 1, 1]
    assert {each.rpartition("/")[2] for each in positions(client, parent).values()} == {"cancelled"}
    assert all(each.is_over and not each.completed and not each.failed for each in done)


def test_lease_that_was_lost_is_not_completed(client: sw.Client) -> None:
    """Somebody else has the child by now, and what they do with it counts."""
    parent = declared(client, ["a"], retries=3)
    attempts: list[int] = []

    def run(plan: sw.Plan, context: sw.WorkContext) -> None:
        attempts.append(plan.attempt)
        if plan.attempt == 1:
            client.plans.fail_execute(plan.plan_id, "taken away", lease=context.lease)
            raise ValueError("and then it failed, too")

    done = client.plans.work_on(parent.plan_id, run)
    assert attempts == [1, 2]
    assert (len(done.lost), len(done.completed), len(done.failed)) == (1, 1, 0)


def test_children_of_children(client: sw.Client) -> None:
    """An agent may be a parent itself: what its children did is merged into it, and then into its own parent."""
    parent = declared(client, ["outer"])

    def inner(plan: sw.Plan, context: sw.WorkContext) -> None:
        record(context, {f"{plan.plan_id}.txt": (None, b"x")})

    def outer(plan: sw.Plan, context: sw.WorkContext) -> None:
        children = [sw.subplan(parent.action_name, alias=alias) for alias in "ab"]
        client.plans.declare_subplans(plan.plan_id, children, lease=context.lease)
        assert len(client.plans.work_on(plan.plan_id, inner).completed) == 2
        context.merge_children()

    assert len(client.plans.work_on(parent.plan_id, outer).completed) == 1
    context = client.execution(parent.plan_id)
    context.merge_children()
    assert len(tree(context)) == 2


def when_waiting(monkeypatch: pytest.MonkeyPatch, function: Callable[[], object]) -> None:
    """Call a function when an agent has found nothing, and is about to wait."""
    wait, functions = SubplanAgent._wait, [function]

    def waiting(agent: SubplanAgent[sw.WorkContext], watch: sw.Watch | None, seconds: float) -> None:
        while functions:
            functions.pop()()
        wait(agent, watch, seconds)

    monkeypatch.setattr(SubplanAgent, "_wait", waiting)


class TestWaiting:
    """While nothing is ready."""

    @pytest.fixture
    def parent(self, client: sw.Client) -> sw.Plan:
        """One child after the other."""
        return declared(client, ["a", "b"], mode=sw.SubplanMode.SEQUENTIAL)

    @pytest.fixture
    def first(self, client: sw.Client, parent: sw.Plan) -> str:
        """The child that is in the way, and at which somebody is."""
        plan = client.plans.start_ready(parent.plan_id, straight=True).plan
        assert plan is not None
        return plan.plan_id

    @pytest.mark.usefixtures("first")
    def test_no_longer_than_told(self, client: sw.Client, parent: sw.Plan) -> None:
        """It says that it is not over."""
        done = client.plans.work_on(parent.plan_id, lambda *_: None, wait_s=0.02)
        assert (done.completed, done.is_over) == ((), False)

    def test_until_something_happens(
        self, client: sw.Client, parent: sw.Plan, first: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is told, and need not look."""
        monkeypatch.setattr(limits, "AGENT_POLL_SECONDS", 60.0)
        when_waiting(monkeypatch, lambda: client.plans.complete_execute(first))
        assert len(client.plans.work_on(parent.plan_id, lambda *_: None).completed) == 1

    def test_for_children_that_are_declared_later(
        self, client: sw.Client, parent: sw.Plan, first: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An agent may come before there is anything to do."""
        monkeypatch.setattr(limits, "AGENT_POLL_SECONDS", 60.0)
        inner = [sw.subplan(parent.action_name, alias="inner")]
        when_waiting(monkeypatch, lambda: client.plans.declare_subplans(first, inner))
        assert len(client.plans.work_on(first, lambda *_: None).completed) == 1

    def test_when_there_is_no_room_to_watch(
        self, client: sw.Client, parent: sw.Plan, first: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It looks now and then."""
        monkeypatch.setattr(limits, "WATCHERS_MAX", 0)
        monkeypatch.setattr(limits, "AGENT_UNWATCHED_POLL_SECONDS", 0.01)
        when_waiting(monkeypatch, lambda: client.plans.complete_execute(first))
        assert len(client.plans.work_on(parent.plan_id, lambda *_: None).completed) == 1

    def test_events_that_were_missed(
        self, client: sw.Client, parent: sw.Plan, first: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever they were about: it asks again."""

        def missed(_watch: sw.Watch, _timeout_s: float | None = None) -> None:
            client.plans.complete_execute(first)
            monkeypatch.undo()
            raise sw.EventsMissed("too slow", resume=1)

        monkeypatch.setattr(sw.Watch, "get", missed)
        assert len(client.plans.work_on(parent.plan_id, lambda *_: None).completed) == 1


def test_captured(client: sw.Client, tmp_path: Path) -> None:
    """A child's context does all that a context does."""
    parent = declared(client, ["c"])

    def run(_plan: sw.Plan, context: sw.WorkContext) -> None:
        with context.capture(tmp_path) as captured:
            (tmp_path / "f").write_bytes(b"x")
        assert [entry.path for entry in captured.entries] == ["f"]

    assert client.plans.work_on(parent.plan_id, run).failed == ()


class Promise:
    """Something to be awaited that is no coroutine."""

    def __await__(self) -> Iterator[None]:
        yield


async def promising(_plan: sw.Plan, _context: sw.WorkContext) -> None:
    raise AssertionError("nobody awaits it")


@pytest.mark.parametrize("run", [promising, lambda *_: Promise()])
def test_what_is_only_promised_is_not_done(client: sw.Client, run: Callable[..., object]) -> None:
    """A coroutine that nobody awaits did nothing: the child has failed, and says why."""
    parent = declared(client, ["c"])
    (child,) = client.plans.work_on(parent.plan_id, run).failed
    assert "must be an ordinary function" in client.plans.get_plan(child).errors[-1].message
