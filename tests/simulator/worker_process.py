"""A worker's process on a simulated machine. It speaks the worker's protocol over an asyncio connection.

The blocking worker of `stepwell.pool` needs a thread that waits in the kernel. This one sends the same messages, in the
same order, and misbehaves as its tasks say.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from stepwell.aio.connection import AsyncConnection
from stepwell.domain.tasks.commands import BeginTask, FinishTask
from stepwell.domain.tasks.model import StrategyOffer, TaskFault
from stepwell.errors import OutcomeUnknown, RuntimeLost
from stepwell.protocol.messages import JoinAsWorker, Request, TaskAssigned, TaskRecalled, WorkerAccepted
from tests.simulator.client_process import ClientProcess

if TYPE_CHECKING:
    from tests.simulator.machine import Machine

STRATEGY = "echo"


class WorkerProcess:
    """One worker; `kill` ends its process, and `run` starts the next one, as a supervisor would."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._process: ClientProcess | None = None
        self.is_stopped = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def supervise(self) -> None:
        """Run one process after the other until the pool is stopped."""
        while not self.is_stopped:
            process = self._process = ClientProcess(self._machine, self._machine.new_fd())  # no other has this number
            process.start(self._work(process))
            await process.join()
            process.kill()
            await asyncio.sleep(0.05)

    def kill(self) -> None:
        if self._process is not None and self._process.is_alive:
            self._process.kill()

    async def _work(self, process: ClientProcess) -> None:
        try:
            await process.client.open()
            connection = await process.client.tiers.caller.channel.dial()
            connection.accept_pushed()
            answer = await connection.exchange(JoinAsWorker(0, (StrategyOffer(STRATEGY),)))
            if isinstance(answer, WorkerAccepted):
                await self._serve(connection, process.client.session_id)
        except (RuntimeLost, OutcomeUnknown):
            return

    async def _serve(self, connection: AsyncConnection, worker_id: str) -> None:
        """Receive tasks and finish them, one after the other. The result of a task names its worker."""
        inbox: deque[TaskAssigned] = deque()
        number = 0
        while not self.is_stopped:
            while not inbox:
                self._note(inbox, await connection.receive_pushed())
            task = inbox.popleft()
            if task.is_prefetched:
                number += 1
                connection.send(Request(number, (BeginTask(task.task_id, task.attempt),), number))
            await asyncio.sleep(self._machine.random.choice((0.0, 0.001, 0.2)))
            kind = task.payload[:4]
            if kind == b"hang":
                await self._hang(connection)
            if task.payload.startswith(b"die"):
                self.kill()
                await asyncio.sleep(10_000)
            number += 1
            fault = TaskFault("TaskFailed", "as asked") if kind == b"fail" else None
            result = None if fault else task.payload + b"|" + worker_id.encode()
            finish = FinishTask(task.task_id, task.attempt, result, fault)
            connection.send(Request(number, (finish,), number))

    @staticmethod
    async def _hang(connection: AsyncConnection) -> None:
        """Do not finish a task, until the manager has this process killed or the connection is lost."""
        while True:
            await connection.receive_pushed()

    @staticmethod
    def _note(inbox: deque[TaskAssigned], message: object) -> None:
        match message:
            case TaskAssigned():
                inbox.append(message)
            case TaskRecalled():
                for each in [*inbox]:
                    if (each.task_id, each.attempt) == (message.task_id, message.attempt):
                        inbox.remove(each)
            case _:
                pass
