"""From a message to a response: who may ask, what it came to, which bodies travel along."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence

from stepwell import limits
from stepwell.domain.commands import Command, Read, Write
from stepwell.domain.plans.commands import EndSession, ExpireLeases, ForgetPlans, KeepLeases
from stepwell.domain.replies import (
    FragmentsMoved,
    PlansForgotten,
    Reply,
    SessionEnded,
    TasksForgotten,
    TasksLeased,
    TierMetrics,
)
from stepwell.domain.tasks.commands import ExpireTasks, ForgetTasks, JoinPool, LeaseTasks, LeavePool, ReserveTasks
from stepwell.domain.tasks.model import StrategyOffer, Task
from stepwell.domain.tiers.commands import GetMetrics, SweepIdle
from stepwell.domain.tiers.model import BodyRef, TierBudget
from stepwell.domain.verdict import Origin
from stepwell.errors import Busy, InvalidArgument, ManagerFault, OutcomeUnknown, OutOfScope, StepwellError
from stepwell.manager.sessions import SessionRecord
from stepwell.manager.state_owner import StateClock, StateOwner
from stepwell.protocol.codec import PartlyDecodedRequest, size_of
from stepwell.protocol.messages import (
    AskView,
    CommandResult,
    Refusal,
    Request,
    Response,
    Result,
    TransactionRequest,
    ViewOpened,
)
from stepwell.storage.store import StoredState
from stepwell.telemetry import Logger

Asked = Command[Reply] | InvalidArgument
"""A command, or what was wrong with it."""

Uploaded = Mapping[int, BodyRef | StepwellError]
"""What a connection has uploaded, by number, or why not."""

_MANAGER = "manager"
_RUN = 50  # commands between two looks at the clock


class _TimeBudget:
    """Seconds of this thread's own work: being kept from working by others is not held against a request."""

    __slots__ = ("_work_until_s", "until_s")

    def __init__(self, seconds: float) -> None:
        self.until_s = time.monotonic() + seconds  # on the wall: the cheaper clock to ask, and never behind
        self._work_until_s = time.thread_time() + seconds

    def is_spent(self) -> bool:
        """To be asked when the clock on the wall says so."""
        return time.thread_time() > self._work_until_s


class RequestHandler:
    """Turns requests into responses, one at a time, in the order in which it is called."""

    def __init__(self, owner: StateOwner, clock: StateClock, log: Logger) -> None:
        self.owner = owner
        self._clock = clock
        self.now_s = clock.now_s
        self._log = log
        self.served = 0

    def respond(
        self, message: Request | TransactionRequest | PartlyDecodedRequest, session: SessionRecord, uploads: Uploaded
    ) -> Response:
        """Do what a message asks."""
        self.served += 1
        origin = Origin(session.session_id, self._clock.now_ms(), session.projects, uploads)
        atomic = isinstance(message, TransactionRequest) or (
            isinstance(message, PartlyDecodedRequest) and message.atomic
        )
        results = self._together(message.commands, origin) if atomic else self._each(message.commands, origin)
        return Response(message.request_id, results)

    def resume(self, budget: TierBudget | None, kept: StoredState) -> None:
        """Go on where an earlier manager ended: within the budget, and with the leases that were held."""
        now_ms = self._clock.now_ms()
        self.owner.settle(budget, Origin(_MANAGER, now_ms))
        grace_ms = int(limits.SESSION_GRACE_SECONDS * 1000)
        self._housekeep(KeepLeases(held_at_ms=kept.clock_ms, until_ms=now_ms + grace_ms))

    def origin(self, session: SessionRecord) -> Origin:
        """Who asks, and when."""
        return Origin(session.session_id, self._clock.now_ms(), session.projects)

    def open_view(
        self, message: AskView, session: SessionRecord, epoch: str, now_s: float
    ) -> ViewOpened | Response | None:
        """A view of some projects; None while their catalogues are being made. A refusal is an answer."""
        origin = self.origin(session)
        try:
            origin.require(message.projects)
            ends = self.owner.open_view(message.projects, origin, now_s)
        except StepwellError as error:
            return Response(message.request_id, (self._refusal(error, origin),))
        return None if ends is None else ViewOpened(message.request_id, epoch, self.revision, tuple(ends))

    def too_late(self, message: AskView) -> Response:
        """A view that could not be opened in time."""
        error = Busy("no room could be made for the catalogue of a project in time: try again later")
        return Response(message.request_id, (Refusal.of(error, self.revision),))

    @property
    def revision(self) -> int:
        return self.owner.revision

    def holds_leases(self, session_id: str) -> bool:
        """Whether a session is working on any plan."""
        return self.owner.holds_leases(session_id)

    def end_session(self, session_id: str) -> SessionEnded:
        """Take back the leases of a session that is gone."""
        ended = self._housekeep(EndSession(session_id)).reply
        assert isinstance(ended, SessionEnded)
        return ended

    def housekeep_leases(self) -> None:
        """Take back the leases whose time is over."""
        due_ms = self.owner.next_expiry_ms
        if due_ms is not None and due_ms <= self._clock.now_ms():
            reply = self._housekeep(ExpireLeases()).reply
            self._log.info("leases.expired", reply=reply)

    def sweep(self) -> bool:
        """Lower what is idle; whether there is more to do."""
        reply = self._housekeep(SweepIdle()).reply
        assert isinstance(reply, FragmentsMoved)
        return reply.more

    def forget_plans(self) -> bool:
        """Forget plans that were over for long enough; whether there is more to do."""
        before_ms = self._clock.now_ms() - limits.PLAN_RETENTION_MS
        reply = self._housekeep(ForgetPlans(limits.CLOSED_PLANS_MAX, before_ms)).reply
        assert isinstance(reply, PlansForgotten)
        return reply.more

    def now_ms(self) -> int:
        """The manager's clock, which never goes back."""
        return self._clock.now_ms()

    def join_pool(self, session_id: str, pid: int, offers: tuple[StrategyOffer, ...]) -> None:
        """A session is ready to work, or it is refused."""
        self._housekeep(JoinPool(session_id, pid, offers))

    def leave_pool(self, session_id: str) -> None:
        """A worker is gone."""
        self._housekeep(LeavePool(session_id))

    def lease_tasks(self, *, takes_back: bool) -> Iterator[Task]:
        """Give out what there is to whoever is idle."""
        return self._given(LeaseTasks(takes_back))

    def reserve_tasks(self) -> Iterator[Task]:
        """Give whoever is busy what it does next."""
        return self._given(ReserveTasks())

    def _given(self, command: LeaseTasks | ReserveTasks) -> Iterator[Task]:
        more = True
        while more:
            reply = self._housekeep(command).reply
            assert isinstance(reply, TasksLeased)
            yield from reply.tasks
            more = reply.more and bool(reply.tasks)

    @property
    def seconds_to_deadline(self) -> float:
        """How long no task can take too long, or lie with a busy worker for too long."""
        tasks = self.owner.tasks
        if not tasks.by_deadline:
            return math.inf
        due_ms = tasks.by_deadline[0][0]
        if tasks.prefetched and self.owner.has_idle_workers:
            due_ms = min(due_ms, self._clock.now_ms() + limits.TASK_AHEAD_MS)
        return (due_ms - self._clock.now_ms()) / 1000

    def expire_tasks(self) -> None:
        """End what has taken too long."""
        by_deadline = self.owner.tasks.by_deadline
        if by_deadline and by_deadline[0][0] <= self._clock.now_ms():
            reply = self._housekeep(ExpireTasks()).reply
            assert isinstance(reply, TasksLeased)
            self._log.warning("tasks.expired", task_ids=[task.task_id for task in reply.tasks])

    def forget_tasks(self, session_id: str, task_ids: tuple[str, ...] | None) -> bool:
        """Forget tasks that a session knows of, or all that it has; whether there are more."""
        reply = self._housekeep(ForgetTasks(session_id, task_ids)).reply
        assert isinstance(reply, TasksForgotten)
        return reply.more

    def metrics(self, session: SessionRecord) -> TierMetrics:
        """What the tiers hold, of the session's projects."""
        reply = self.owner.execute(GetMetrics(), Origin(_MANAGER, self._clock.now_ms(), session.projects)).reply
        assert isinstance(reply, TierMetrics)
        return reply

    def _housekeep(self, command: Command[Reply]) -> CommandResult:
        return self.owner.execute(command, Origin(_MANAGER, self._clock.now_ms()))

    def _each(self, commands: Sequence[Asked], origin: Origin) -> tuple[Result, ...]:
        """One result for each command. What comes past a full reply, or past its time, is refused."""
        if len(commands) == 1:
            return tuple(self.owner.execute_simple(commands, origin)) or (self._one(commands[0], origin),)
        results: list[Result] = []
        carried = 0
        has_reads = any(isinstance(command, Read) for command in commands)
        budget = _TimeBudget(limits.REQUEST_SECONDS_MAX)
        while (at := len(results)) < len(commands):
            if time.monotonic() > budget.until_s and budget.is_spent():
                late = self._refusal(Busy("this batch has taken its time: send the rest again"), origin)
                return (*results, *[late] * (len(commands) - at))
            if carried < limits.REPLY_BYTES_MAX and (
                answers := self.owner.execute_simple(commands[at : at + _RUN], origin)
            ):
                results += answers
                carried += len(answers) * limits.SIMPLE_RESULT_BYTES
            elif carried >= limits.REPLY_BYTES_MAX and isinstance(commands[at], Read):
                results.append(self._refusal(Busy("the reply is full: ask for the rest again"), origin))
            else:
                results.append(result := self._one(commands[at], origin))
                if has_reads:
                    carried += size_of(result)
        return tuple(results)

    def without_answers(self, response: Response) -> Response:
        """The response in whose place another does not fit in a frame."""
        error = OutcomeUnknown("the results do not fit in one frame: see what took effect, and ask for less at a time")
        refusal = Refusal.of(error, self.owner.revision)
        results = tuple(refusal if isinstance(each, CommandResult) else each for each in response.results)
        return Response(response.request_id, results)

    def _one(self, command: Asked, origin: Origin) -> Result:
        if isinstance(command, InvalidArgument):
            return self._refusal(command, origin)
        try:
            return self.owner.execute(command, origin)
        except StepwellError as error:
            return self._refusal(error, origin)

    def _together(self, commands: Sequence[Asked], origin: Origin) -> tuple[Result, ...]:
        writes = [command for command in commands if isinstance(command, Write)]
        if len(writes) < len(commands):
            wrong = next((each for each in commands if isinstance(each, InvalidArgument)), None)
            return (self._refusal(wrong or InvalidArgument("a transaction has no reads: read before it"), origin),)
        try:
            return tuple(self.owner.execute_all(writes, origin))
        except StepwellError as error:
            return (self._refusal(error, origin),)

    def _refusal(self, error: StepwellError, origin: Origin) -> Refusal:
        if isinstance(error, OutOfScope) or error.details.get("cause") == OutOfScope.__name__:
            self._log.warning("request.out_of_scope", session_id=origin.session_id, reason=error.message)
        elif isinstance(error, ManagerFault):
            self._log.error("request.faulted", session_id=origin.session_id, exc_info=error)
        return Refusal.of(error, self.owner.revision)
