"""Task dispatch: tasks go to workers, and their outcomes to the clients that follow them.

The domain decides which task goes to which worker and what an outcome is. This module sends the messages that follow
from it: assignments and recalls to workers, progress and outcomes to followers. A worker gets the task that it does
next while it is still busy, so that it does not wait for the manager between two tasks; such a task can be recalled.

Workers and followers may be slow, stopped or gone. Each has a bounded outbox, and the loop waits for none of them. A
running strategy cannot be interrupted from outside, so that a worker whose task is over (expired, cancelled) is killed.
The signal goes through the pidfd of its session, because a pid alone could name another process by then.
"""

from __future__ import annotations

from collections import deque

from stepwell import limits
from stepwell.domain.tasks.model import Task, TaskState, Worker
from stepwell.domain.verdict import AnyChange
from stepwell.errors import ProtocolError, Refused
from stepwell.manager.connection import ClientConnection
from stepwell.manager.housekeeping import Housekeeping
from stepwell.manager.shared_segments import SegmentSharing
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
from stepwell.transport.kernel import Kernel


class TaskDispatcher:
    """The connections of workers and followers, and the outcomes that followers have not received yet.

    The loop owns the one instance and calls `dispatch` once a turn. Invariant: the keys of `_workers` are the worker
    ids in the state. `_to_flush` collects connections that got a message outside of `dispatch`; they are flushed with
    its result.
    """

    def __init__(self, housekeeping: Housekeeping, sharing: SegmentSharing, kernel: Kernel, log: Logger) -> None:
        self._housekeeping = housekeeping
        self._sharing = sharing
        self._kernel = kernel
        self._log = log
        self._workers: dict[str, ClientConnection] = {}  # by session id
        self._followers: dict[str, ClientConnection] = {}  # by session id; the connection accepted last
        self._unreported: dict[str, deque[str]] = {}  # by session id: tasks that are over
        self._ended_sessions: set[str] = set()  # their tasks are still to be forgotten
        self._to_flush: dict[ClientConnection, None] = {}

    def add_worker(self, connection: ClientConnection, message: JoinAsWorker) -> None:
        """Register a connection as a worker, or send it the refusal."""
        session = connection.session
        assert session is not None
        try:
            self._housekeeping.join_pool(
                session.session_id, connection.credentials.pid, message.offers, message.problems
            )
        except Refused as error:
            connection.peer.send(Response(message.request_id, (Refusal.of(error, self._housekeeping.owner.revision),)))
            return
        connection.is_working = True
        self._workers[session.session_id] = connection
        connection.peer.send(WorkerAccepted(message.request_id))
        self._log.info("worker.joined", pid=connection.credentials.pid)

    def add_follower(self, connection: ClientConnection, message: FollowTasks) -> None:
        """Make a connection the follower of its session's tasks. The outcomes that exist already are sent first.

        A later connection of the same session replaces an earlier one, which a reconnecting client has lost. An earlier
        connection never replaces a later one, also if its message was delayed and arrives after the other's. The reply
        names the tasks that the manager does not know, so that the client stops waiting for them.
        """
        session = connection.session
        assert session is not None
        connection.is_following = True
        tasks = self._housekeeping.owner.tasks
        mine = tasks.by_session.get(session.session_id, {})
        unknown = [task_id for task_id in message.task_ids if task_id not in mine]
        connection.peer.send(TasksFollowed(message.request_id, tuple(unknown)))
        current = self._followers.get(session.session_id)
        if current is not None and current.number > connection.number:
            return
        self._followers[session.session_id] = connection
        self._drain_changes(self._to_flush)  # tasks that ended in this turn are listed below, and only there
        over = [each.task_id for each in tasks.of_session(session.session_id) if each.is_over]
        self._unreported[session.session_id] = deque(over)

    def handle_report(self, connection: ClientConnection, message: ReportProgress | TasksReceived) -> None:
        """Handle a worker's report of progress, or a follower's receipt of outcomes.

        Progress of an attempt that is not current is dropped, and so is progress that a slow follower has no room for.
        Raise `ProtocolError` if the connection is neither.
        """
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
                raise ProtocolError("only a worker reports progress, and only a follower reports what it has received")

    def remove(self, connection: ClientConnection) -> None:
        """Forget a connection that has ended. The tasks of a worker are queued again or quarantined by the domain."""
        session_id = connection.session.session_id if connection.session is not None else ""
        if connection.is_working and self._workers.get(session_id) is connection:
            del self._workers[session_id]
            self._housekeeping.leave_pool(session_id)
            self._log.info("worker.left", pid=connection.credentials.pid)
        if connection.is_following and self._followers.get(session_id) is connection:
            del self._followers[session_id]
            self._unreported.pop(session_id, None)

    def forget_session(self, session_id: str) -> None:
        """Forget the tasks of a session that has ended, in bounded steps over the next turns."""
        if session_id in self._housekeeping.owner.tasks.by_session:
            self._ended_sessions.add(session_id)

    @property
    def has_more(self) -> bool:
        """True if the loop should not sleep, because sessions or changes are still to be processed."""
        return bool(self._ended_sessions or self._housekeeping.owner.task_changes)

    def dispatch(self) -> list[ClientConnection]:
        """Expire, assign and report tasks, and return the connections to flush.

        It runs behind the commit, in this order: workers whose connection has closed are removed before anything is
        leased to them, tasks of ended sessions are forgotten, overdue tasks are ended, and only then are tasks
        assigned. Task changes are not journaled, so that nothing here needs another commit.
        """
        owner = self._housekeeping.owner
        if not (self._workers or self._to_flush or self._ended_sessions or self._unreported or owner.task_changes):
            return []
        busy, self._to_flush = self._to_flush, {}
        for connection in [each for each in self._workers.values() if not each.peer.is_open]:
            self.remove(connection)  # before the domain leases a task to it
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
        """Assign tasks to idle workers first.

        Then prefetch one more to each worker, so that it does not wait between two tasks.
        """
        tasks = self._housekeeping.owner.tasks
        if not self._workers or not (tasks.queued or tasks.prefetched):
            return
        for task in self._housekeeping.lease_tasks(takes_back=bool(tasks.prefetched) and self._is_quiet()):
            self._assign(task, busy)
        if tasks.queued:
            for task in self._housekeeping.reserve_tasks():
                self._assign(task, busy)
        self._drain_changes(busy)  # recalls of prefetched tasks that moved to other workers

    def _is_quiet(self) -> bool:
        """Return True if no worker has sent anything that is unread.

        A worker that has sent something may have begun its prefetched task, which must then not be given to another
        one.
        """
        return not self._kernel.has_input([each.peer.fileno() for each in self._workers.values()])

    def _drain_changes(self, busy: dict[ClientConnection, None]) -> None:
        """Process the changes of tasks and workers since the last call.

        The list is exchanged first, because processing a change may execute commands, which append further changes.
        """
        changes, self._housekeeping.owner.task_changes = self._housekeeping.owner.task_changes, []
        for change in changes:
            self._on_change(change, busy)

    def _on_change(self, change: AnyChange, busy: dict[ClientConnection, None]) -> None:
        """Send or queue the messages that one change causes.

        A prefetched task that has left its worker is recalled. A condemned worker is killed. A task that is over now,
        and was not before, is queued for its follower, if there is one; without one the outcome stays in the state
        until it is asked for.
        """
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
                self._unreported.setdefault(task.session_id, deque()).append(task.task_id)
                busy[self._followers[task.session_id]] = None
            case _:
                pass

    def _kill(self, worker: Worker, busy: dict[ClientConnection, None]) -> None:
        """Kill the process of a condemned worker, and close its connection.

        The worker leaves the pool when its connection is removed. The supervisor notices the death and starts another
        one.
        """
        connection = self._workers.get(worker.worker_id)
        if connection is None or connection.session is None:
            return
        self._log.info("worker.condemned", pid=worker.pid)
        if connection.session.pidfd is not None:
            self._kernel.kill(connection.session.pidfd)
        connection.peer.is_open = False
        busy[connection] = None

    def _recall(self, task: Task, worker_id: str, busy: dict[ClientConnection, None]) -> None:
        """Recall a prefetched task from a worker.

        The worker looks for recalls before it begins a task. One that has begun in the same moment says so and is
        stopped.
        """
        connection = self._workers.get(worker_id)
        if connection is not None:
            connection.peer.send(TaskRecalled(task.task_id, task.attempt))
            busy[connection] = None

    def _assign(self, task: Task, busy: dict[ClientConnection, None]) -> None:
        """Send a task to its worker, with the ends of the catalogues that exist.

        With them the worker can open its views without a request. Where one is missing, the worker asks for it.
        """
        assert task.worker_id is not None
        connection = self._workers[task.worker_id]
        connection.peer.send(
            TaskAssigned(
                task_id=task.task_id,
                attempt=task.attempt,
                strategy=task.strategy,
                projects=task.projects,
                payload=task.payload,
                is_prefetched=task.is_prefetched,
                revision=self._housekeeping.owner.revision,
                catalogues=self._housekeeping.owner.catalogue_ends(task.projects, self._housekeeping.now_s()),
            )
        )
        busy[connection] = None

    def _report_ended(self, session_id: str, busy: dict[ClientConnection, None]) -> None:
        """Send outcomes to a follower, as many as its outbox has room for.

        The outcome of a quarantined task waits for evidence of how its workers died, up to a bounded time.
        """
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
        """Return True if a quarantined task may still get evidence from the supervisor of its dead workers.

        The evidence says how a worker died, for example its last output. It arrives on another connection, and later
        than the death itself. Without it the outcome is reported after `limits.EVIDENCE_SECONDS`.
        """
        if task.state is not TaskState.QUARANTINED or all(death.evidence for death in task.deaths):
            return False
        assert task.ended_at_ms is not None
        return self._housekeeping.now_ms() < task.ended_at_ms + int(limits.EVIDENCE_SECONDS * 1000)

    def _send_outcome(self, connection: ClientConnection, task: Task) -> None:
        """Send the outcome of a task. The descriptor of a large result's segment goes first."""
        digest = handle = None
        if task.content is not None:
            digest, _ = task.content
            handle = self._housekeeping.owner.bodies.find(digest)
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
                digest=digest,
                handle=handle,
            )
        )


def _worker_of(row: object) -> str | None:
    return row.worker_id if isinstance(row, Task) else None


def _is_over(row: object) -> bool:
    return isinstance(row, Task) and row.is_over
