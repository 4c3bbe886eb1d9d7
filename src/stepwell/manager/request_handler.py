"""From a request to its response: scope, execution, and refusals.

A `Request` is a batch: each command takes effect or is refused by itself, in order. A `TransactionRequest` is atomic:
all of its commands take effect at one revision, or none does. Either way a refusal is a normal result and not an
exception of the manager; the client raises it again on its side.

Runs of simple commands go through `StateOwner.execute_simple`, which does the same as `execute` in a third of the time.
A batch is bounded by the number of its commands (checked by the codec) and by the bytes of its response: reads that do
not fit are refused with `Busy`. A large batch does not hold the loop, because it is executed in slices: see
`LargeRequest` here and `large_requests`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from stepwell import limits
from stepwell.clock import StateClock
from stepwell.domain.commands import Command, Read, Write
from stepwell.domain.replies import (
    Reply,
    TierMetrics,
)
from stepwell.domain.tiers.commands import GetMetrics
from stepwell.domain.tiers.model import BodyRef
from stepwell.domain.verdict import Origin
from stepwell.errors import Busy, InvalidArgument, ManagerFault, OutcomeUnknown, OutOfScope, StepwellError
from stepwell.manager.sessions import SessionRecord
from stepwell.manager.state_owner import MANAGER, StateOwner
from stepwell.protocol.codec import PartlyDecodedRequest, size_of
from stepwell.protocol.messages import (
    AskView,
    CommandResult,
    ReadsReported,
    Refusal,
    Request,
    Response,
    Result,
    TransactionRequest,
    ViewOpened,
)
from stepwell.telemetry import LimitedLogger, Logger

Asked = Command[Reply] | InvalidArgument
"""A decoded command, or the error that says why it could not be decoded."""

AnyRequest = Request | TransactionRequest | PartlyDecodedRequest
"""A message with commands."""

Uploaded = Mapping[int, BodyRef | StepwellError]
"""The uploads of a connection by number: the digest and size of each body, or the refusal of its offer."""


class TimeBudget:
    """Seconds of processor time of the loop's thread.

    Processor time is the right measure, because a busy machine may keep the thread from running and the request is not
    to blame. But reading it is a system call. Therefore the wall clock, which is cheaper and never behind, is asked
    first.
    """

    __slots__ = ("_until_s", "_work_until_s")

    def __init__(self, seconds: float) -> None:
        self._until_s = time.monotonic() + seconds
        self._work_until_s = time.thread_time() + seconds

    def is_spent(self) -> bool:
        """Return True if the thread has worked for longer than the budget."""
        return time.monotonic() > self._until_s and time.thread_time() > self._work_until_s


class RequestExecution:
    """A request under way: its commands, and the results of those that have been executed.

    The results are those of the first commands, in order; the execution continues behind them. The commands of a
    transaction are executed in one step, so that its results are complete or not begun.
    """

    __slots__ = ("carried_bytes", "commands", "has_reads", "is_atomic", "only_reads", "request_id", "results")

    def __init__(self, message: AnyRequest, results: Sequence[Result] = ()) -> None:
        self.request_id = message.request_id
        self.commands: Sequence[Asked] = message.commands
        self.is_atomic = isinstance(message, TransactionRequest) or (
            isinstance(message, PartlyDecodedRequest) and message.atomic
        )
        self.results: list[Result] = [*results]
        reads = sum(isinstance(command, Read) for command in self.commands)
        self.has_reads = reads > 0  # only then does the size of the reply have to be watched
        self.only_reads = reads == len(self.commands)
        self.carried_bytes = sum(map(size_of, results)) if self.has_reads else 0

    @property
    def is_complete(self) -> bool:
        """True if no command is left. A refused transaction has a single result."""
        return len(self.results) >= len(self.commands) or (self.is_atomic and bool(self.results))

    @property
    def response(self) -> Response:
        """The response, once the execution is complete."""
        return Response(self.request_id, tuple(self.results))


class LargeRequest(RequestExecution):
    """A large request of a connection, and the part of its results that the store has.

    `has_effect`: a command has changed the state, so that the reply has to be stored.
    """

    __slots__ = ("has_effect", "session", "stored_parts", "stored_results")

    def __init__(self, message: AnyRequest, session: SessionRecord, results: Sequence[Result] = ()) -> None:
        super().__init__(message, results)
        self.session = session
        self.has_effect = False
        self.stored_parts = 0
        self.stored_results = 0


class RequestHandler:
    """Executes the requests of clients, one at a time, in the order in which it is called.

    The loop owns the one instance and calls it in its own thread. `owner` is the state, `clock` the source of all
    timestamps in it. Commands that no client sends are issued by `housekeeping` instead.
    """

    def __init__(self, owner: StateOwner, clock: StateClock, log: Logger) -> None:
        self.owner = owner
        self.clock = clock
        self.now_s = clock.now_s
        self._log = log
        self._peer_log = LimitedLogger(log)  # for events that peers cause
        self.served = 0
        self.index_hits = self.index_misses = 0  # reads that clients made without a request, and those that became one

    def respond(self, message: AnyRequest, session: SessionRecord, uploads: Uploaded) -> Response:
        """Execute the commands of a message in the scope of a session, and return the response.

        `uploads` are the large bodies that the connection has uploaded since its last request, by number. No
        `StepwellError` leaves this method: refusals become results. `StateBroken` does, because the state must not be
        served any more.
        """
        self.served += 1
        origin = Origin(session.session_id, self.clock.now_ms(), session.projects, uploads, session.writer)
        commands = message.commands
        if len(commands) == 1 and isinstance(message, Request):  # the usual case
            results = self.owner.execute_simple(commands, origin) or (self._execute_one(commands[0], origin),)
            return Response(message.request_id, tuple(results))
        execution = RequestExecution(message)
        self._advance(execution, origin, None)
        return execution.response

    def advance(
        self, execution: RequestExecution, session: SessionRecord, uploads: Uploaded, budget: TimeBudget | None
    ) -> None:
        """Execute further commands of a request until it is complete or the time is spent.

        At least one step is executed: a run of simple commands, one other command, or a whole transaction.
        """
        if not execution.results:
            self.served += 1
        origin = Origin(session.session_id, self.clock.now_ms(), session.projects, uploads, session.writer)
        self._advance(execution, origin, budget)

    def count_reads(self, message: ReadsReported, session: SessionRecord) -> None:
        """Count the reads that a client made without a request. The report is no request: it has no answer."""
        self.owner.count_reads(message.reads, self.origin(session))
        self.index_hits += sum([count for _, _, count in message.reads])
        self.index_misses += message.misses

    def origin(self, session: SessionRecord) -> Origin:
        """Return the origin of a session's commands: its id, its scope and the present time."""
        return Origin(session.session_id, self.clock.now_ms(), session.projects, writer=session.writer)

    def open_view(
        self, message: AskView, session: SessionRecord, epoch: str, now_s: float
    ) -> ViewOpened | Response | None:
        """Return a view of some projects, a response with the refusal, or None while their catalogues are being listed.

        None asks the caller to try again in a later turn (see `deferred`).
        """
        origin = self.origin(session)
        try:
            origin.require(message.projects)
            ends = self.owner.open_view(message.projects, origin, now_s)
        except StepwellError as error:
            return Response(message.request_id, (self._refusal(error, origin),))
        return None if ends is None else ViewOpened(message.request_id, epoch, self.revision, tuple(ends))

    def view_timeout(self, message: AskView) -> Response:
        """Return the refusal of a view that could not be opened in time."""
        error = Busy("no room could be made for the catalogue of a project in time: try again later")
        return Response(message.request_id, (Refusal.of(error, self.revision),))

    @property
    def revision(self) -> int:
        """The revision of the state, committed or not."""
        return self.owner.revision

    def metrics(self, session: SessionRecord) -> TierMetrics:
        """Return the totals of the tiers, restricted to the session's projects."""
        reply = self.owner.execute(GetMetrics(), Origin(MANAGER, self.clock.now_ms(), session.projects)).reply
        assert isinstance(reply, TierMetrics)
        return reply

    def _advance(self, execution: RequestExecution, origin: Origin, budget: TimeBudget | None) -> None:
        """Execute the steps of a request that the budget allows.

        Reads beyond a full reply are refused. Writes are executed even when the reply is full, because their results
        are small and a client would have to find out which of them took effect.
        """
        commands, results = execution.commands, execution.results
        if execution.is_atomic:
            results += self._execute_transaction(commands, origin)
            return
        while (at := len(results)) < len(commands):
            if execution.carried_bytes < limits.REPLY_BYTES_MAX and (
                answers := self.owner.execute_simple(commands[at : at + limits.COMMANDS_PER_RUN], origin)
            ):
                results += answers
                execution.carried_bytes += len(answers) * limits.SIMPLE_RESULT_BYTES
            elif execution.carried_bytes >= limits.REPLY_BYTES_MAX and isinstance(commands[at], Read):
                results.append(self._refusal(Busy("the reply is full: ask for the rest again"), origin))
            else:
                results.append(result := self._execute_one(commands[at], origin))
                if execution.has_reads:
                    execution.carried_bytes += size_of(result)
            if budget is not None and budget.is_spent():
                return

    def with_unknown_outcomes(self, response: Response) -> Response:
        """Return the response that replaces one that does not fit in a frame.

        The commands may have taken effect, so their results become `OutcomeUnknown`; refusals stay as they are.
        """
        error = OutcomeUnknown(
            "the results do not fit in one frame: read the state to see what took effect, and ask for less at a time"
        )
        refusal = Refusal.of(error, self.owner.revision)
        results = tuple(refusal if isinstance(each, CommandResult) else each for each in response.results)
        return Response(response.request_id, results)

    def _execute_one(self, command: Asked, origin: Origin) -> Result:
        """Execute one command, and return its result or its refusal."""
        if isinstance(command, InvalidArgument):
            return self._refusal(command, origin)
        try:
            return self.owner.execute(command, origin)
        except StepwellError as error:
            return self._refusal(error, origin)

    def _execute_transaction(self, commands: Sequence[Asked], origin: Origin) -> tuple[Result, ...]:
        """Execute a transaction, and return one result per command, or the one refusal of all of them."""
        writes = [command for command in commands if isinstance(command, Write)]
        if len(writes) < len(commands):
            wrong = next((each for each in commands if isinstance(each, InvalidArgument)), None)
            return (self._refusal(wrong or InvalidArgument("a transaction has no reads: read before it"), origin),)
        try:
            return tuple(self.owner.execute_all(writes, origin))
        except StepwellError as error:
            return (self._refusal(error, origin),)

    def _refusal(self, error: StepwellError, origin: Origin) -> Refusal:
        """Return an error as a refusal.

        Violations of scope and faults of the manager are logged. The first are no warnings, because the caller gets
        them as `OutOfScope`, and may expect them.
        """
        if isinstance(error, OutOfScope) or error.details.get("cause") == OutOfScope.__name__:
            self._peer_log.info("request.out_of_scope", session_id=origin.session_id, reason=error.message)
        elif isinstance(error, ManagerFault):
            self._log.error("request.faulted", session_id=origin.session_id, exc_info=error)
        return Refusal.of(error, self.owner.revision)
