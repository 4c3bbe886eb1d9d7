"""The client of an event loop: one object, any number of tasks."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Generator, Iterable
from types import TracebackType
from typing import Self

from stepwell.aio.batch import Batch, Transaction
from stepwell.aio.caller import AsyncCaller
from stepwell.aio.channel import Channel
from stepwell.aio.services import ContextTierService, PlanExecutionContext, PlanLifecycleService, ReceiptService
from stepwell.aio.strategies import StrategyService
from stepwell.aio.threads import Threads, run_in_thread
from stepwell.aio.watch import Watch, Watches
from stepwell.client import client as blocking
from stepwell.client.client import unconnected
from stepwell.client.session.task_futures import OnProgress
from stepwell.client.workflows.ingest import IngestReport
from stepwell.errors import InvalidArgument
from stepwell.protocol.messages import Status


class Client:
    """A session with a manager, for the tasks of one event loop. `stepwell.aio.connect` makes one.

    It is what `stepwell.Client` is, with `await`. Many requests are on their way at once, over one connection; past a
    bound they wait for each other. A request that is sent when the answer to another was there takes effect behind it.

    Whoever is cancelled gets no answer, and nobody else's; what they asked for *may have happened*, unless it only
    reads. What takes long (`assemble`, `replay`, `ingest`, `view`, reading a cold body) is done in a few threads, over
    blocking connections of the same session.
    """

    def __init__(self, blocking_client: blocking.Client) -> None:
        """Of a client that has not connected yet."""
        self.blocking_client = blocking_client
        loop = asyncio.get_running_loop()
        self._channel = Channel(blocking_client.session.channel, loop)
        self.threads = Threads(self._channel)
        self._caller = AsyncCaller(self._channel, self.threads)
        self._watches = Watches(self._channel)
        self._closing: asyncio.Task[None] | None = None
        self.tiers = ContextTierService(blocking_client.session, self._caller)
        self.plans = PlanLifecycleService(blocking_client.session, self._caller)
        self.receipts = ReceiptService(blocking_client.session, self._caller)
        self.strategies = StrategyService(self._caller, blocking_client.strategies)

    @property
    def address(self) -> str:
        """Where the manager is."""
        return self.blocking_client.address

    @property
    def projects(self) -> tuple[str, ...] | None:
        """What this session may touch; None is everything."""
        return self.blocking_client.projects

    @property
    def epoch(self) -> str:
        """Which manager's revisions these are: two revisions compare only within one epoch."""
        return self.blocking_client.session.channel.welcome.epoch

    @property
    def session_id(self) -> str:
        """What this session's leases name as their holder."""
        return self.blocking_client.session_id

    def execution(self, plan_id: str, *, lease: int | None = None) -> PlanExecutionContext:
        """A new context in which to record changes; `lease` where another client started the execution."""
        return PlanExecutionContext(self.blocking_client.session, self._caller, plan_id, lease)

    def batch(self) -> Batch:
        """Many commands in one frame, one outcome each: `async with client.batch() as batch:`."""
        return Batch(self.blocking_client.session, self._caller)

    def transaction(self) -> Transaction:
        """Many writes at one revision, or none: `async with client.transaction() as transaction:`."""
        return Transaction(self.blocking_client.session, self._caller)

    def watch(self, since: int | None = None, projects: Iterable[str] | None = None) -> Watch:
        """Follow what is committed, in order and without gaps: behind the revision `since`, or from now on.

        Of `projects`, by default all that this session may see; actions and the budget are everybody's. A transaction
        is several events of one revision. Whoever is too slow gets `EventsMissed`, and goes on from where it says.
        """
        return self._watches.open(since, projects)

    async def status(self) -> Status:
        """How the manager is."""
        return await self._caller.status()

    async def ingest(
        self, path: str | os.PathLike[str], *, project: str | None = None, on_progress: OnProgress | None = None
    ) -> IngestReport:
        """Bring a project up to date with a directory, in a thread, as `stepwell.Client.ingest` does.

        Cancelled, it stops behind the files that it is storing; the next one goes on from there. `on_progress` is
        called in the thread.
        """
        is_cancelled = threading.Event()

        def report(done: int, total: int, source: str) -> None:
            if is_cancelled.is_set():
                raise asyncio.CancelledError
            if on_progress is not None:
                on_progress(done, total, source)

        try:
            return await self.threads.run(
                lambda: self.blocking_client.ingest(path, project=project, on_progress=report)
            )
        finally:
            is_cancelled.set()

    assemble = run_in_thread(blocking.Client.assemble)
    """What should be seen for a question: `stepwell.Client.assemble`, in a thread.

    Cancelled, it goes on there to its end, at the latest when its `deadline_s` and a grace are over, and its receipt
    may be kept. `on_progress` is called in a thread of the client's.
    """

    view = run_in_thread(blocking.Client.view)
    receipt = run_in_thread(blocking.Client.receipt)
    replay = run_in_thread(blocking.Client.replay)

    async def open(self) -> None:
        """Make sure that there is a manager: a wrong address or scope is said now, not at the first call."""
        await self._channel.open()

    async def aclose(self) -> None:
        """End the session: its leases are given up, its connections closed, and what its threads do comes to an end.

        Whoever still awaits an answer gets `RuntimeLost`, or, if what they asked may have happened, `OutcomeUnknown`.
        """
        self._channel.require_owner()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._watches.close()
            if await self._channel.close():
                self.blocking_client.session.leases.clear()  # or the blocking client would give them up again
        finally:
            await self.threads.close(self.blocking_client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __reduce__(self) -> tuple[object, ...]:
        raise InvalidArgument("a client of an event loop stays there: send its address")

    def __repr__(self) -> str:
        return f"<stepwell.aio.Client of {self.address!r}>"


class Connecting:
    """A client that is being connected: `client = await connect(…)`, or `async with connect(…) as client:`."""

    def __init__(self, address: str | os.PathLike[str], projects: Iterable[str] | None) -> None:
        self._address = address
        self._projects = projects
        self._client: Client | None = None

    async def _connect(self) -> Client:
        client = Client(unconnected(self._address, self._projects))
        try:
            await client.open()
        except BaseException:
            await client.aclose()
            raise
        return client

    def __await__(self) -> Generator[object, None, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._connect()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._client is not None
        await self._client.aclose()


def connect(address: str | os.PathLike[str], projects: Iterable[str] | None = None) -> Connecting:
    """A client of the manager at an address, for the running event loop. It is awaited, or entered, and then connected.

    `projects` limits the session to those; None is unrestricted, and an empty list is an error.
    """
    return Connecting(address, projects)
