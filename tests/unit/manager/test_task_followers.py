"""Followers: told of their session's tasks until they have it, as fast as they read, and at nobody else's expense."""

from __future__ import annotations

import pytest

from stepwell import limits
from stepwell.domain.tasks.commands import CancelTask, FinishTask
from stepwell.domain.tasks.model import TaskFault, TaskState
from stepwell.limits import KIB
from stepwell.protocol.messages import (
    ClientMessage,
    FollowTasks,
    Rejected,
    ReportProgress,
    Request,
    TaskEnded,
    TaskProgressed,
    TasksFollowed,
    TasksReceived,
)
from tests.support.manager.peers import answered, connection_of, gone, joined
from tests.support.manager.tasks import (
    assigned,
    dispatcher,
    done,
    ended,
    ends,
    finish,
    following,
    heard,
    joined_worker,
    replied,
    submit,
    task_of,
    turn_without_waiting,
    workers,
)
from tests.support.managers import Stage
from tests.support.peers import RawPeer, request_ids

LONG = 60 * KIB


pytestmark = pytest.mark.usefixtures("unkillable")


# What is told.


def test_failure(stage: Stage, worker: RawPeer, client: RawPeer, follower: RawPeer) -> None:
    """With its fault."""
    submit(stage, client)
    fault = TaskFault("ValueError", "no")
    replied(stage, worker, FinishTask("t", assigned(stage, worker).attempt, None, fault))
    assert ended(stage, follower) == TaskEnded("t", TaskState.FAILED, 1, (), fault, None, None, None)


def test_cancellation(stage: Stage, client: RawPeer, follower: RawPeer) -> None:
    """Of one that waits, too: it is one outcome like others."""
    joined_worker(stage).close()
    stage.turn_until(lambda: not workers(stage))
    submit(stage, client)
    replied(stage, client, CancelTask("t"))
    assert ended(stage, follower).state is TaskState.CANCELLED


def test_only_its_own(stage: Stage, worker: RawPeer, client: RawPeer, follower: RawPeer) -> None:
    """What another session's tasks came to is none of its business, and not its to receive."""
    with joined(stage, "bob") as bob, following(stage, "bob") as hers:
        done(stage, worker, bob, "hers")
        done(stage, worker, client, "mine")
        assert ends(heard(stage, follower)) == ["mine"]
        assert ends(heard(stage, hers)) == ["hers"]
        follower.send(TasksReceived(("hers", "nobody")))
        turn_without_waiting(stage)
        assert task_of(stage, "hers").state is TaskState.DONE


def test_told_once(stage: Stage, worker: RawPeer, client: RawPeer, follower: RawPeer) -> None:
    """Whatever else happens before it is received: evidence, say, which changes it once more."""
    done(stage, worker, client)
    assert ends(heard(stage, follower)) == ["t"]
    assert ends(heard(stage, follower)) == []


def test_begins_with_what_is_over(stage: Stage, worker: RawPeer, client: RawPeer) -> None:
    """In the order in which they were submitted."""
    for task_id in ("b", "a"):
        done(stage, worker, client, task_id)
    with following(stage, "alice", "a", "b") as follower:
        assert ends(heard(stage, follower)) == ["b", "a"]


def test_told_again_until_received(stage: Stage, worker: RawPeer, client: RawPeer) -> None:
    """A follower that was lost may have taken the news with it."""
    done(stage, worker, client)
    with following(stage) as first:
        assert ends(heard(stage, first)) == ["t"]
    with following(stage, "alice", "t") as second:
        assert ends(heard(stage, second)) == ["t"]
        second.send(TasksReceived(("t",)))
        stage.turn_until(lambda: not len(stage.owner.tasks))
    with following(stage, "alice", "t", unknown=("t",)) as third:
        assert heard(stage, third) == []


def test_second_follower_takes_over(stage: Stage, worker: RawPeer, client: RawPeer, follower: RawPeer) -> None:
    """From then on the first hears nothing, and its end is not the second's."""
    with following(stage) as second:
        done(stage, worker, client, "t1")
        assert (ends(heard(stage, second)), heard(stage, follower)) == (["t1"], [])
        follower.close()
        stage.turn_until(lambda: stage.peers == 3)
        done(stage, worker, client, "t2")
        assert ends(heard(stage, second)) == ["t2"]
    stage.turn_until(lambda: stage.peers == 2)
    assert dispatcher(stage)._followers == {}
    done(stage, worker, client, "t3")
    assert dispatcher(stage)._unreported == {}


def test_delayed_request_of_an_earlier_connection(stage: Stage, worker: RawPeer, client: RawPeer) -> None:
    """It replaces no later connection, and its end leaves the later one in place."""
    with joined(stage, "alice") as earlier:
        assert heard(stage, earlier) == []  # it has been accepted
        with following(stage) as later_one:
            earlier.send(FollowTasks(1, ()))
            assert answered(stage, earlier) == TasksFollowed(1, ())
            done(stage, worker, client, "t1")
            assert (ends(heard(stage, later_one)), heard(stage, earlier)) == (["t1"], [])
            earlier.close()
            stage.turn_until(lambda: stage.peers == 3)
            done(stage, worker, client, "t2")
            assert ends(heard(stage, later_one)) == ["t2"]


def test_follows_in_the_turn_of_the_end(stage: Stage, worker: RawPeer, client: RawPeer) -> None:
    """What has ended in the turn in which a follower comes is told once."""
    submit(stage, client)
    task = assigned(stage, worker)
    with joined(stage, "alice") as fresh:
        assert heard(stage, fresh) == []
        worker.send(Request(next(request_ids), (FinishTask("t", task.attempt, b"found"),)))
        fresh.send(FollowTasks(1, ("t",)))
        assert ends(heard(stage, fresh)) == ["t"]


def test_unknown(stage: Stage, worker: RawPeer, client: RawPeer) -> None:
    """What it has submitted, and nobody knows: it submits that again."""
    submit(stage, client)
    assigned(stage, worker)
    with joined(stage, "alice") as fresh:
        fresh.send(FollowTasks(7, ("nobody", "t", "never")))
        assert answered(stage, fresh) == TasksFollowed(7, ("nobody", "never"))


def test_unknown_to_its_session(stage: Stage, worker: RawPeer, client: RawPeer) -> None:
    """Somebody else's task is unknown to it: it would never be told of that."""
    submit(stage, client)
    assigned(stage, worker)
    with joined(stage, "bob") as bob:
        bob.send(FollowTasks(7, ("t",)))
        assert answered(stage, bob) == TasksFollowed(7, ("t",))


# Followers that are slow.


def test_a_follower_that_does_not_read(stage: Stage, worker: RawPeer, client: RawPeer, follower: RawPeer) -> None:
    """Its outbox stays small, others hear of theirs, the loop does not spin; once it reads, it is told all, once."""
    with joined(stage, "bob") as bob, following(stage, "bob") as hers:
        connection = next(
            each for each in stage.loop._connections.values() if each.is_following and _is_of(each, "alice")
        )
        for number in range(20):
            done(stage, worker, client, f"t{number}", b"x" * LONG)
            assert len(connection.peer.outbox) < limits.WATCHER_OUTBOX_BYTES + 2 * LONG
        assert len(connection.peer.outbox) >= limits.WATCHER_OUTBOX_BYTES
        assert not dispatcher(stage).has_more
        done(stage, worker, bob, "hers")
        assert ends(heard(stage, hers)) == ["hers"]
        told = [ended(stage, follower) for _ in range(20)]
        assert [each.task_id for each in told] == [f"t{number}" for number in range(20)]
        assert {each.result for each in told} == {b"x" * LONG}
        assert heard(stage, follower) == []
        assert dispatcher(stage)._unreported == {}


def _is_of(connection: object, session_id: str) -> bool:
    session = getattr(connection, "session", None)
    return getattr(session, "session_id", None) == session_id


def test_progress_is_not_kept_for_who_does_not_read(
    stage: Stage, worker: RawPeer, client: RawPeer, follower: RawPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is worth nothing later: past a bound it is dropped. The outcome is not."""
    monkeypatch.setattr(limits, "WATCHER_OUTBOX_BYTES", 500)
    submit(stage, client)
    task = assigned(stage, worker)
    for number in range(2_000):
        worker.send(ReportProgress("t", task.attempt, number, 2_000, "x" * 400))
        turn_without_waiting(stage)
    assert len(connection_of(stage, "alice").peer.outbox) < 2_000
    finish(stage, worker, task)
    messages = heard(stage, follower, turns=50)
    assert 0 < len(messages) < 2_000
    assert ends(messages) == ["t"]


# Progress.


def test_progress(stage: Stage, worker: RawPeer, client: RawPeer, follower: RawPeer) -> None:
    """Told at once: a follower that is told nothing else hears of it."""
    submit(stage, client)
    task = assigned(stage, worker)
    worker.send(ReportProgress("t", task.attempt, 1, 3, "reading"))
    assert heard(stage, follower) == [TaskProgressed("t", 1, 3, "reading")]


def test_progress_comes_before_the_end(stage: Stage, worker: RawPeer, client: RawPeer, follower: RawPeer) -> None:
    """In the order in which the worker said it."""
    submit(stage, client)
    task = assigned(stage, worker)
    worker.send(ReportProgress("t", task.attempt, 1, 2), ReportProgress("t", task.attempt, 2, 2))
    finish(stage, worker, task)
    first, second, last = heard(stage, follower)
    assert (first, second) == (TaskProgressed("t", 1, 2, ""), TaskProgressed("t", 2, 2, ""))
    assert isinstance(last, TaskEnded)


def test_progress_of_the_current_attempt_only(stage: Stage, client: RawPeer, follower: RawPeer) -> None:
    """One that is over, or of no task at all, is nobody's; saying so is no offence."""
    with joined_worker(stage, "w1") as first:
        submit(stage, client)
        stale = assigned(stage, first)
    stage.turn_until(lambda: not workers(stage))
    with joined_worker(stage, "w2") as second:
        task = assigned(stage, second)
        assert (stale.attempt, task.attempt) == (1, 2)
        for attempt in (1, 3):
            second.send(ReportProgress("t", attempt, 7, 7))
        second.send(ReportProgress("nobody", 1, 7, 7), ReportProgress("t", 2, 1, 1))
        finish(stage, second, task)
        assert heard(stage, follower)[:-1] == [TaskProgressed("t", 1, 1, "")]


def test_progress_of_somebody_elses_task(stage: Stage, worker: RawPeer, client: RawPeer, follower: RawPeer) -> None:
    """Only whoever has a task tells of its progress, and only while it has it."""
    with joined_worker(stage, "w2") as other:
        submit(stage, client)
        task = assigned(stage, worker)
        other.send(ReportProgress("t", task.attempt, 7, 7))
        turn_without_waiting(stage)
        finish(stage, worker, task)
        worker.send(ReportProgress("t", task.attempt, 8, 8))
        turn_without_waiting(stage)
        (only,) = heard(stage, follower)
        assert isinstance(only, TaskEnded)


def test_progress_without_a_follower(stage: Stage, worker: RawPeer, client: RawPeer) -> None:
    """It is said to nobody."""
    submit(stage, client)
    task = assigned(stage, worker)
    worker.send(ReportProgress("t", task.attempt, 1, 3))
    assert finish(stage, worker, task).state is TaskState.DONE


@pytest.mark.parametrize(
    "message", [ReportProgress("t", 1, 1, 1), TasksReceived(("t",))], ids=["ReportProgress", "TasksReceived"]
)
@pytest.mark.parametrize("role", ["neither", "the other"])
def test_said_by_somebody_else(stage: Stage, message: ClientMessage, role: str) -> None:
    """Only a worker has progress, and only a follower receives."""
    if role == "neither":
        peer = joined(stage, "carol")
    else:
        peer = joined_worker(stage, "carol") if isinstance(message, TasksReceived) else following(stage, "carol")
    with peer:
        peer.send(message)
        rejected = answered(stage, peer)
        assert isinstance(rejected, Rejected)
        assert rejected.refusal.kind == "ProtocolError"
        stage.turn_until(lambda: not stage.peers)
        assert gone(peer)
    assert workers(stage) == set()
