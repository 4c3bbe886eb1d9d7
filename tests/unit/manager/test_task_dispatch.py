"""Giving out tasks: to whoever is idle, again after a death, and never to somebody who is gone."""

from __future__ import annotations

import signal

import pytest

from stepwell import limits
from stepwell.domain.replies import StrategiesFound, TaskFound, WorkerFound
from stepwell.domain.tasks.commands import BeginTask, CancelTask, FinishTask, ListStrategies, ReportDeath, SubmitTask
from stepwell.domain.tasks.model import TaskState
from stepwell.protocol.messages import (
    Goodbye,
    JoinAsWorker,
    Request,
    Response,
    TaskAssigned,
    TaskEnded,
    TaskRecalled,
    TasksReceived,
)
from tests.support.manager.peers import Clock, answered, ask, connection_of, gone, joined, refusals
from tests.support.manager.tasks import (
    OFFERS,
    assigned,
    dispatcher,
    done,
    finish,
    finish_and_die,
    following,
    heard,
    joined_worker,
    later,
    replied,
    submit,
    task_of,
    turn_without_waiting,
    work_forever,
    worker_of,
    workers,
)
from tests.support.managers import Stage
from tests.support.peers import RawPeer, request_ids
from tests.support.processes import is_alive, spawned

pytestmark = pytest.mark.usefixtures("unkillable")


# From submission to result.


def test_from_submission_to_result(stage: Stage, worker: RawPeer, client: RawPeer) -> None:
    """A worker gets it, its result reaches the follower, and once that is received nothing is left."""
    with following(stage) as follower:
        assert submit(stage, client) is TaskState.QUEUED
        task = assigned(stage, worker)
        assert task == TaskAssigned("t", 1, "s", ("p",), b"do it", is_prefetched=False, revision=0, catalogues=())
        assert finish(stage, worker, task) == TaskFound("t", TaskState.DONE, 1)
        assert answered(stage, follower) == TaskEnded("t", TaskState.DONE, 1, (), None, b"found", None, None)
        assert len(stage.owner.tasks) == 1
        follower.send(TasksReceived(("t",)))
        stage.turn_until(lambda: not len(stage.owner.tasks))


def test_waits_for_a_worker(stage: Stage, client: RawPeer) -> None:
    """What was submitted before anybody came is the first that they get."""
    joined_worker(stage, "first").close()
    stage.turn_until(lambda: not workers(stage))
    submit(stage, client)
    with joined_worker(stage, "second") as second:
        assert assigned(stage, second).task_id == "t"


def test_one_ahead(stage: Stage, worker: RawPeer, client: RawPeer) -> None:
    """A worker has what it does next before it has done the last; the one after that comes with the answer."""
    for task_id in ("t1", "t2", "t3"):
        submit(stage, client, task_id)
    first, second = assigned(stage, worker), assigned(stage, worker)
    assert [(each.task_id, each.is_prefetched) for each in (first, second)] == [("t1", False), ("t2", True)]
    assert heard(stage, worker) == []
    finish(stage, worker, first)
    assert (assigned(stage, worker).task_id, task_of(stage, "t2").is_begun) == ("t3", False)
    assert replied(stage, worker, BeginTask("t2", 1)) == WorkerFound(worker_of(stage))
    assert task_of(stage, "t2").is_begun


def test_one_ahead_that_is_cancelled(stage: Stage, worker: RawPeer, client: RawPeer) -> None:
    """It is taken back, and the worker goes on with what it does; if it begins all the same, it is stopped."""
    submit(stage, client, "t1")
    submit(stage, client, "t2")
    first, _ = assigned(stage, worker), assigned(stage, worker)
    ask(stage, client, CancelTask("t2"))
    assert answered(stage, worker) == TaskRecalled("t2", 1)
    assert not worker_of(stage).is_condemned
    assert finish(stage, worker, first) == TaskFound("t1", TaskState.DONE, 1)
    worker.send(Request(next(request_ids), (BeginTask("t2", 1),)))
    stage.turn_until(lambda: not workers(stage))


def test_one_ahead_of_somebody_slow(stage: Stage, client: RawPeer) -> None:
    """Whoever is idle gets it, but not at once: it may be begun at this very moment."""
    with joined_worker(stage, "w1") as slow:
        submit(stage, client, "t1")
        submit(stage, client, "t2")
        assert [assigned(stage, slow).task_id for _ in range(2)] == ["t1", "t2"]
        with joined_worker(stage, "w2") as idle:
            assert stage.loop.housekeeping.seconds_to_deadline <= limits.TASK_PREFETCHED_MS / 1000
            later(stage, limits.TASK_PREFETCHED_MS)
            again = assigned(stage, idle)
            assert (again.task_id, again.attempt, again.is_prefetched) == ("t2", 1, False)
            assert answered(stage, slow) == TaskRecalled("t2", 1)


def test_each_worker_has_its_own(stage: Stage, client: RawPeer) -> None:
    with joined_worker(stage, "w1") as one, joined_worker(stage, "w2", "s", "other") as two:
        for task_id, strategy in (("t1", "other"), ("t2", "s")):
            submit(stage, client, task_id, strategy=strategy)
        assert (assigned(stage, one).task_id, assigned(stage, two).task_id) == ("t2", "t1")
        found = replied(stage, client, ListStrategies())
        assert isinstance(found, StrategiesFound)
        assert ([each.name for each in found.offers], found.queued, found.leased) == (["other", "s"], 0, 2)


def test_nothing_of_it_is_kept(stage: Stage, client: RawPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No revision, no event, and nothing for the store."""

    def unexpected(*_: object) -> None:
        raise AssertionError("the journal is told")

    for name in ("record", "record_reply"):
        monkeypatch.setattr(stage.owner.journal, name, unexpected)
    with joined_worker(stage) as worker:
        done(stage, worker, client)
        ask(stage, client, CancelTask("t"), ReportDeath(1, "x"))
    stage.turn_until(lambda: not workers(stage))
    assert stage.requests.revision == 0
    assert not stage.owner.journal._is_changed


# Who may work.


@pytest.mark.usefixtures("worker")
def test_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its reason; the connection is as it was, and can be used."""
    monkeypatch.setattr(limits, "WORKERS_MAX", 1)
    with joined(stage, "second") as second:
        second.send(JoinAsWorker(7, OFFERS))
        answer = answered(stage, second)
        assert isinstance(answer, Response)
        assert (answer.request_id, refusals(answer.results)) == (7, ["Busy"])
        assert not connection_of(stage, "second").is_working
        assert refusals(ask(stage, second, ListStrategies())) == [""]
    assert workers(stage) == {"w"}


@pytest.mark.parametrize("is_same", [True, False])
def test_works_once(stage: Stage, worker: RawPeer, *, is_same: bool) -> None:
    """A session is one worker, on whichever connection; that it asked again costs it nothing."""
    with joined(stage, "w") as other:
        asks = worker if is_same else other
        asks.send(JoinAsWorker(7, OFFERS))
        answer = answered(stage, asks)
        assert isinstance(answer, Response)
        assert refusals(answer.results) == ["AlreadyExists"]
    stage.turn_until(lambda: stage.peers == 1)
    assert workers(stage) == {"w"}


def test_late_result_is_refused(stage: Stage, client: RawPeer) -> None:
    """Of a worker that lost its connection, and came back while another one was at it."""
    first = joined_worker(stage, "w1")
    submit(stage, client)
    task = assigned(stage, first)
    first.close()
    stage.turn_until(lambda: not workers(stage))
    with joined_worker(stage, "w2") as second, joined(stage, "w1") as back:
        again = assigned(stage, second)
        assert (again.task_id, again.attempt) == ("t", 2)
        assert refusals(ask(stage, back, FinishTask("t", task.attempt, b"late"))) == ["LeaseLost"]
        finish(stage, second, again, b"in time")
    assert task_of(stage).result == b"in time"


# Workers that go.


def test_worker_whose_connection_closes(stage: Stage, client: RawPeer) -> None:
    """Its task goes to the next one, at the next attempt."""
    with joined_worker(stage, "w1") as first:
        submit(stage, client)
        assert assigned(stage, first).attempt == 1
    stage.turn_until(lambda: not workers(stage))
    assert (task_of(stage).state, len(task_of(stage).deaths)) == (TaskState.QUEUED, 1)
    with joined_worker(stage, "w2") as second:
        assert assigned(stage, second).attempt == 2


def test_idle_one_gets_it_at_once(stage: Stage, client: RawPeer) -> None:
    """A task that goes back as its worker's connection ends is given out at once, not at the next housekeeping.

    It goes back after the tasks of a turn have been given out: the next turn does not wait.
    """
    with joined_worker(stage, "w1") as first:
        submit(stage, client)
        assigned(stage, first)
        with joined_worker(stage, "w2"):
            first.close()
            stage.turn_until(lambda: workers(stage) == {"w2"})
            assert stage.owner.tasks.by_worker.keys() == {"w2"} or dispatcher(stage).has_more


def test_worker_that_leaves_gets_nothing_more(stage: Stage, worker: RawPeer, client: RawPeer) -> None:
    """One that says Goodbye with its result does not die of what lay ahead of it."""
    submit(stage, client, "t1")
    submit(stage, client, "t2")
    task, _ = assigned(stage, worker), assigned(stage, worker)
    worker.send(Request(next(request_ids), (FinishTask(task.task_id, task.attempt, b"found"),)), Goodbye())
    stage.turn_until(lambda: not workers(stage))
    assert task_of(stage, "t1").state is TaskState.DONE
    assert (task_of(stage, "t2").attempt, task_of(stage, "t2").deaths) == (1, ())


def test_worker_that_hangs_up_gets_nothing_more(stage: Stage, worker: RawPeer, client: RawPeer) -> None:
    """The same of an idle worker that goes in the turn in which a task comes."""
    worker.close()
    client.send(Request(next(request_ids), (SubmitTask("t", "s", ("p",), b""),)))
    assert isinstance(answered(stage, client), Response)
    stage.turn_until(lambda: not workers(stage))
    assert (task_of(stage).attempt, task_of(stage).deaths) == (1, ())


def test_result_of_who_dies_of_the_next(stage: Stage, client: RawPeer) -> None:
    """What it has finished is finished, even if it was not read before its end; and it died of what it had begun."""
    with spawned(finish_and_die, stage.address, "w") as process:
        stage.turn_until(lambda: workers(stage))
        submit(stage, client, "t1")
        submit(stage, client, "t2")
        stage.turn_until(lambda: stage.owner.tasks.prefetched)
        process.join(60)  # what it has said waits for us, together with the news of its end
        stage.turn_until(lambda: not workers(stage))
        assert (task_of(stage, "t1").state, task_of(stage, "t1").deaths) == (TaskState.DONE, ())
        assert [death.pid for death in task_of(stage, "t2").deaths] == [process.pid]


def test_worker_that_reads_nothing_for_long(stage: Stage, client: RawPeer, clock: Clock) -> None:
    """A busy one does not read what lies ahead of it: it has its deadline, and is not cut off for that."""
    with joined_worker(stage):
        for task_id in ("t1", "t2"):  # together more than its socket takes
            ask(stage, client, SubmitTask(task_id, "s", ("p",), b"x" * 150 * limits.KIB))
        stage.turn_until(lambda: connection_of(stage, "w").peer.outbox)
        clock.forward(limits.STALL_SECONDS_MAX + 1)
        turn_without_waiting(stage)
        assert workers(stage) == {"w"}


def test_worker_whose_process_dies(stage: Stage, client: RawPeer) -> None:
    """The kernel says so, and the number of that process is in the evidence."""
    with spawned(work_forever, stage.address, "w") as process:
        stage.turn_until(lambda: workers(stage))
        submit(stage, client)
        stage.turn_until(lambda: stage.owner.tasks.by_worker)
        process.kill()
        stage.turn_until(lambda: not workers(stage))
        assert [death.pid for death in task_of(stage).deaths] == [process.pid]
    found = replied(stage, client, ReportDeath(task_of(stage).deaths[0].pid, "killed"))
    assert getattr(found, "task_id", None) == "t"


# Workers that are killed.


def test_cancelling_kills_the_worker(stage: Stage, client: RawPeer) -> None:
    """That very process, although it listens to nobody; its client hears of it, and no death is counted."""
    with following(stage) as follower, spawned(work_forever, stage.address, "w") as process:
        stage.turn_until(lambda: workers(stage))
        submit(stage, client)
        stage.turn_until(lambda: stage.owner.tasks.by_worker)
        replied(stage, client, CancelTask("t"))
        stage.turn_until(lambda: not workers(stage))
        ended = answered(stage, follower)
        assert isinstance(ended, TaskEnded)
        assert (ended.state, ended.deaths) == (TaskState.CANCELLED, ())
        process.join(60)
        assert process.exitcode == -signal.SIGKILL


def test_deadline_kills_the_worker(stage: Stage, client: RawPeer) -> None:
    """The task has failed, and nobody tries it again; the loop wakes up for it."""
    with following(stage) as follower, spawned(work_forever, stage.address, "w") as process:
        stage.turn_until(lambda: workers(stage))
        assert stage.loop.housekeeping.seconds_to_deadline > 1_000
        submit(stage, client, deadline_ms=20)
        stage.turn_until(lambda: stage.owner.tasks.by_worker)
        assert stage.loop.housekeeping.seconds_to_deadline <= 0.02
        ended = answered(stage, follower)
        assert isinstance(ended, TaskEnded)
        assert ended.fault is not None
        assert (ended.state, ended.fault.kind) == (TaskState.FAILED, "DeadlineExceeded")
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        stage.turn_until(lambda: not workers(stage))
    with joined_worker(stage, "w2") as other:
        assert heard(stage, other) == []


def test_end_of_a_session_kills_its_workers(stage: Stage) -> None:
    """Nobody will ask for what they find. Whoever works for others goes on."""
    with (
        spawned(work_forever, stage.address, "w") as process,
        joined(stage, "alice") as client,
        joined(stage, "bob") as bob,
    ):
        stage.turn_until(lambda: workers(stage))
        submit(stage, client)
        stage.turn_until(lambda: stage.owner.tasks.by_worker)
        with joined_worker(stage, "w2") as other:
            submit(stage, bob, "hers")
            task = assigned(stage, other)
            assert is_alive(process.pid or 0)
            client.send(Goodbye())
            stage.turn_until(lambda: workers(stage) == {"w2"})
            process.join(60)
            assert process.exitcode == -signal.SIGKILL
            assert finish(stage, other, task).state is TaskState.DONE


def test_condemned_worker_without_a_pidfd(stage: Stage, worker: RawPeer, client: RawPeer) -> None:
    """One that the kernel does not show us is cut off, at least, and gets nothing more."""
    submit(stage, client)
    assigned(stage, worker)
    ask(stage, client, CancelTask("t"), SubmitTask("t2", "s", ("p",), b""))
    stage.turn_until(lambda: not workers(stage))
    assert gone(worker)
    assert (task_of(stage, "t2").state, task_of(stage, "t2").deaths) == (TaskState.QUEUED, ())


def test_condemned_worker_is_not_heard(stage: Stage, worker: RawPeer, client: RawPeer) -> None:
    """Its result may have been on its way: the task is over already, at one outcome."""
    submit(stage, client)
    task = assigned(stage, worker)
    client.send(Request(next(request_ids), (CancelTask("t"),)))
    worker.send(Request(next(request_ids), (FinishTask("t", task.attempt, b"late"),)))
    stage.turn_until(lambda: not workers(stage))
    assert task_of(stage).state is TaskState.CANCELLED


# Sessions that end.


def test_session_takes_its_tasks_along(stage: Stage, client: RawPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all in one turn; and the next turns do not wait."""
    monkeypatch.setattr(limits, "TASKS_PER_STEP_MAX", 2)
    joined_worker(stage).close()
    stage.turn_until(lambda: not workers(stage))
    for number in range(5):
        submit(stage, client, f"t{number}")
    client.send(Goodbye())
    turn_without_waiting(stage)
    assert len(stage.owner.tasks) == 3
    assert dispatcher(stage).has_more
    stage.turn_until(lambda: not len(stage.owner.tasks))
    assert not dispatcher(stage).has_more


def test_session_may_come_back(stage: Stage, clock: Clock) -> None:
    """A lost connection is no end: its tasks are there for its grace, and not for longer."""
    joined_worker(stage).close()
    with joined(stage, "alice") as client:
        submit(stage, client)
    stage.turn_until(lambda: not stage.peers)
    clock.forward(limits.SESSION_GRACE_SECONDS / 2)
    stage.turn(2)
    with following(stage, "alice", "t") as follower:
        assert heard(stage, follower) == []
    stage.turn_until(lambda: not stage.peers)
    clock.forward(limits.SESSION_GRACE_SECONDS + 1)
    stage.turn_until(lambda: not len(stage.owner.tasks))
    assert stage.sessions == 0


def test_overload_is_answered_at_once(stage: Stage, client: RawPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Busy is an answer, and the connection goes on."""
    monkeypatch.setattr(limits, "TASKS_PER_SESSION_MAX", 1)
    joined_worker(stage).close()
    results = ask(stage, client, *(SubmitTask(f"t{number}", "s", ("p",), b"") for number in range(3)))
    assert refusals(results) == ["", "Busy", "Busy"]


def test_deadline_is_by_the_managers_clock(stage: Stage, worker: RawPeer, client: RawPeer) -> None:
    """At it, and not before."""
    submit(stage, client, deadline_ms=60_000)
    assigned(stage, worker)
    later(stage, 59_000)
    turn_without_waiting(stage)
    assert task_of(stage).state is TaskState.LEASED
    later(stage, 1_000)
    turn_without_waiting(stage)
    assert task_of(stage).state is TaskState.FAILED
