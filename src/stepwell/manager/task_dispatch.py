"""Giving out tasks: to workers what is next for them, to those who asked what became of it.

Workers and followers are guests like others, and may be slow, stopped or gone: each has a bounded outbox, and nobody
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
from stepwell.manager.request_handler import RequestHandler
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
    """Who works, who wants to know, and what they have not been told yet."""

    def __init__(self, requests: RequestHandler, sharing: SegmentSharing, log: Logger) -> None:
        self._requests = requests
        self._sharing = sharing
        self._log = log
        self._workers: dict[str, ClientConnection] = {}  # by session
        self._followers: dict[str, ClientConnection] = {}  # by session: the one that asked last
        self._untold: dict[str, deque[str]] = {}  # by session: tasks that are over
        self._ending: set[str] = set()  # sessions whose tasks have to be forgotten
        self._told: dict[ClientConnection, None] = {}  # whose outbox has something of the next turn's

    def employ(self, guest: ClientConnection, message: JoinAsWorker) -> None:
        """A guest is a worker from now on; or it is told why not."""
        session = guest.session
        assert session is not None
        try:
            self._requests.join_pool(session.session_id, guest.credentials.pid, message.offers)
        except Refused as error:
            guest.peer.send(Response(message.request_id, (Refusal.of(error, self._requests.revision),)))
            return
        guest.is_working = True
        self._workers[session.session_id] = guest
        guest.peer.send(WorkerAccepted(message.request_id))
        self._log.info("worker.joined", pid=guest.credentials.pid)

    def follow(self, guest: ClientConnection, message: FollowTasks) -> None:
        """A guest is told of its session's tasks from now on, beginning with those that are over already."""
        session = guest.session
        assert session is not None
        guest.is_following = True
        self._followers[session.session_id] = guest
        tasks = self._requests.owner.tasks
        self._note(self._told)  # what has ended in this turn is among what is over
        mine = tasks.by_session.get(session.session_id, {})
        unknown = [task_id for task_id in message.task_ids if task_id not in mine]
        over = [each.task_id for each in tasks.of_session(session.session_id) if each.is_over]
        self._untold[session.session_id] = deque(over)
        guest.peer.send(TasksFollowed(message.request_id, tuple(unknown)))

    def hear(self, guest: ClientConnection, message: ReportProgress | TasksReceived) -> None:
        """What a worker says of its progress, or a follower of what has reached it."""
        session = guest.session
        assert session is not None
        match message:
            case TasksReceived() if guest.is_following:
                self._requests.forget_tasks(session.session_id, message.task_ids)
            case ReportProgress() if guest.is_working:
                task = self._requests.owner.tasks.get(message.task_id)
                is_current = task is not None and (task.worker_id, task.attempt) == (
                    session.session_id,
                    message.attempt,
                )
                follower = self._followers.get(task.session_id) if task is not None and is_current else None
                if follower is not None and len(follower.peer.outbox) < limits.WATCHER_OUTBOX_BYTES:
                    told = TaskProgressed(message.task_id, message.done, message.total, message.note)
                    follower.peer.send(told)
                    self._told[follower] = None
            case _:
                raise ProtocolError("only a worker tells of its progress, and only a follower of what it has received")

    def leave(self, guest: ClientConnection) -> None:
        """A connection is gone; if a worker's, so is the worker, whatever it was doing."""
        session_id = guest.session.session_id if guest.session is not None else ""
        if guest.is_working and self._workers.get(session_id) is guest:
            del self._workers[session_id]
            self._requests.leave_pool(session_id)
            self._log.info("worker.left", pid=guest.credentials.pid)
        if guest.is_following and self._followers.get(session_id) is guest:
            del self._followers[session_id]
            self._untold.pop(session_id, None)

    def end(self, session_id: str) -> None:
        """A session is over: nobody will ask for its tasks."""
        if session_id in self._requests.owner.tasks.by_session:
            self._ending.add(session_id)

    @property
    def has_more(self) -> bool:
        """Whether the next turn need not wait for anything."""
        return bool(self._ending or self._requests.owner.task_changes)

    def dispatch(self) -> list[ClientConnection]:
        """Give out and tell what there is; whoever got something has to be flushed."""
        owner = self._requests.owner
        if not (self._workers or self._told or self._ending or self._untold or owner.task_changes):
            return []  # where nobody works, nothing is due
        busy, self._told = self._told, {}
        for guest in [each for each in self._workers.values() if not each.peer.is_open]:
            self.leave(guest)  # before it is given anything more
        for session_id in list(self._ending):
            if not self._requests.forget_tasks(session_id, None):
                self._ending.discard(session_id)
        self._requests.expire_tasks()
        self._note(busy)
        self._give_out(busy)
        for session_id in list(self._untold):
            self._tell(session_id, busy)
        return list(busy)

    def _give_out(self, busy: dict[ClientConnection, None]) -> None:
        """To the idle first; and then to each one more, so that nobody waits for us between two tasks."""
        tasks = self._requests.owner.tasks
        if not self._workers or not (tasks.queued or tasks.prefetched):
            return
        for task in self._requests.lease_tasks(takes_back=bool(tasks.prefetched) and self._is_quiet()):
            self._assign(task, busy)
        if tasks.queued:
            for task in self._requests.reserve_tasks():
                self._assign(task, busy)
        self._note(busy)  # of what was taken back from others

    def _is_quiet(self) -> bool:
        """Whether no worker has said anything that was not read: it could be that it begins what lies ahead of it."""
        unread = select.poll()
        for guest in self._workers.values():
            unread.register(guest.peer.fileno(), select.POLLIN)
        return not unread.poll(0)

    def _note(self, busy: dict[ClientConnection, None]) -> None:
        changes, self._requests.owner.task_changes = self._requests.owner.task_changes, []
        for change in changes:
            self._look_at(change, busy)

    def _look_at(self, change: AnyChange, busy: dict[ClientConnection, None]) -> None:
        match change.before:
            case Task(is_prefetched=True, worker_id=str() as worker_id) as task if (
                _worker_of(change.after) != worker_id
            ):
                self._recall(task, worker_id, busy)
            case _:
                pass
        match change.after:
            case Worker(is_condemned=True) as worker:
                self._kill(worker, busy)
            case Task(is_over=True) as task if task.session_id in self._followers and not _is_over(change.before):
                self._untold.setdefault(task.session_id, deque()).append(task.task_id)
                busy[self._followers[task.session_id]] = None
            case _:
                pass

    def _kill(self, worker: Worker, busy: dict[ClientConnection, None]) -> None:
        guest = self._workers.get(worker.worker_id)
        if guest is None or guest.session is None:
            return
        self._log.warning("worker.condemned", pid=worker.pid)
        if guest.session.pidfd is not None:
            with contextlib.suppress(OSError):  # it is dying already
                signal.pidfd_send_signal(guest.session.pidfd, signal.SIGKILL)
        guest.peer.is_open = False
        busy[guest] = None

    def _recall(self, task: Task, worker_id: str, busy: dict[ClientConnection, None]) -> None:
        """A worker looks for this before it begins; one that has begun in this moment says so, and is stopped."""
        guest = self._workers.get(worker_id)
        if guest is not None:
            guest.peer.send(TaskRecalled(task.task_id, task.attempt))
            busy[guest] = None

    def _assign(self, task: Task, busy: dict[ClientConnection, None]) -> None:
        assert task.worker_id is not None
        guest = self._workers[task.worker_id]
        guest.peer.send(
            TaskAssigned(
                task_id=task.task_id,
                attempt=task.attempt,
                strategy=task.strategy,
                projects=task.projects,
                payload=task.payload,
                is_ahead=task.is_prefetched,
                revision=self._requests.revision,
                catalogues=self._requests.owner.see(task.projects, self._requests.now_s()),
            )
        )
        busy[guest] = None

    def _tell(self, session_id: str, busy: dict[ClientConnection, None]) -> None:
        """As much as the follower has read of the rest; a quarantined one when there is evidence, or none came."""
        guest, untold = self._followers[session_id], self._untold[session_id]
        waiting: list[str] = []
        while untold and len(guest.peer.outbox) < limits.WATCHER_OUTBOX_BYTES:
            task = self._requests.owner.tasks.get(untold.popleft())
            if task is None:
                continue
            if self._awaits_evidence(task):
                waiting.append(task.task_id)
                continue
            self._send_outcome(guest, task)
            busy[guest] = None
        untold.extendleft(reversed(waiting))
        if not untold:
            del self._untold[session_id]

    def _awaits_evidence(self, task: Task) -> bool:
        if task.state is not TaskState.QUARANTINED or all(death.evidence for death in task.deaths):
            return False
        assert task.ended_at_ms is not None
        return self._requests.now_ms() < task.ended_at_ms + int(limits.EVIDENCE_SECONDS * 1000)

    def _send_outcome(self, guest: ClientConnection, task: Task) -> None:
        digest = handle = None
        if task.content is not None:
            digest, _ = task.content
            handle = self._requests.owner.bodies.find(digest)
            if handle is not None:
                self._sharing.lend(guest, handle)
        guest.peer.send(
            TaskEnded(
                task_id=task.task_id,
                state=task.state,
                attempt=task.attempt,
                deaths=task.deaths,
                fault=task.fault,
                result=task.result,
                digest=digest,
                handle=handle,
            )
        )


def _worker_of(row: object) -> str | None:
    return row.worker_id if isinstance(row, Task) else None


def _is_over(row: object) -> bool:
    return isinstance(row, Task) and row.is_over
