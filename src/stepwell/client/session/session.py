"""`Session`: performs the calls of a client's services, and holds the state that the services share.

A call becomes a request with a list of commands. There are four ways to send calls: one alone (`perform`), several in
one frame with an outcome each (`perform_each`), many in a stream of frames (`perform_many`), and several as one
transaction (`perform_together`).

A reply may refer to bodies in shared memory. The manager may move a body after it has answered, and then `Call.finish`
raises `BodyGone`. The session asks again, because only the manager knows the new place: it sends a call that reads
again, and in place of one that writes another one that reads (`Call.retried`).

The module's functions translate between calls and messages. They do no I/O, because the asynchronous caller uses them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, cast

from stepwell import limits
from stepwell.client.session.body_reader import BodyReader
from stepwell.client.session.calls import Call, LargeBody
from stepwell.client.session.channel import Channel
from stepwell.client.session.delivery import RequestFactory
from stepwell.client.session.tokens import counter
from stepwell.domain.commands import AnyCommand, AnyWrite
from stepwell.errors import BodyGone, InvalidArgument, ProtocolError, StepwellError
from stepwell.protocol.messages import (
    AskStatus,
    AskView,
    ManagerMessage,
    Refusal,
    Request,
    Response,
    Result,
    Status,
    TransactionRequest,
    ViewOpened,
)
from stepwell.text import plural

R = TypeVar("R")


class Session:
    """The state that all services of one client share: channel, body reader, default project and leases.

    The client owns it. Any number of threads may use it. `leases` maps plans to the tokens that this session received;
    it is emptied in a forked child and when the manager has forgotten the session, because the leases are lost then.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.bodies = BodyReader(channel)
        self.reads = channel.reads
        projects = channel.projects
        self.only_project = projects[0] if projects is not None and len(projects) == 1 else ""  # no project has it
        self.leases = channel.rules.leases

    def __reduce__(self) -> tuple[object, ...]:
        raise InvalidArgument("services, contexts and batches stay in their process: send the client, or its address")

    def new_id(self) -> str:
        """Return an id that nothing else has, for what a command creates."""
        return self.channel.environment.new_id()

    def project_or_default(self, given: str | None) -> str:
        """Return the given project or, for None, the only project of this session."""
        if given is not None:
            return given
        if not self.only_project:
            raise InvalidArgument("name a project: project= may be left out only in a session that has exactly one")
        return self.only_project

    def count_tokens(self, body: bytes | memoryview) -> int:
        """Return the number of tokens of a body, in the encoding that the manager's budget uses."""
        return counter(self.channel.welcome.encoding).count(bytes(body))

    def lease_token(self, plan_id: str, given: int | None) -> int | None:
        """Return the given lease token or, for None, the one that this session remembers for the plan."""
        return self.leases.get(plan_id) if given is None else given

    def perform(self, call: Call[R]) -> R:
        """Send one command and return its result, or raise the manager's refusal.

        A result whose body was moved is asked for again, a bounded number of times.
        """
        for _ in range(limits.MOVED_BODY_ATTEMPTS_MAX):
            (result,) = results_of(self.channel.exchange(*request_for((call,))), 1)
            if isinstance(result, Refusal):
                raise result.error()
            try:
                return call.finish(result)
            except BodyGone:  # the manager has moved the body and freed its old place since the answer
                call = call.retried(result)
        raise body_moved_error()

    def perform_each(self, calls: Sequence[Call[R]]) -> list[tuple[R | StepwellError, int]]:
        """Send several commands in one frame; return for each its result or error, and its revision."""
        results = results_of(self.channel.exchange(*request_for(calls)), len(calls))
        return [self._finish(call, result) for call, result in zip(calls, results, strict=True)]

    def perform_many(self, groups: Iterable[Sequence[Call[R]]]) -> Iterator[R | StepwellError]:
        """Send groups of commands, each in a frame of its own; yield for each command its result or error.

        The next group is built and sent while the manager executes the previous one.
        """
        sent: deque[Sequence[Call[R]]] = deque()

        def requests() -> Iterator[tuple[RequestFactory, Sequence[LargeBody]]]:
            for group in groups:
                sent.append(group)
                yield request_for(group)

        for answer in self.channel.stream(requests()):
            calls = sent.popleft()
            results = results_of(answer, len(calls))
            for call, result in zip(calls, results, strict=True):
                yield self._finish(call, result)[0]

    def perform_together(self, calls: Sequence[Call[R]]) -> list[tuple[R | StepwellError, int]]:
        """Send several commands as one transaction; return all results, or raise the refusal of the transaction."""
        results = transaction_results(self.channel.exchange(*transaction_for(calls)))
        return [self._finish(call, result) for call, result in zip(calls, results, strict=True)]

    def status(self) -> Status:
        """Return the status of the manager."""
        return status_of(self.channel.ask(AskStatus))

    def open_view(self, projects: tuple[str, ...]) -> ViewOpened:
        """Return the ends of the projects' catalogues at one revision, or raise the manager's refusal."""
        answer = self.channel.ask(lambda number: AskView(number, projects))
        if isinstance(answer, ViewOpened):
            return answer
        (result,) = results_of(answer, 1)
        raise result.error() if isinstance(result, Refusal) else ProtocolError("the manager answered with a result")

    def _finish(self, call: Call[R], result: Result) -> tuple[R | StepwellError, int]:
        """Return the result or the error of one command, and its revision; perform it again if its body was moved."""
        if isinstance(result, Refusal):
            return result.error(), result.revision
        try:
            return call.finish(result), result.revision
        except BodyGone:
            again = call.retried(result)
        try:
            return self.perform(again), result.revision
        except StepwellError as error:
            return error, result.revision


def results_of(answer: ManagerMessage, count: int | None) -> tuple[Result, ...]:
    """Return the results in an answer, and check that there are `count` (None: any number).

    The manager refuses a whole request with a single refusal, which is raised here.
    """
    if type(answer) is not Response:
        raise ProtocolError(f"the manager answered with {type(answer).__name__}")
    results = answer.results
    if count is not None and len(results) != count:
        first = results[0]
        raise (first.error() if isinstance(first, Refusal) else ProtocolError(f"{plural(len(results), 'result')} came"))
    return results


def body_moved_error() -> BodyGone:
    """Return the error for a body that the manager has moved after each of many answers."""
    return BodyGone(f"a body has moved {limits.MOVED_BODY_ATTEMPTS_MAX} times between an answer and its reading")


def transaction_results(answer: ManagerMessage) -> tuple[Result, ...]:
    """Return the results of a transaction, or raise its refusal."""
    results = results_of(answer, None)
    if isinstance(results[0], Refusal):
        raise results[0].error()
    return results


def status_of(answer: ManagerMessage) -> Status:
    """Return the answer to `AskStatus`, or raise `ProtocolError` for any other message."""
    if not isinstance(answer, Status):
        raise ProtocolError(f"the manager answered with {type(answer).__name__}")
    return answer


def request_for(calls: Sequence[Call[R]]) -> tuple[RequestFactory, Sequence[LargeBody]]:
    """Return a factory of the request with these calls, and the bodies to upload before it.

    A factory is needed because the number of a request is assigned only when it is first sent.
    """
    if len(calls) == 1 and not calls[0].has_large:  # the usual case
        single = cast("tuple[AnyCommand]", (calls[0].command,))
        return lambda number, answered: Request(number, single, answered), ()
    uploads: list[LargeBody] = []
    commands = _commands(calls, uploads)
    return lambda number, answered: Request(number, commands, answered), uploads


def transaction_for(calls: Sequence[Call[R]]) -> tuple[RequestFactory, Sequence[LargeBody]]:
    """Return a factory of the transaction with these calls, and the bodies to upload before it."""
    uploads: list[LargeBody] = []
    writes = cast("tuple[AnyWrite, ...]", _commands(calls, uploads))
    return lambda number, answered: TransactionRequest(number, writes, answered), uploads


def _commands(calls: Sequence[Call[R]], uploads: list[LargeBody]) -> tuple[AnyCommand, ...]:
    """Return the commands of the calls, and append their large bodies to `uploads`.

    It raises `InvalidArgument` if one request would have too many uploads.
    """
    commands = tuple([call.prepare(uploads) for call in calls])
    if len(uploads) > limits.UPLOADS_PER_REQUEST_MAX:
        raise InvalidArgument(
            f"{plural(len(uploads), 'large body', 'large bodies')} are too many at once: send at most "
            f"{limits.UPLOADS_PER_REQUEST_MAX} in one"
        )
    return cast("tuple[AnyCommand, ...]", commands)  # a test checks that each command is a member of that union
