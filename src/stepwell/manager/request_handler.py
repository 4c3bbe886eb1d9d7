"""From a request to its response: scope, execution, and refusals.

A `Request` is a batch: each command takes effect or is refused by itself, in order. A `TransactionRequest` is atomic:
all of its commands take effect at one revision, or none does. Either way a refusal is a normal result and not an
exception of the manager; the client raises it again on its side.

Runs of simple commands go through `StateOwner.execute_simple`, which does the same as `execute` in a third of the time.
A batch is bounded three times, so that one request cannot hold the loop: by the number of its commands (checked by the
codec), by the bytes of its response, and by the processor time that it takes. Past a bound the rest of the batch is
refused with `Busy` and has no effect, so that the client may send the rest again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from stepwell import limits
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
from stepwell.manager.state_owner import MANAGER, StateClock, StateOwner
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
from stepwell.telemetry import Logger

Asked = Command[Reply] | InvalidArgument
"""A decoded command, or the error that says why it could not be decoded."""

Uploaded = Mapping[int, BodyRef | StepwellError]
"""The uploads of a connection by number: the digest and size of each body, or the refusal of its offer."""


class _TimeBudget:
    """Seconds of processor time of the loop's thread.

    Processor time is the right measure, because a busy machine may keep the thread from running and the request is not
    to blame. But reading it is a system call. Therefore the wall clock, which is cheaper and never behind, is asked
    first, and `is_spent` only once `until_s` has passed.
    """

    __slots__ = ("_work_until_s", "until_s")

    def __init__(self, seconds: float) -> None:
        self.until_s = time.monotonic() + seconds
        self._work_until_s = time.thread_time() + seconds

    def is_spent(self) -> bool:
        """Return True if the thread has worked for longer than the budget."""
        return time.thread_time() > self._work_until_s


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
        self.served = 0

    def respond(
        self, message: Request | TransactionRequest | PartlyDecodedRequest, session: SessionRecord, uploads: Uploaded
    ) -> Response:
        """Execute the commands of a message in the scope of a session, and return the response.

        `uploads` are the large bodies that the connection has uploaded since its last request, by number. No
        `StepwellError` leaves this method: refusals become results. `StateBroken` does, because the state must not be
        served any more.
        """
        self.served += 1
        origin = Origin(session.session_id, self.clock.now_ms(), session.projects, uploads)
        atomic = isinstance(message, TransactionRequest) or (
            isinstance(message, PartlyDecodedRequest) and message.atomic
        )
        results = (
            self._execute_transaction(message.commands, origin)
            if atomic
            else self._execute_batch(message.commands, origin)
        )
        return Response(message.request_id, results)

    def origin(self, session: SessionRecord) -> Origin:
        """Return the origin of a session's commands: its id, its scope and the present time."""
        return Origin(session.session_id, self.clock.now_ms(), session.projects)

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

    def _execute_batch(self, commands: Sequence[Asked], origin: Origin) -> tuple[Result, ...]:
        """Execute a batch, and return one result per command.

        Reads beyond a full reply, and all commands beyond the time budget, are refused. Writes are executed even when
        the reply is full, because their results are small and a client would have to find out which of them took
        effect.
        """
        if len(commands) == 1:
            return tuple(self.owner.execute_simple(commands, origin)) or (self._execute_one(commands[0], origin),)
        results: list[Result] = []
        carried = 0
        has_reads = any(isinstance(command, Read) for command in commands)
        budget = _TimeBudget(limits.REQUEST_SECONDS_MAX)
        while (at := len(results)) < len(commands):
            if time.monotonic() > budget.until_s and budget.is_spent():
                late = self._refusal(Busy("this batch has taken its time: send the rest again"), origin)
                return (*results, *[late] * (len(commands) - at))
            if carried < limits.REPLY_BYTES_MAX and (
                answers := self.owner.execute_simple(commands[at : at + limits.COMMANDS_PER_RUN], origin)
            ):
                results += answers
                carried += len(answers) * limits.SIMPLE_RESULT_BYTES
            elif carried >= limits.REPLY_BYTES_MAX and isinstance(commands[at], Read):
                results.append(self._refusal(Busy("the reply is full: ask for the rest again"), origin))
            else:
                results.append(result := self._execute_one(commands[at], origin))
                if has_reads:
                    carried += size_of(result)
        return tuple(results)

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

        Violations of scope and faults of the manager are logged, because both need attention.
        """
        if isinstance(error, OutOfScope) or error.details.get("cause") == OutOfScope.__name__:
            self._log.warning("request.out_of_scope", session_id=origin.session_id, reason=error.message)
        elif isinstance(error, ManagerFault):
            self._log.error("request.faulted", session_id=origin.session_id, exc_info=error)
        return Refusal.of(error, self.owner.revision)
