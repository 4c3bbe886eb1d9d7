"""Workers, clients and followers of a loop that is turned by hand."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from itertools import count

from stepwell.domain.commands import AnyCommand
from stepwell.domain.replies import Reply, TaskFound
from stepwell.domain.tasks.commands import BeginTask, FinishTask, SubmitTask
from stepwell.domain.tasks.model import StrategyOffer, Task, TaskState, Worker
from stepwell.manager.task_dispatch import TaskDispatcher
from stepwell.protocol.messages import (
    CommandResult,
    FollowTasks,
    JoinAsWorker,
    ManagerMessage,
    Request,
    TaskAssigned,
    TaskEnded,
    TasksFollowed,
    WorkerAccepted,
)
from tests.support.manager.peers import answered, ask, joined
from tests.support.managers import Stage
from tests.support.peers import RawPeer

OFFERS = (StrategyOffer("s"),)
FOREVER_SECONDS = 60
"""The time after which a worker that was not killed ends itself."""

_numbers = count(1)


def joined_worker(stage: Stage, session_id: str = "w", *strategies: str) -> RawPeer:
    """A worker that is ready."""
    worker = joined(stage, session_id)
    number = next(_numbers)
    worker.send(JoinAsWorker(number, tuple(map(StrategyOffer, strategies)) or OFFERS))
    assert answered(stage, worker) == WorkerAccepted(number)
    return worker


def following(stage: Stage, session_id: str = "alice", *task_ids: str, unknown: tuple[str, ...] = ()) -> RawPeer:
    """Return a connection that follows a session's tasks."""
    follower = joined(stage, session_id)
    number = next(_numbers)
    follower.send(FollowTasks(number, task_ids))
    assert answered(stage, follower) == TasksFollowed(number, unknown)
    return follower


def heard(stage: Stage, peer: RawPeer, turns: int = 6) -> list[ManagerMessage]:
    """Return all messages to a peer within a few turns, none of which waits."""
    messages: list[ManagerMessage] = []
    peer.socket.settimeout(0)
    for _ in range(turns):
        turn_without_waiting(stage)
        try:
            while (message := peer.receive()) is not None:
                messages.append(message)
        except BlockingIOError:
            continue
    return messages


def turn_without_waiting(stage: Stage) -> None:
    """Run one turn without waiting."""
    stage.loop.housekeeping.due_at_s = 0.0
    stage.turn()


def later(stage: Stage, milliseconds: int) -> None:
    """Put the manager's clock forward. It stands there, however long a busy machine takes."""
    clock = stage.requests.clock
    moment_ms = clock.now_ms() + milliseconds
    clock.__dict__["now_ms"] = lambda: moment_ms


def replied(stage: Stage, peer: RawPeer, command: AnyCommand) -> Reply:
    """The reply to a command that is not refused."""
    (answer,) = ask(stage, peer, command)
    assert isinstance(answer, CommandResult), answer
    return answer.reply


def submit(
    stage: Stage, client: RawPeer, task_id: str = "t", *, strategy: str = "s", deadline_ms: int = 60_000
) -> TaskState:
    """Submit a task."""
    found = replied(stage, client, SubmitTask(task_id, strategy, ("p",), b"do it", deadline_ms=deadline_ms))
    assert isinstance(found, TaskFound)
    return found.state


def assigned(stage: Stage, worker: RawPeer) -> TaskAssigned:
    """Return the task that a worker is assigned."""
    message = answered(stage, worker)
    assert isinstance(message, TaskAssigned), message
    return message


def finish(stage: Stage, worker: RawPeer, task: TaskAssigned, result: bytes | int = b"found") -> TaskFound:
    """Finish a task with a result, as its worker."""
    found = replied(stage, worker, FinishTask(task.task_id, task.attempt, result))
    assert isinstance(found, TaskFound)
    return found


def ended(stage: Stage, follower: RawPeer) -> TaskEnded:
    """Return the outcome of a task that a follower receives."""
    message = answered(stage, follower)
    assert isinstance(message, TaskEnded), message
    return message


def ends(messages: Iterable[ManagerMessage]) -> list[str]:
    """The ids of the tasks whose end is among some messages."""
    return [message.task_id for message in messages if isinstance(message, TaskEnded)]


def die(stage: Stage, number: int) -> int:
    """Have a worker join, get the next task and disconnect; return its process id."""
    with joined_worker(stage, f"mortal-{number}") as worker:
        assigned(stage, worker)
    stage.turn_until(lambda: not workers(stage))
    return os.getpid()


def done(stage: Stage, worker: RawPeer, client: RawPeer, task_id: str = "t", result: bytes = b"found") -> None:
    """Bring a task from its submission to a result that no client has fetched."""
    submit(stage, client, task_id)
    finish(stage, worker, assigned(stage, worker), result)


def task_of(stage: Stage, task_id: str = "t") -> Task:
    task = stage.owner.tasks.get(task_id)
    assert task is not None
    return task


def worker_of(stage: Stage, worker_id: str = "w") -> Worker:
    worker = stage.owner._state.workers.get(worker_id)
    assert worker is not None
    return worker


def dispatcher(stage: Stage) -> TaskDispatcher:
    return stage.loop._dispatcher


def workers(stage: Stage) -> set[str]:
    """The sessions that work, and the manager's end agrees with the state."""
    known = {worker.worker_id for worker in stage.owner._state.workers}
    assert known == {*dispatcher(stage)._workers}
    return known


def work_forever(address: str, session_id: str) -> None:
    """Run a worker that never ends, and does not notice that its connection is closed. For a process of its own."""
    signal.alarm(FOREVER_SECONDS)
    with RawPeer(address, timeout_s=FOREVER_SECONDS) as peer:
        peer.hello(session_id)
        peer.send(JoinAsWorker(1, OFFERS))
        peer.expect(WorkerAccepted)
        signal.pause()


def finish_and_die(address: str, session_id: str) -> None:
    """In a process of its own: a worker that finishes one task, begins the next, and does not survive that."""
    with RawPeer(address, timeout_s=FOREVER_SECONDS) as peer:
        peer.hello(session_id)
        peer.send(JoinAsWorker(1, OFFERS))
        peer.expect(WorkerAccepted)
        first, second = peer.expect(TaskAssigned), peer.expect(TaskAssigned)
        finished = FinishTask(first.task_id, first.attempt, b"found")
        peer.send(Request(2, (finished, BeginTask(second.task_id, second.attempt))))
        os.kill(os.getpid(), signal.SIGKILL)


def no_pidfd_of_ours(_: object, pid: int) -> int | None:
    """Return no pidfd for this process: the manager must not kill the test that plays a worker."""
    return None if pid == os.getpid() else os.pidfd_open(pid)
