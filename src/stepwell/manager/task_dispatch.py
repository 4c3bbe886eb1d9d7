"""Giving out tasks: to workers what is next for them, to those who asked what became of it.

Workers and followers are connections, and may be slow, stopped or gone: each has a bounded outbox, and nobody
waits for them. A strategy cannot be stopped from outside, so that whoever works on what is over is killed; the pidfd
makes sure that it is that very process.
"""

from __future__ import annotations

import contextlib
import select
import signal
from collections import deque

from stepwell import limits
from stepwell.domain.tasks.model import Task, TaskState, Worker
from stepwell.domain.verdict import AnyChange
from stepwell.errors import ProtocolError, Refused
from stepwell.manager.connection import ClientConnection
from stepwell.manager.housekeeping import Housekeeping
from stepwell.manager.segment_sharing import SegmentSharing
from stepwell.protocol.messages import (
    FollowTasks,
    JoinAsWorker,
    Refusal,
    ReportProgress,
    Response,
    TaskAssigned,
    TaskEnded,
    TaskProgressed,
    TaskRecalled,
    TasksFollowed,
    TasksReceived,
    WorkerAccepted,
)
from stepwell.telemetry import Logger


class TaskDispatcher:
    """Who works, who wants to know, and what they have not been progress yet."""

    def __init__(self, housekeeping: Housekeeping, sharing: SegmentSharing, log: Logger) -> None:
        self._housekeeping = housekeeping
        self._sharing = sharing
        self._log = log
        self._workers: dict[str, ClientConnection] = {}  # by session
        self._followers: dict[str, ClientConnection] = {}  # by session: the one that asked last
        self._unreported: dict[str, deque[str]] = {}  # by session: tasks that are over
        self._ended_sessions: set[str] = set()  # sessions whose tasks have to be forgotten
        self._to_flush: dict[ClientConnection, None] = {}  # whose outbox has something of the next turn's

    def add_worker(self, connection: ClientConnection, message: JoinAsWorker) -> None:
        """A connection is a worker from now on; or it is progress why not."""
        session = connection.session
        assert session is not None
        try:
            self._housekeeping.join_pool(session.session_id, connection.credentials.pid, message.offers)
        except Refused as error:
            connection.peer.send(Response(message.request_id, (Refusal.of(error, self._housekeeping.owner.revision),)))
            return
        connection.is_working = True
        self._workers[session.session_id] = connection
        connection.peer.send(WorkerAccepted(message.request_id))
        self._log.info("worker.joined", pid=connection.credentials.pid)

    def add_follower(self, connection: ClientConnection, message: FollowTasks) -> None:
        """A connection is progress of its session's tasks from now on, beginning with those that are over already."""
        session = connection.session
        assert session is not None
        connection.is_following = True
        self._followers[session.session_id] = connection
        tasks = self._housekeeping.owner.tasks
        self._drain_changes(self._to_flush)  # what has ended in this turn is among what is over
        mine = tasks.by_session.get(session.session_id, {})
        unknown = [task_id for task_id in message.task_ids if task_id not in mine]
        over = [each.task_id for each in tasks.of_session(session.session_id) if each.is_over]
        self._unreported[session.session_id] = deque(over)
        connection.peer.send(TasksFollowed(message.request_id, tuple(unknown)))

    def handle_report(self, connection: ClientConnection, message: ReportProgress | TasksReceived) -> None:
        """What a worker says of its progress, or a follower of what has reached it."""
        session = connection.session
        assert session is not None
        match message:
            case TasksReceived() if connection.is_following:
                self._housekeeping.forget_tasks(session.session_id, message.task_ids)
            case ReportProgress() if connection.is_working:
                task = self._housekeeping.owner.tasks.get(message.task_id)
                is_current = task is not None and (task.worker_id, task.attempt) == (
                    session.session_id,
                    message.attempt,
                )
                follower = self._followers.get(task.session_id) if task is not None and is_current else None
                if follower is not None and len(follower.peer.outbox) < limits.WATCHER_OUTBOX_BYTES:
                    progress = TaskProgressed(message.task_id, message.done, message.total, message.note)
                    follower.peer.send(progress)
                    self._to_flush[follower] = None
            case _:
                raise ProtocolError("only a worker tells of its progress, and only a follower of what it has received")

    def remove(self, connection: ClientConnection) -> None:
        """A connection is gone; if a worker's, so is the worker, whatever it was doing."""
        session_id = connection.session.session_id if connection.session is not None else ""
        if connection.is_working and self._workers.get(session_id) is connection:
            del self._workers[session_id]
            self._housekeeping.leave_pool(session_id)
            self._log.info("worker.left", pid=connection.credentials.pid)
        if connection.is_following and self._followers.get(session_id) is connection:
            del self._followers[session_id]
            self._unreported.pop(session_id, None)

    def forget_session(self, session_id: str) -> None:
        """A session is over: nobody will ask for its tasks."""
        if session_id in self._housekeeping.owner.tasks.by_session:
            self._ended_sessions.add(session_id)

    @property
    def has_more(self) -> bool:
        """Whether the next turn need not wait for anything."""
        return bool(self._ended_sessions or self._housekeeping.owner.task_changes)

    def dispatch(self) -> list[ClientConnection]:
        """Give out and tell what there is; whoever got something has to be flushed."""
        owner = self._housekeeping.owner
        if not (self._workers or self._to_flush or self._ended_sessions or self._unreported or owner.task_changes):
            return []  # where nobody works, nothing is due
        busy, self._to_flush = self._to_flush, {}
        for connection in [each for each in self._workers.values() if not each.peer.is_open]:
            self.remove(connection)  # before it is given anything more
        for session_id in list(self._ended_sessions):
            if not self._housekeeping.forget_tasks(session_id, None):
                self._ended_sessions.discard(session_id)
        self._housekeeping.expire_tasks()
        self._drain_changes(busy)
        self._assign_tasks(busy)
        for session_id in list(self._unreported):
            self._report_ended(session_id, busy)
        return list(busy)

    def _assign_tasks(self, busy: dict[ClientConnection, None]) -> None:
        """To the idle first; and then to each one more, so that nobody waits for us between two tasks."""
        tasks = self._housekeeping.owner.tasks
        if not self._workers or not (tasks.queued or tasks.ahead):
            return
        for task in self._housekeeping.lease_tasks(takes_back=bool(tasks.ahead) and self._is_quiet()):
            self._assign(task, busy)
        if tasks.queued:
            for task in self._housekeeping.reserve_tasks():
                self._assign(task, busy)
        self._drain_changes(busy)  # of what was taken back from others

    def _is_quiet(self) -> bool:
        """Whether no worker has said anything that was not read: it could be that it begins what lies ahead of it."""
        unread = select.poll()
        for connection in self._workers.values():
            unread.register(connection.peer.fileno(), select.POLLIN)
        return not unread.poll(0)

    def _drain_changes(self, busy: dict[ClientConnection, None]) -> None:
        changes, self._housekeeping.owner.task_changes = self._housekeeping.owner.task_changes, []
        for change in changes:
            self._on_change(change, busy)

    def _on_change(self, change: AnyChange, busy: dict[ClientConnection, None]) -> None:
        match change.before:
            case Task(is_ahead=True, worker_id=str() as worker_id) as task if _worker_of(change.after) != worker_id:
                self._recall(task, worker_id, busy)
            case _:
                pass
        match change.after:
            case Worker(is_condemned=True) as worker:
                self._kill(worker, busy)
            case Task(is_over=True) as task if task.session_id in self._followers and not _is_over(change.before):
                self._unreported.setdefault(task.session_id, deque()).append(task.task_id)
                busy[self._followers[task.session_id]] = None
            case _:
                pass

    def _kill(self, worker: Worker, busy: dict[ClientConnection, None]) -> None:
        connection = self._workers.get(worker.worker_id)
        if connection is None or connection.session is None:
            return
        self._log.warning("worker.condemned", pid=worker.pid)
        if connection.session.pidfd is not None:
            with contextlib.suppress(OSError):  # it is dying already
                signal.pidfd_send_signal(connection.session.pidfd, signal.SIGKILL)
        connection.peer.is_open = False
        busy[connection] = None

    def _recall(self, task: Task, worker_id: str, busy: dict[ClientConnection, None]) -> None:
        """A worker looks for this before it begins; one that has begun in this moment says so, and is stopped."""
        connection = self._workers.get(worker_id)
        if connection is not None:
            connection.peer.send(TaskRecalled(task.task_id, task.attempt))
            busy[connection] = None

    def _assign(self, task: Task, busy: dict[ClientConnection, None]) -> None:
        assert task.worker_id is not None
        connection = self._workers[task.worker_id]
        connection.peer.send(
            TaskAssigned(
                task_id=task.task_id,
                attempt=task.attempt,
                strategy=task.strategy,
                projects=task.projects,
                payload=task.payload,
                is_ahead=task.is_ahead,
                revision=self._housekeeping.owner.revision,
                catalogues=self._housekeeping.owner.catalogue_ends(task.projects, self._housekeeping.now_s()),
            )
        )
        busy[connection] = None

    def _report_ended(self, session_id: str, busy: dict[ClientConnection, None]) -> None:
        """As much as the follower has read of the rest; a quarantined one when there is evidence, or none came."""
        connection, unreported = self._followers[session_id], self._unreported[session_id]
        waiting: list[str] = []
        while unreported and len(connection.peer.outbox) < limits.WATCHER_OUTBOX_BYTES:
            task = self._housekeeping.owner.tasks.get(unreported.popleft())
            if task is None:
                continue
            if self._awaits_evidence(task):
                waiting.append(task.task_id)
                continue
            self._send_outcome(connection, task)
            busy[connection] = None
        unreported.extendleft(reversed(waiting))
        if not unreported:
            del self._unreported[session_id]

    def _awaits_evidence(self, task: Task) -> bool:
        if task.state is not TaskState.QUARANTINED or all(death.evidence for death in task.deaths):
            return False
        assert task.ended_at_ms is not None
        return self._housekeeping.now_ms() < task.ended_at_ms + int(limits.EVIDENCE_SECONDS * 1000)

    def _send_outcome(self, connection: ClientConnection, task: Task) -> None:
        handle = None
        if task.content is not None:
            handle = self._housekeeping.owner.bodies.find(task.content.digest)
            if handle is not None:
                self._sharing.share_for_handle(connection, handle)
        connection.peer.send(
            TaskEnded(
                task_id=task.task_id,
                state=task.state,
                attempt=task.attempt,
                deaths=task.deaths,
                fault=task.fault,
                result=task.result,
                digest=task.content.digest if task.content else None,
                handle=handle,
            )
        )


def _worker_of(row: object) -> str | None:
    return row.worker_id if isinstance(row, Task) else None


def _is_over(row: object) -> bool:
    return isinstance(row, Task) and row.is_over
