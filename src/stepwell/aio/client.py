"""The client of an event loop, and `connect`, which makes one."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from stepwell.aio.batch import Batch, Transaction
from stepwell.aio.caller import AsyncCaller
from stepwell.aio.channel import Channel
from stepwell.aio.services import (
    ContextTierService,
    Log,
    LogService,
    PlanExecutionContext,
    PlanLifecycleService,
    ReceiptService,
    TokenPoolService,
)
from stepwell.aio.strategies import StrategyService
from stepwell.aio.threads import Threads, run_in_thread
from stepwell.aio.watch import Watch, Watches
from stepwell.client import client as blocking
from stepwell.client.client import unconnected
from stepwell.client.session.task_futures import OnProgress
from stepwell.errors import InvalidArgument
from stepwell.ingest.report import IngestReport
from stepwell.protocol.messages import Status


class Client:
    """A session with a manager, for the tasks of one event loop. `stepwell.aio.connect` makes one.

    It is the counterpart of `stepwell.Client`, with `await`. Many requests are in flight at once over one connection;
    past a bound they wait. A request that is sent after another one was answered takes effect after it.

    A task that is cancelled gets no answer, and never another task's answer. Its request *may have taken effect*,
    unless it only reads. Operations that take long (`assemble`, `replay`, `ingest`, `view`, reading a cold body) run in
    a few threads, over blocking connections of the same session.
    """

    def __init__(self, blocking_client: blocking.Client, make_threads: Callable[[Channel], Threads] = Threads) -> None:
        """Take over a blocking client that has not connected yet. A simulator gives threads that work in the loop."""
        self.blocking_client = blocking_client
        loop = asyncio.get_running_loop()
        self._channel = Channel(blocking_client.session.channel, loop)
        self.threads = make_threads(self._channel)
        self._caller = AsyncCaller(self._channel, self.threads)
        self._watches = Watches(self._channel)
        self._closing: asyncio.Task[None] | None = None
        self.tiers = ContextTierService(blocking_client.session, self._caller)
        self.plans = PlanLifecycleService(blocking_client.session, self._caller)
        self.receipts = ReceiptService(blocking_client.session, self._caller)
        self.pools = TokenPoolService(blocking_client.session, self._caller)
        self.logs = LogService(blocking_client.session, self._caller)
        self.strategies = StrategyService(self._caller, blocking_client.strategies)

    @property
    def address(self) -> str:
        """The address of the manager."""
        return self.blocking_client.address

    @property
    def projects(self) -> tuple[str, ...] | None:
        """The projects that this session may use; None stands for all."""
        return self.blocking_client.projects

    @property
    def epoch(self) -> str:
        """The identity of the manager's state. Two revisions can be compared within one epoch only."""
        return self.blocking_client.session.channel.welcome.epoch

    @property
    def session_id(self) -> str:
        """The id of this session, which its leases name as their holder."""
        return self.blocking_client.session_id

    def execution(self, plan_id: str, *, lease: int | None = None) -> PlanExecutionContext:
        """Return a new context for recording changes; give `lease` if another client started the execution."""
        return PlanExecutionContext(self.blocking_client.session, self._caller, plan_id, lease)

    def working_on(self, plan_id: str, changeset_id: str | None = None) -> AbstractContextManager[None]:
        """Have the fragments that this task stores in a `with` block name a plan, and perhaps a changeset."""
        return self.blocking_client.working_on(plan_id, changeset_id)

    def log(self, name: str, *, project: str | None = None) -> Log:
        """Return a log of a project. No request is made."""
        session = self.blocking_client.session
        return Log(session, self._caller, self._watches, session.project_or_default(project), name)

    def batch(self) -> Batch:
        """Return a block of many commands in one frame, with an outcome each: `async with client.batch() as batch:`."""
        return Batch(self.blocking_client.session, self._caller)

    def transaction(self) -> Transaction:
        """Return a block of writes at one revision, or none: `async with client.transaction() as transaction:`."""
        return Transaction(self.blocking_client.session, self._caller)

    def watch(self, since: int | None = None, projects: Iterable[str] | None = None) -> Watch:
        """Return a watch of committed events, in order and without gaps: behind the revision `since`, or from now on.

        It has the events of `projects`, by default of all that this session may see, and those of actions and the
        budget, which concern every session. A transaction is several events of one revision. A watch that is too slow
        raises `EventsMissed` and goes on from the revision that the error names.
        """
        return self._watches.open(since, projects)

    async def status(self) -> Status:
        """Return the status of the manager."""
        return await self._caller.status()

    async def ingest(
        self,
        path: str | os.PathLike[str],
        *,
        project: str | None = None,
        include_secrets: bool = False,
        redact_entropy: bool = False,
        on_progress: OnProgress | None = None,
    ) -> IngestReport:
        """Bring a project up to date with a directory, in a thread, as `stepwell.Client.ingest` does.

        Cancelled, it stops after the files that it is storing; the next call goes on from there. `on_progress` is
        called in the thread.
        """
        is_cancelled = threading.Event()

        def report(done: int, total: int, source: str) -> None:
            if is_cancelled.is_set():
                raise asyncio.CancelledError
            if on_progress is not None:
                on_progress(done, total, source)

        def ingest() -> IngestReport:
            return self.blocking_client.ingest(
                path,
                project=project,
                include_secrets=include_secrets,
                redact_entropy=redact_entropy,
                on_progress=report,
            )

        try:
            return await self.threads.run(ingest)
        finally:
            is_cancelled.set()

    assemble = run_in_thread(blocking.Client.assemble)
    """Assemble the context for a question: `stepwell.Client.assemble`, in a thread.

    Cancelled, it goes on in the thread to its end, at the latest when its `deadline_s` and a grace are over, and its
    receipt may be stored. `on_progress` is called in a thread of the client.
    """

    view = run_in_thread(blocking.Client.view)
    receipt = run_in_thread(blocking.Client.receipt)
    replay = run_in_thread(blocking.Client.replay)

    async def open(self) -> None:
        """Connect to the manager. A wrong address or scope is reported here, not by the first call."""
        await self._channel.open()

    async def aclose(self) -> None:
        """End the session: give up its leases, close its connections, and wait for the work in its threads.

        Tasks that still await an answer get `RuntimeLost`, or `OutcomeUnknown` if their request may have taken effect.
        A second call awaits the same closing, which goes on if the first caller is cancelled.
        """
        self._channel.require_owner()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        """Close watches, connections and threads, in this order."""
        try:
            await self._watches.close()
            if await self._channel.close():
                # Or the blocking client would give them up again.
                self.blocking_client.session.channel.rules.forget_leases()
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

    def __init__(self, address: str | os.PathLike[str] | None, projects: Iterable[str] | None, label: str) -> None:
        self._address = address
        self._projects = projects
        self._label = label
        self._client: Client | None = None

    async def _connect(self) -> Client:
        """Return a connected client; close it again if connecting fails."""
        client = Client(unconnected(self._address, self._projects, label=self._label))
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


def connect(
    address: str | os.PathLike[str] | None = None, projects: Iterable[str] | None = None, *, label: str = ""
) -> Connecting:
    """Return a client of the manager at an address, for the running event loop; it connects when awaited or entered.

    Without an address it is that of `stepwell.connect`: `STEPWELL_ADDRESS`, or the default one of `stepwell serve`.
    `projects` limits the session to these. None is unrestricted, and an empty list is an error. `label` is the client's
    own name for itself, which is in everything that it stores.
    """
    return Connecting(address, projects, label)
