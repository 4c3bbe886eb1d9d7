"""One definition of each method, and four ways to call it: answered, awaited, or deferred, in a batch or a transaction.

A service's method builds a `Call`: a command, and what to make of its answer. `method` turns it into what its
service needs: on an `Answering` service `store(...)` gives its result, on an `Awaiting` one what is awaited for it, on
a `Deferring` one a `Pending` of it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

from msgspec import Struct
from msgspec.structs import replace

from stepwell.domain.commands import Command
from stepwell.domain.replies import AnyReply, Reply
from stepwell.errors import InvalidArgument, PartlyRefused, StepwellError
from stepwell.protocol.handles import Handle

if TYPE_CHECKING:
    from stepwell.client.session.session import Session

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
ReplyT = TypeVar("ReplyT", bound=Reply)
ReplyT_co = TypeVar("ReplyT_co", bound=Reply, covariant=True)
T = TypeVar("T")


class NoEviction(Struct, frozen=True):
    """A body for which no fragment goes down: where there is no room for it, its command is refused."""

    body: bytes


LargeBody = bytes | memoryview | NoEviction
"""A body that is uploaded beside the request that refers to it."""


class Answered(Protocol[ReplyT_co]):
    """What came back: the reply, its revision and where the bodies are that it refers to."""

    @property
    def reply(self) -> ReplyT_co: ...
    @property
    def revision(self) -> int: ...
    @property
    def handles(self) -> dict[bytes, Handle]: ...


class Call(Generic[R_co]):
    """A command, and what to make of its answer. `large` are the bodies of its fields that no frame can carry."""

    __slots__ = ("_large", "command", "finish")

    def __init__(
        self,
        command: Command[ReplyT],
        finish: Callable[[Answered[ReplyT]], R_co],
        large: Mapping[str, LargeBody] | None = None,
    ) -> None:
        self.command: Command[Reply] = command
        # A command's reply is of its own type; the manager's answer, of any.
        self.finish = cast("Callable[[Answered[AnyReply]], R_co]", finish)
        self._large = large

    def bound(self, uploads: list[LargeBody]) -> Command[Reply]:
        """The command as it is sent, its large bodies added to those that are uploaded before it."""
        if not self._large:
            return self.command
        numbers = {field: len(uploads) + index for index, field in enumerate(self._large)}
        uploads.extend(self._large.values())
        return replace(self.command, **numbers)


class Pending(Generic[R_co]):
    """A result that is there once its batch or transaction has been sent."""

    def __init__(self) -> None:
        self._outcome: object = None
        self._revision: int | None = None
        self._done = False

    def settle(self, outcome: object, revision: int | None = None) -> None:
        self._outcome, self._revision, self._done = outcome, revision, True

    def result(self) -> R_co:
        """The result, or the refusal, raised."""
        if not self._done:
            raise InvalidArgument("this is not sent yet: leave the `with` block first")
        if isinstance(self._outcome, StepwellError):
            raise self._outcome
        return cast(R_co, self._outcome)

    @property
    def revision(self) -> int:
        """The revision at which it took effect, or, for a read, which it saw."""
        self.result()
        assert self._revision is not None
        return self._revision


class AcceptsCalls(Protocol):
    """A batch or a transaction: takes calls now, sends them later."""

    def enlist(self, call: Call[R]) -> Pending[R]: ...


class AsyncPerformer(Protocol):
    """Performs calls for whoever awaits them. `given` is what the call is built from, which may take a while."""

    def perform(self, build: Callable[[], Call[R]], given: Sequence[object]) -> Coroutine[object, None, R]: ...


def partly_refused(outcomes: Sequence[object]) -> PartlyRefused:
    """The error for many of which some were refused."""
    refused = [each for each in outcomes if isinstance(each, StepwellError)]
    return PartlyRefused(
        f"{len(refused)} of {len(outcomes)} were refused, the others took effect; the first: {refused[0].message}",
        outcomes,
    )


class Service:
    """What a service's methods can rely on."""

    def __init__(self, session: Session) -> None:
        self.session = session


class BlockingService(Service):
    """A service whose methods wait for their answer."""


class BufferedService(Service):
    """A service whose methods join a batch or a transaction."""

    def __init__(self, session: Session, bundle: AcceptsCalls) -> None:
        super().__init__(session)
        self.bundle = bundle


class AsyncService(Service):
    """A service whose methods are awaited."""

    def __init__(self, session: Session, way: AsyncPerformer) -> None:
        super().__init__(session)
        self.way = way


class method(Generic[P, R]):  # noqa: N801 - it is used as a decorator, like `property`
    """Makes of a function that builds a `Call` a method that performs or defers it."""

    def __init__(self, build: Callable[Concatenate[T, P], Call[R]]) -> None:
        self.call = cast("Callable[Concatenate[Service, P], Call[R]]", build)  # alone, for whoever sends many
        self._name = build.__name__
        self.__doc__ = build.__doc__
        self._signature = _signature(build)

    @overload
    def __get__(self, service: None, owner: type) -> Self: ...
    @overload
    def __get__(self, service: BlockingService, owner: type) -> Callable[P, R]: ...
    @overload
    def __get__(self, service: BufferedService, owner: type) -> Callable[P, Pending[R]]: ...
    @overload
    def __get__(self, service: AsyncService, owner: type) -> Callable[P, Coroutine[object, None, R]]: ...

    def __get__(
        self, service: Service | None, owner: type
    ) -> Self | Callable[P, R] | Callable[P, Pending[R]] | Callable[P, Coroutine[object, None, R]]:
        if service is None:
            return self
        build = self.call
        if isinstance(service, BufferedService):
            bundle = service.bundle

            def deferred(*args: P.args, **kwargs: P.kwargs) -> Pending[R]:
                return bundle.enlist(build(service, *args, **kwargs))

            return self._bind(service, deferred)
        if isinstance(service, AsyncService):
            way = service.way

            async def awaited(*args: P.args, **kwargs: P.kwargs) -> R:
                return await way.perform(functools.partial(build, service, *args, **kwargs), args)

            return self._bind(service, awaited)
        perform = service.session.perform

        def answered(*args: P.args, **kwargs: P.kwargs) -> R:
            return perform(build(service, *args, **kwargs))

        return self._bind(service, answered)

    def _bind(self, service: Service, bound: Callable[P, T]) -> Callable[P, T]:
        """Leave the finished method on its service: the next call finds it there, at no cost."""
        functools.update_wrapper(bound, self.call)
        del vars(bound)["__wrapped__"]  # `help` should show what it gives, not the call that it builds
        vars(bound)["__signature__"] = self._signature
        vars(service)[self._name] = bound
        return bound


def _signature(build: Callable[..., object]) -> inspect.Signature:
    """As the caller sees it: without `self`, and with what the call comes to."""
    built = inspect.signature(build)
    result = str(built.return_annotation).removeprefix("Call[").removesuffix("]")
    return built.replace(parameters=[*built.parameters.values()][1:], return_annotation=result)
