"""Plans that wait for their turn at a tree: in order, told where they stand, and never for one that is gone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.client.api.plans import PlanApi
from stepwell.client.session.calls import Call
from stepwell.testing import LocalRuntime
from tests.support.client.applicable_plans import executing
from tests.support.wait import eventually

Places = list[tuple[int, int, str | None]]


def ready(client: sw.Client, name: str, *validations: sw.Validation, before: bytes | None = None) -> str:
    """A plan that makes one file, ready to be applied."""
    context = executing(client, validations)
    changeset_id = context.start_changeset()
    context.record_change(sw.Change(path=name, before=before, after=b"new"))
    context.close_changeset(changeset_id)
    client.plans.complete_execute(context.plan_id)
    return context.plan_id


class Team:
    """Callers with sessions and threads of their own, at one tree, and the plan that holds them up."""

    def __init__(self, runtime: LocalRuntime, root: Path, stack: ExitStack) -> None:
        self._runtime = runtime
        self._stack = stack
        self._threads = stack.enter_context(ThreadPoolExecutor(8))
        self._gate = root.with_name("gate")
        os.mkfifo(self._gate)
        self.root = root
        self.client = self.connect()
        self.places: dict[str, Places] = {}
        self.order: list[str] = []  # of the plans that were begun
        self.holding = ""
        self._watch = stack.enter_context(self.client.watch())

    def connect(self) -> sw.Client:
        return self._stack.enter_context(self._runtime.client(projects=["p"]))

    def hold(self) -> Future[sw.Plan]:
        """Apply a plan whose validation goes on until `release`."""
        self.holding = ready(self.client, "holding", sw.Validation("gate", ("cat", str(self._gate))))
        future = self._threads.submit(self.client.execution(self.holding).apply, self.root)
        eventually(lambda: str(self.client.plans.get_plan(self.holding).position) == "apply/processing")
        return future

    def release(self) -> None:
        """Let the plan that holds the others up go on."""
        self._gate.write_bytes(b"")

    def end(self) -> None:
        """Let everything go on that a test has left."""
        os.close(os.open(self._gate, os.O_RDWR | os.O_NONBLOCK))

    def queue(self, plan_id: str, *, priority: int = 0, timeout_s: float | None = 60.0) -> Future[sw.Plan]:
        """Apply a plan with its turn, and return when it is in the queue."""
        places = self.places[plan_id] = []

        def on_place(found: sw.types.ApplyQueued) -> None:
            places.append((found.place, found.plans, found.applying))

        context = self.connect().execution(plan_id)
        future = self._threads.submit(
            lambda: context.apply(self.root, wait=True, priority=priority, timeout_s=timeout_s, on_place=on_place)
        )
        eventually(lambda: bool(places))
        return future

    def begun(self, count: int) -> list[str]:
        """Return the first plans that began to be applied, in order."""
        while len(self.order) < count:
            event = self._watch.get(60.0)
            assert event is not None
            if isinstance(event, sw.events.PlanMoved) and (event.phase, event.state) == ("apply", "processing"):
                self.order.append(event.plan_id)
        return self.order

    @property
    def waiting(self) -> list[str]:
        return [each.plan_id for each in self.client.plans.apply_queue(str(self.root)).tickets]


@pytest.fixture
def team(runtime: LocalRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Team]:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    root = tmp_path / "root"
    root.mkdir()
    with ExitStack() as stack:
        team = Team(runtime, root, stack)
        yield team
        team.end()


def test_in_order(team: Team) -> None:
    """By priority, then by age; each is told its place, and what is being applied."""
    holding = team.hold()
    plans = {name: ready(team.client, name) for name in "abc"}
    done = [team.queue(plans[name], priority=priority) for name, priority in (("a", 0), ("b", 0), ("c", 5))]
    eventually(lambda: team.waiting == [team.holding, plans["c"], plans["a"], plans["b"]])
    team.release()
    assert all(each.result(60).applied for each in (holding, *done))
    assert team.begun(4) == [team.holding, plans["c"], plans["a"], plans["b"]]
    assert team.places[plans["b"]][0] == (3, 3, team.holding)
    assert team.places[plans["b"]][-1][0] == 1
    assert team.waiting == []
    assert {path.name for path in team.root.iterdir() if path.is_file()} == {"holding", "a", "b", "c"}


def test_alone(team: Team) -> None:
    """Without others there is nothing to wait for."""
    plan_id = ready(team.client, "a")
    assert team.queue(plan_id).result(60).applied
    assert team.places[plan_id] == [(1, 1, None)]


class TestWithoutWaiting:
    def test_refused_while_others_wait(self, team: Team) -> None:
        """It would overtake them; the plan is as it was, and the error says at which place it would be."""
        holding = team.hold()
        first, late = ready(team.client, "a"), ready(team.client, "b")
        done = team.queue(first)
        with pytest.raises(sw.TreeQueued, match=r"2 plans are in the queue .* would be number 3") as caught:
            team.client.execution(late).apply(team.root)
        assert (caught.value.details["place"], caught.value.retry) == (3, True)
        assert str(team.client.plans.get_plan(late).position) == "apply/queued"
        team.release()
        assert holding.result(60).applied
        assert done.result(60).applied
        assert team.client.execution(late).apply(team.root).applied

    def test_refused_at_the_last_moment(self, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
        """A plan that has joined since then comes first; the tree is not touched."""
        late, rival = ready(team.client, "a"), ready(team.client, "b")
        team.client.plans.apply_plan(rival)
        between(monkeypatch, lambda: team.client.plans.join_apply_queue(rival, str(team.root)))
        with pytest.raises(sw.TreeQueued, match="would be number 2"):
            team.client.execution(late).apply(team.root)
        assert [path for path in team.root.iterdir() if path.name != ".stepwell"] == []

    def test_no_queue(self, team: Team) -> None:
        """It waits for the one that is being applied, as ever."""
        holding = team.hold()
        other = team.connect().execution(ready(team.client, "a"))
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(other.apply, team.root)
            team.release()
            assert done.result(60).applied
        assert holding.result(60).applied

    def test_plan_whose_turn_it_is(self, team: Team) -> None:
        """Another caller of the first plan overtakes nobody."""
        first = ready(team.client, "a")
        team.client.plans.apply_plan(first)
        team.connect().plans.join_apply_queue(first, str(team.root))
        assert team.client.execution(first).apply(team.root).applied


def between(monkeypatch: pytest.MonkeyPatch, function: Callable[[], object]) -> None:
    """Call a function when a plan is about to start."""
    start: Callable[..., Call[sw.Plan]] = PlanApi.start_apply.call
    functions = [function]

    def starting(plans: PlanApi, *args: object, **options: object) -> sw.Plan:
        while functions:
            functions.pop()()
        return plans.session.perform(start(plans, *args, **options))

    monkeypatch.setattr(PlanApi, "start_apply", starting)


def test_higher_priority_at_the_last_moment(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one whose turn it was waits for it, and then applies."""
    first, rival = ready(team.client, "a"), ready(team.client, "b")
    team.client.plans.apply_plan(rival)
    other = team.connect()
    between(monkeypatch, lambda: other.plans.join_apply_queue(rival, str(team.root), priority=9, ticket_id="rival"))
    done = team.queue(first)
    eventually(lambda: team.places[first][-1][:2] == (2, 2))
    other.plans.leave_apply_queue("rival")
    assert done.result(60).applied
    assert [place for place, _, _ in team.places[first]] == [1, 2, 1]


class TestGivingUp:
    def test_timeout(self, team: Team) -> None:
        """It says at which place it was, and is in nobody's way any more."""
        team.hold()
        plan_id = ready(team.client, "a")
        with pytest.raises(sw.Busy, match=r"is number 2 of 2 in the queue .* 0.05 s were not enough") as caught:
            team.client.execution(plan_id).apply(team.root, wait=True, timeout_s=0.05)
        assert (caught.value.details["place"], caught.value.details["plans"]) == (2, 2)
        assert team.waiting == [team.holding]
        team.release()

    def test_error_of_the_callback(self, team: Team) -> None:
        """It is raised to the caller, whose ticket ends."""
        plan_id = ready(team.client, "a")

        def on_place(_found: sw.types.ApplyQueued) -> None:
            raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            team.client.execution(plan_id).apply(team.root, wait=True, on_place=on_place)
        assert team.waiting == []

    def test_client_that_closes(self, team: Team) -> None:
        """Its session ends, and with it its ticket: the next one is first."""
        first, second = ready(team.client, "a"), ready(team.client, "b")
        for plan_id in (first, second):
            team.client.plans.apply_plan(plan_id)
        gone = team.connect()
        gone.plans.join_apply_queue(first, str(team.root), priority=9)
        done = team.queue(second)
        assert team.waiting == [first, second]
        gone.close()
        assert done.result(60).applied

    def test_tree_that_is_not_as_expected(self, team: Team) -> None:
        """The plan stays queued, and the next one has its turn."""
        holding = team.hold()
        wrong, right = ready(team.client, "a", before=b"not there"), ready(team.client, "b")
        failed, done = team.queue(wrong), team.queue(right)
        team.release()
        assert holding.result(60).applied
        with pytest.raises(sw.TreeConflict):
            failed.result(60)
        assert done.result(60).applied
        assert str(team.client.plans.get_plan(wrong).position) == "apply/queued"

    def test_cancelled_while_it_waits(self, team: Team) -> None:
        """The caller is told so at once."""
        team.hold()
        plan_id = ready(team.client, "a")
        done = team.queue(plan_id)
        team.client.plans.cancel_plan(plan_id, "no")
        with pytest.raises(sw.PlanNotReady, match="cancelled"):
            done.result(60)
        team.release()


def test_two_callers_of_one_plan(team: Team) -> None:
    """One applies, and both get the same."""
    holding = team.hold()
    plan_id = ready(team.client, "a")
    done = [team.queue(plan_id), team.queue(plan_id)]
    team.release()
    assert holding.result(60).applied
    first, second = (each.result(60) for each in done)
    assert first == second


def test_no_room_to_watch(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manager is asked now and then."""
    holding = team.hold()
    monkeypatch.setattr(limits, "WATCHERS_MAX", 0)
    monkeypatch.setattr(limits, "APPLY_POLL_SECONDS", 0.02)
    done = team.queue(ready(team.client, "a"))
    team.release()
    assert holding.result(60).applied
    assert done.result(60).applied


def test_waits_for_events_only(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its place stays, a caller sends nothing; its turn comes as an event."""
    monkeypatch.setattr(limits, "APPLY_QUEUE_CHECK_SECONDS", 600.0)
    holding = team.hold()
    asked, is_asked = 0, threading.Event()
    join: Callable[..., Call[sw.types.ApplyQueued]] = PlanApi.join_apply_queue.call

    def counting(plans: PlanApi, *args: object, **options: object) -> sw.types.ApplyQueued:
        nonlocal asked
        asked += 1
        is_asked.set()
        return plans.session.perform(join(plans, *args, **options))

    monkeypatch.setattr(PlanApi, "join_apply_queue", counting)
    done = team.queue(ready(team.client, "a"))
    assert is_asked.wait(60)
    team.release()
    assert holding.result(60).applied
    assert done.result(60).applied
    assert asked == 3, "when it joined, when its watch was there, and when its turn had come"


def test_options_of_waiting(team: Team) -> None:
    """Without `wait` they would mean nothing."""
    context = team.client.execution(ready(team.client, "a"))
    with pytest.raises(sw.InvalidArgument, match="give wait=True"):
        context.apply(team.root, priority=1)
    with pytest.raises(sw.InvalidArgument, match="give wait=True"):
        context.apply(team.root, timeout_s=1.0)
    with pytest.raises(sw.InvalidArgument, match="give wait=True"):
        context.apply(team.root, on_place=print)


class TestCalls:
    """The calls by themselves, in every form."""

    def test_blocking(self, team: Team) -> None:
        plan_id, plans = ready(team.client, "a"), team.client.plans
        plans.apply_plan(plan_id)
        found = plans.join_apply_queue(plan_id, "/t", priority=3)
        assert (found.place, found.ticket.priority, found.ticket.turn_until_ms is not None) == (1, 3, True)
        queue = plans.apply_queue("/t")
        assert (queue.tickets, queue.plans, queue.at_work) == ((found.ticket,), 1, 0)
        assert plans.leave_apply_queue(found.ticket.ticket_id) == found.ticket
        assert plans.leave_apply_queue(found.ticket.ticket_id) is None
        with pytest.raises(sw.InvalidArgument, match="a priority is a number from -100 to 100"):
            plans.join_apply_queue(plan_id, "/t", priority=101)
        with pytest.raises(sw.InvalidArgument, match="the real, absolute path of its root"):
            plans.apply_queue("")

    def test_batch_and_transaction(self, team: Team) -> None:
        """Two trees are joined in one step, or none."""
        first, second = ready(team.client, "a"), ready(team.client, "b")
        with team.client.batch() as batch:
            batch.plans.apply_plan(first)
            joined = batch.plans.join_apply_queue(first, "/t")
            batch.plans.apply_queue("/t")
        assert joined.result().place == 1
        with pytest.raises(sw.TransactionAborted), team.client.transaction() as transaction:
            transaction.plans.leave_apply_queue(joined.result().ticket.ticket_id)
            transaction.plans.join_apply_queue(second, "/t")  # it is not queued for apply
        assert [each.plan_id for each in team.client.plans.apply_queue("/t").tickets] == [first]
