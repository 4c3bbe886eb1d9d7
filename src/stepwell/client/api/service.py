"""One definition of each service method, and four ways to call it.

A class of calls (`TierCalls`, `PlanCalls`, …) derives from `Service`. Its methods, decorated with `method`, only build
a `Call`. A concrete service combines that class with one of three bases, which decide how the call is performed:

| base              | `service.get(...)` returns                                | used by             |
|-------------------|-----------------------------------------------------------|---------------------|
| `BlockingService` | the result; the calling thread waits                      | `Client`            |
| `AsyncService`    | an awaitable of the result                                | `stepwell.aio`      |
| `BufferedService` | a `Pending` of the result, which is sent at a block's end | batch, transaction  |
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

from stepwell.client.session.calls import Call, Pending
from stepwell.client.session.session import Session

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class AcceptsCalls(Protocol):
    """A batch or a transaction: accepts calls inside its block and sends them when the block ends."""

    def enlist(self, call: Call[R]) -> Pending[R]: ...


class AsyncPerformer(Protocol):
    """Performs calls for tasks of an event loop.

    `arguments` are the arguments that the call is built from: if they hold much text, building takes long (its tokens
    are counted), so the performer builds in a thread instead of in the loop.
    """

    def perform(self, build_call: Callable[[], Call[R]], arguments: Sequence[object]) -> Coroutine[object, None, R]: ...


class Service:
    """Base of all services: gives their methods the session, with its project, leases, tokens and bodies."""

    def __init__(self, session: Session) -> None:
        self.session = session


class BlockingService(Service):
    """A service whose methods wait for the manager's answer. Safe from any number of threads, as its session is."""


class BufferedService(Service):
    """A service whose methods add their call to a batch or a transaction and return a `Pending`."""

    def __init__(self, session: Session, buffer: AcceptsCalls) -> None:
        super().__init__(session)
        self.buffer = buffer


class AsyncService(Service):
    """A service whose methods are awaited, in the event loop of the performer."""

    def __init__(self, session: Session, caller: AsyncPerformer) -> None:
        super().__init__(session)
        self.caller = caller


class method(Generic[P, R]):  # noqa: N801 - it is used as a decorator, like `property`
    """Descriptor that turns a function which builds a `Call` into a method that performs the call.

    The kind of service decides how (see the module's table). The bound method replaces the descriptor in the service's
    own `__dict__` at its first use. Therefore later calls cost an attribute lookup and no descriptor.
    """

    def __init__(self, build: Callable[Concatenate[T, P], Call[R]]) -> None:
        # The undecorated function, for callers that send many calls together: `TierCalls.store.call(service, ...)`.
        self.call = cast("Callable[Concatenate[Service, P], Call[R]]", build)
        self._name = build.__name__
        self.__doc__ = build.__doc__
        self._signature = _public_signature(build)
        self._shortcut: Callable[[Service, str, str | None], R | None] | None = None

    def shortcut(self, find: Callable[[T, str, str | None], R | None]) -> Callable[[T, str, str | None], R | None]:
        """Register a function that may know the result without a request; None means that the manager is asked.

        It is for reads of one fragment, and takes the service, the id and the project. A batch and a transaction do not
        use it: what is inside takes effect there, in order.
        """
        self._shortcut = cast("Callable[[Service, str, str | None], R | None]", find)
        return find

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
        build, shortcut = self.call, self._shortcut
        if isinstance(service, BufferedService):
            buffer = service.buffer

            def buffered(*args: P.args, **kwargs: P.kwargs) -> Pending[R]:
                return buffer.enlist(build(service, *args, **kwargs))

            return self._bind(service, buffered)
        if isinstance(service, AsyncService):
            caller = service.caller

            async def awaited(*args: P.args, **kwargs: P.kwargs) -> R:
                return await caller.perform(functools.partial(build, service, *args, **kwargs), args)

            return self._bind(service, awaited if shortcut is None else _shortened_async(service, shortcut, awaited))
        perform = service.session.perform

        def blocking(*args: P.args, **kwargs: P.kwargs) -> R:
            return perform(build(service, *args, **kwargs))

        return self._bind(service, blocking if shortcut is None else _shortened(service, shortcut, blocking))

    def _bind(self, service: Service, bound: Callable[P, T]) -> Callable[P, T]:
        """Store the bound method in the service's `__dict__`, with the documentation of the function, and return it."""
        functools.update_wrapper(bound, self.call)
        del vars(bound)["__wrapped__"]  # `help` would otherwise show the function that builds the call
        vars(bound)["__signature__"] = self._signature
        vars(service)[self._name] = bound
        return bound


def _shortened(
    service: Service, shortcut: Callable[[Service, str, str | None], R | None], ask: Callable[P, R]
) -> Callable[P, R]:
    """Return a method that tries the shortcut first.

    It names the parameters of a read, because to pass on any parameters takes longer than half of a read.
    """
    ask_for = cast("Callable[..., R]", ask)

    def read(fragment_id: str, *, project: str | None = None) -> R:
        found = shortcut(service, fragment_id, project)
        return ask_for(fragment_id, project=project) if found is None else found

    return cast("Callable[P, R]", read)


def _shortened_async(
    service: Service,
    shortcut: Callable[[Service, str, str | None], R | None],
    ask: Callable[P, Coroutine[object, None, R]],
) -> Callable[P, Coroutine[object, None, R]]:
    """Return an asynchronous method that tries the shortcut first."""
    ask_for = cast("Callable[..., Coroutine[object, None, R]]", ask)

    async def read(fragment_id: str, *, project: str | None = None) -> R:
        found = shortcut(service, fragment_id, project)
        return await ask_for(fragment_id, project=project) if found is None else found

    return cast("Callable[P, Coroutine[object, None, R]]", read)


def _public_signature(build: Callable[..., object]) -> inspect.Signature:
    """Return the signature that callers see: without `self`, and with the result's type instead of the call's."""
    built = inspect.signature(build)
    result = str(built.return_annotation).removeprefix("Call[").removesuffix("]")
    return built.replace(parameters=[*built.parameters.values()][1:], return_annotation=result)
