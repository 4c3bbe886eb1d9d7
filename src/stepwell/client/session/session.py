"""What a client's services share: the way to the manager, the default project, the leases that it holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, cast

from stepwell import limits
from stepwell.client.session.body_reader import BodyReader
from stepwell.client.session.calls import Call, LargeBody
from stepwell.client.session.channel import Channel
from stepwell.client.session.pending_requests import RequestFactory
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

R = TypeVar("R")


class Session:
    """Safe from any number of threads."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.bodies = BodyReader(channel)
        self.leases: dict[str, int] = {}  # by plan; what `start_*` gave to this session
        channel.on_fork(self.leases.clear)
        channel.connections.on_expiry(self.leases.clear)

    def __reduce__(self) -> tuple[object, ...]:
        raise InvalidArgument("services, contexts and batches stay in their process: send the client, or its address")

    def project_or_default(self, given: str | None) -> str:
        """The project to use: the one given, or the only one there is."""
        if given is not None:
            return given
        projects = self.channel.projects
        if projects is None or len(projects) != 1:
            raise InvalidArgument("name a project: project= may be left out only in a session that has exactly one")
        return projects[0]

    def count_tokens(self, body: bytes | memoryview) -> int:
        """The tokens of a body, in the encoding of the manager."""
        return counter(self.channel.welcome.encoding).count(bytes(body))

    def lease_token(self, plan_id: str, given: int | None) -> int | None:
        """The lease to show: the one given, or the one remembered."""
        return self.leases.get(plan_id) if given is None else given

    def perform(self, call: Call[R]) -> R:
        """Send one command and finish it, or raise its refusal."""
        for _ in range(limits.ASK_AGAIN_MAX):
            (result,) = results_of(self.channel.exchange(*request_of((call,))), 1)
            if isinstance(result, Refusal):
                raise result.error()
            try:
                return call.finish(result)
            except BodyGone:  # it was moved, and its old place given up, between the answer and now
                continue
        raise moved_too_often()

    def perform_each(self, calls: Sequence[Call[R]]) -> list[tuple[R | StepwellError, int]]:
        """Send many commands in one frame: for each its result or its error, and its revision."""
        results = results_of(self.channel.exchange(*request_of(calls)), len(calls))
        return [self._finish(call, result) for call, result in zip(calls, results, strict=True)]

    def perform_many(self, groups: Iterable[Sequence[Call[R]]]) -> Iterator[R | StepwellError]:
        """Send groups of commands, a frame each: for each command its result or its error."""
        sent: deque[Sequence[Call[R]]] = deque()

        def requests() -> Iterator[tuple[RequestFactory, Sequence[LargeBody]]]:
            for group in groups:
                sent.append(group)
                yield request_of(group)

        for answer in self.channel.stream(requests()):
            calls = sent.popleft()
            results = results_of(answer, len(calls))
            for call, result in zip(calls, results, strict=True):
                yield self._finish(call, result)[0]

    def perform_together(self, calls: Sequence[Call[R]]) -> list[tuple[R | StepwellError, int]]:
        """Send many commands as one transaction: all results at one revision, or its refusal raised."""
        results = transaction_results(self.channel.exchange(*transaction_of(calls)))
        return [self._finish(call, result) for call, result in zip(calls, results, strict=True)]

    def status(self) -> Status:
        """How the manager is."""
        return status_of(self.channel.ask(AskStatus))

    def open_view(self, projects: tuple[str, ...]) -> ViewOpened:
        """The catalogues of some projects at one revision, or the refusal, raised."""
        answer = self.channel.ask(lambda number: AskView(number, projects))
        if isinstance(answer, ViewOpened):
            return answer
        (result,) = results_of(answer, 1)
        raise result.error() if isinstance(result, Refusal) else ProtocolError("the manager answered with a result")

    def _finish(self, call: Call[R], result: Result) -> tuple[R | StepwellError, int]:
        if isinstance(result, Refusal):
            return result.error(), result.revision
        try:
            return call.finish(result), result.revision
        except BodyGone:
            pass
        try:
            return self.perform(call), result.revision
        except StepwellError as error:
            return error, result.revision


def results_of(answer: ManagerMessage, count: int | None) -> tuple[Result, ...]:
    """The results in an answer, as many as there should be."""
    if not isinstance(answer, Response):
        raise ProtocolError(f"the manager answered with {type(answer).__name__}")
    if count is not None and len(answer.results) != count:
        first = answer.results[0]
        raise first.error() if isinstance(first, Refusal) else ProtocolError(f"{len(answer.results)} results came")
    return answer.results


def moved_too_often() -> BodyGone:
    """Whoever compacts is quicker than we are."""
    return BodyGone(f"a body has moved {limits.ASK_AGAIN_MAX} times between an answer and its reading")


def transaction_results(answer: ManagerMessage) -> tuple[Result, ...]:
    """The results of a transaction, or its refusal, raised."""
    results = results_of(answer, None)
    if isinstance(results[0], Refusal):
        raise results[0].error()
    return results


def status_of(answer: ManagerMessage) -> Status:
    """What was asked for with `AskStatus`."""
    if not isinstance(answer, Status):
        raise ProtocolError(f"the manager answered with {type(answer).__name__}")
    return answer


def request_of(calls: Sequence[Call[R]]) -> tuple[RequestFactory, Sequence[LargeBody]]:
    """What makes the request of these calls, and the bodies that go before it."""
    uploads: list[LargeBody] = []
    commands = _commands(calls, uploads)
    return lambda number, answered: Request(number, commands, answered), uploads


def transaction_of(calls: Sequence[Call[R]]) -> tuple[RequestFactory, Sequence[LargeBody]]:
    """What makes the transaction of these calls, and the bodies that go before it."""
    uploads: list[LargeBody] = []
    writes = cast("tuple[AnyWrite, ...]", _commands(calls, uploads))
    return lambda number, answered: TransactionRequest(number, writes, answered), uploads


def _commands(calls: Sequence[Call[R]], uploads: list[LargeBody]) -> tuple[AnyCommand, ...]:
    """The union is closed: a test holds that every command is a member."""
    commands = tuple([call.prepare(uploads) for call in calls])
    if len(uploads) > limits.UPLOADS_PER_REQUEST_MAX:
        raise InvalidArgument(
            f"{len(uploads)} large bodies are too many at once: send at most {limits.UPLOADS_PER_REQUEST_MAX} in one"
        )
    return cast("tuple[AnyCommand, ...]", commands)
