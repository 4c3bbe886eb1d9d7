"""Eight processes apply plans to one tree: in their turns, one at a time, and past those that are gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from multiprocess.connection import Connection

import stepwell as sw
from stepwell import limits
from stepwell.process import SpawnedProcess
from stepwell.testing import Clock, LocalRuntime
from tests.support.client.applicable_plans import executing
from tests.support.processes import CONTEXT, kill, spawned
from tests.support.programs import queued_appliers
from tests.support.programs.queued_appliers import places_until_outcome
from tests.support.seeds import seeded
from tests.support.soak import IS_LONG
from tests.support.wait import eventually

PROCESSES = 8
ROUNDS = 10 if IS_LONG else 2
SEED = 23


class Crew:
    """The processes, the tree, and the plan that holds them up until all have come."""

    def __init__(self, client: sw.Client, address: str, directory: Path, stack: ExitStack) -> None:
        self.client = client
        self.root = directory / "root"
        self.root.mkdir()
        self._gate = directory / "gate"
        os.mkfifo(self._gate)
        self.pipes: list[Connection] = []
        self.processes: list[SpawnedProcess] = []
        for _ in range(PROCESSES):
            ours, theirs = CONTEXT.Pipe()
            stack.enter_context(ours)
            stack.enter_context(theirs)
            work = spawned(queued_appliers.work, address, str(self.root), theirs)
            self.processes.append(stack.enter_context(work))
            self.pipes.append(ours)
        self._files = 0

    def ready(self, *validations: sw.Validation) -> str:
        """A plan that makes a file of its own, queued for apply."""
        context = executing(self.client, validations)
        changeset_id = context.start_changeset()
        self._files += 1
        context.record_change(sw.Change(path=f"f{self._files}", after=b"x"))
        context.close_changeset(changeset_id)
        self.client.plans.complete_execute(context.plan_id)
        return self.client.plans.apply_plan(context.plan_id).plan_id

    def hold(self, number: int) -> str:
        """Have a process apply a plan whose validation goes on until `release`."""
        plan_id = self.ready(sw.Validation("gate", ("cat", str(self._gate))))
        self.pipes[number].send((plan_id, 0))
        eventually(lambda: str(self.client.plans.get_plan(plan_id).position) == "apply/processing")
        return plan_id

    def release(self) -> None:
        self._gate.write_bytes(b"")

    def end(self) -> None:
        """Let a validation go on whose process was killed."""
        os.close(os.open(self._gate, os.O_RDWR | os.O_NONBLOCK))

    def send(self, number: int, priority: int) -> str:
        """Have a process wait for its turn, and return its plan when it is in the queue."""
        plan_id = self.ready()
        self.pipes[number].send((plan_id, priority))
        eventually(lambda: plan_id in self.waiting)
        return plan_id

    @property
    def waiting(self) -> list[str]:
        return [each.plan_id for each in self.client.plans.apply_queue(str(self.root)).tickets]

    def positions(self, plan_ids: list[str]) -> set[str]:
        return {str(self.client.plans.get_plan(plan_id).position) for plan_id in plan_ids}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def crew(tmp_path: Path, clock: Clock) -> Iterator[Crew]:
    with (
        LocalRuntime(workers=0, clock=clock) as runtime,
        runtime.client(projects=["p"]) as client,
        ExitStack() as stack,
    ):
        found = Crew(client, runtime.address, tmp_path, stack)
        yield found
        found.end()
        for pipe, process in zip(found.pipes, found.processes, strict=True):
            if process.exitcode is None:
                pipe.send(None)


def begun(watch: sw.Watch, count: int) -> tuple[list[str], int]:
    """Return the plans that began to be applied, in order, and the largest number that was at work at a time."""
    order: list[str] = []
    at_work: set[str] = set()
    most = 0
    while len(order) < count or at_work:
        event = watch.get(60.0)
        assert event is not None, f"only {order} have begun"
        if isinstance(event, sw.events.PlanMoved):
            at_work.discard(event.plan_id)
            if (event.phase, event.state) == ("apply", "processing"):
                at_work.add(event.plan_id)
                order.append(event.plan_id)
            most = max(most, len(at_work))
    return order, most


def test_turns(crew: Crew) -> None:
    """By priority and age, whatever the processes do; no two at a time, and every process knows where it stands."""
    chance = seeded(SEED)
    for _ in range(ROUNDS):
        with crew.client.watch() as watch:
            first = crew.hold(0)
            sent = [(chance.randint(-1, 1), number) for number in range(1, PROCESSES)]
            plans = [(priority, crew.send(number, priority)) for priority, number in sent]
            expected = [first, *[plan_id for _, plan_id in sorted(plans, key=lambda pair: -pair[0])]]
            assert crew.waiting == expected
            crew.release()
            order, most = begun(watch, PROCESSES)
        assert (order, most) == (expected, 1)
        told = [places_until_outcome(pipe) for pipe in crew.pipes]
        assert [outcome for _, outcome in told] == ["applied"] * PROCESSES
        assert [places[-1][0] for places, _ in told] == [1] * PROCESSES
        print(f"priorities {[priority for priority, _ in sent]}: the last one was told {max(told, key=str)[0]}")


def test_past_the_dead(crew: Crew) -> None:
    """The one that applies is killed, then the next one, and one that waits: each time the others go on at once."""
    first = crew.hold(0)
    plans = [crew.send(number, 0) for number in range(1, PROCESSES)]
    with crew.client.watch() as watch:
        for number in (0, 1, 4):  # the one at work, the next one in the queue, and one in the middle
            pid = crew.processes[number].pid
            assert pid is not None
            kill(pid)
        alive = [plan_id for number, plan_id in enumerate(plans, 1) if number not in {1, 4}]
        order, most = begun(watch, len(alive))
    assert [each for each in order if each in alive] == alive
    assert most == 1
    assert {*crew.positions([first, plans[0], plans[3]])} == {"apply/queued"}
    assert crew.positions(alive) == {"apply/applied"}
    assert crew.waiting == []
    print(f"3 of {PROCESSES} were killed, and {len(alive)} plans were applied in order")


def test_past_the_stopped(crew: Crew, clock: Clock) -> None:
    """A process that is stopped when its turn comes loses the turn; when it goes on, it comes last, and applies."""
    crew.hold(0)
    plans = [crew.send(number, 0) for number in range(1, 4)]
    stopped = crew.processes[1].pid
    assert stopped is not None
    with crew.client.watch() as watch:
        os.kill(stopped, signal.SIGSTOP)
        try:
            crew.release()
            assert places_until_outcome(crew.pipes[0])[1] == "applied"
            assert crew.waiting == plans
            clock.advance(limits.APPLY_TURN_MS / 1000)
            order, _ = begun(watch, 2)
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert order == plans[1:]
        assert places_until_outcome(crew.pipes[1])[1] == "applied"
    assert crew.positions(plans) == {"apply/applied"}
