"""Tasks: each accepted one ends in exactly one outcome, whatever happens to its workers."""

from __future__ import annotations

import asyncio

from stepwell.aio.connection import AsyncConnection
from stepwell.client.session.calls import Call
from stepwell.domain.tasks.commands import SubmitTask
from stepwell.domain.tasks.model import TaskState
from stepwell.errors import OutcomeUnknown, RuntimeLost
from stepwell.protocol.messages import FollowTasks, TaskEnded, TasksFollowed, TasksReceived
from tests.simulator.client_process import ClientProcess
from tests.simulator.violation import Violation
from tests.simulator.worker_process import STRATEGY
from tests.simulator.workloads.base import PROJECT, Actor

PATIENCE_S = 600.0
"""Within this time every task ends: it has a deadline of a second, and few attempts."""
RECONNECT_SECONDS = 0.05
LINGER_SECONDS = 0.001
"""A follower stays for this time after the last outcome: a second report of it would come now."""


class Follower:
    """Follows the tasks of one session, over one connection at a time, as the protocol allows."""

    def __init__(self, process: ClientProcess) -> None:
        self._process = process
        self._waiting: dict[str, asyncio.Future[TaskEnded | None]] = {}
        self._accepted: set[str] = set()  # tasks that the manager has acknowledged
        self._is_following = False
        self._connection: AsyncConnection | None = None

    def expect(self, task_id: str) -> asyncio.Future[TaskEnded | None]:
        """Return the future of a task's end, which is None if the manager has forgotten the task."""
        self._waiting[task_id] = ended = self._process.machine.loop.create_future()
        if not self._is_following:
            self._is_following = True
            self._process.start_background(self._follow())
        return ended

    def accept(self, task_id: str) -> None:
        """Note that a task was accepted: a later manager that does not know it has lost it."""
        self._accepted.add(task_id)

    def forget(self, task_id: str) -> None:
        """Give up a task that was not accepted. With the last one, following ends."""
        self._waiting.pop(task_id, None)
        if not self._waiting and self._connection is not None:
            self._connection.terminate()

    async def _follow(self) -> None:
        """Follow until all tasks have ended, over as many connections as that takes."""
        channel = self._process.client.tiers.caller.channel
        try:
            while self._waiting:
                try:
                    self._connection = connection = await channel.dial()
                    await self._receive(connection)
                except (OutcomeUnknown, RuntimeLost):
                    await asyncio.sleep(RECONNECT_SECONDS)
                finally:
                    if self._connection is not None:
                        channel.discard(self._connection)
                        self._connection = None
        finally:
            self._is_following = False
            for task_id in [*self._waiting]:
                self._end(task_id, None)

    async def _receive(self, connection: AsyncConnection) -> None:
        """Receive outcomes on one connection. The manager reports each of them once there."""
        connection.accept_pushed()
        # Only of accepted tasks does it mean anything that the manager does not know them.
        answer = await connection.exchange(FollowTasks(0, tuple(sorted(self._accepted & self._waiting.keys()))))
        assert isinstance(answer, TasksFollowed)
        for task_id in answer.unknown:
            self._end(task_id, None)
        reported: set[str] = set()
        while True:
            try:
                async with asyncio.timeout(None if self._waiting else LINGER_SECONDS):
                    message = await connection.receive_pushed()
            except TimeoutError:
                if self._waiting:
                    continue
                return
            if isinstance(message, TaskEnded):
                if message.task_id in reported:
                    raise Violation(f"the outcome of {message.task_id} was reported twice")
                reported.add(message.task_id)
                self._end(message.task_id, message)
                connection.send(TasksReceived((message.task_id,)))

    def _end(self, task_id: str, message: TaskEnded | None) -> None:
        self._accepted.discard(task_id)
        ended = self._waiting.pop(task_id, None)
        if ended is not None and not ended.done():
            ended.set_result(message)


async def run_task(actor: Actor) -> None:
    """Submit a task and follow it to its end."""
    follower = actor.process.follower = actor.process.follower or Follower(actor.process)
    task_id = f"task-{actor.unique()}"
    kind = actor.random.choice((b"echo",) * 12 + (b"fail", b"hang", b"die"))
    payload = kind + task_id.encode()
    command = SubmitTask(task_id, STRATEGY, (PROJECT,), payload, deadline_ms=actor.random.choice((100, 1_000)))
    expected = follower.expect(task_id)  # the end may come before the answer to the submission
    try:
        await actor.client.tiers.caller.perform(lambda: Call(command), ())
    except BaseException:
        follower.forget(task_id)
        raise
    follower.accept(task_id)
    starts = actor.process.machine.manager.starts
    try:
        async with asyncio.timeout(PATIENCE_S):
            ended = await expected
    except TimeoutError:
        if actor.process.machine.manager.starts == starts:
            raise Violation(f"{task_id} was accepted and has not ended within {PATIENCE_S:g} s") from None
        return  # a restart has ended all tasks
    if ended is None:
        return
    actor.oracle.note_outcome(task_id)
    if ended.state is TaskState.DONE:
        worker_id = actor.oracle.holders.get(task_id, "")
        if kind != b"echo" or ended.result != payload + b"|" + worker_id.encode():
            raise Violation(f"{task_id} of worker {worker_id} is done with {ended.result!r}")
