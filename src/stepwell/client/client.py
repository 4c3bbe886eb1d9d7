"""The client: one object, any number of threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from stepwell.assembly.answer import Answer
from stepwell.assembly.receipt import Receipt
from stepwell.client.api.batch import Batch, Transaction
from stepwell.client.api.receipts import ReceiptService
from stepwell.client.api.strategies import StrategyService
from stepwell.client.api.tiers import ContextTierService
from stepwell.client.api.views import View, Views
from stepwell.client.api.watch import Watch, Watches, project_names
from stepwell.client.execution import PlanExecutionContext
from stepwell.client.plan_lifecycle import PlanLifecycleService
from stepwell.client.session.channel import Channel
from stepwell.client.session.session import Session
from stepwell.client.session.task_futures import OnProgress
from stepwell.client.workflows.assemble import ContextAssembly
from stepwell.client.workflows.ingest import IngestReport, ProjectIngest
from stepwell.client.workflows.strategy_executor import OnStrategyProgress
from stepwell.errors import InvalidArgument
from stepwell.protocol.messages import Status
from stepwell.strategies.protocol import ContextRequest


class Client:
    """A session with a manager. Safe from any number of threads, and in a forked child, where it begins a new session.

    Pickled to another process, it connects from there, as a session of its own; leases stay behind.
    """

    def __init__(self, address: str, projects: tuple[str, ...] | None = None) -> None:
        self.runtime: object = None  # who started the manager, if it was this program
        self._channel = Channel(address, projects)
        self._session = Session(self._channel)
        self.tiers = ContextTierService(self._session)
        self.plans = PlanLifecycleService(self._session)
        self.receipts = ReceiptService(self._session)
        self._views = Views(self._session, self.tiers)
        self.strategies = StrategyService(self._session, self._views)
        self._ingesting = ProjectIngest(self._session, self._views, self.tiers, self.strategies)
        self._assembling = ContextAssembly(self)
        self._watches = Watches(self._channel)

    @property
    def address(self) -> str:
        """Where the manager is."""
        return self._channel.address

    @property
    def projects(self) -> tuple[str, ...] | None:
        """What this session may touch; None is everything."""
        return self._channel.projects

    @property
    def epoch(self) -> str:
        """Which manager's revisions these are: two revisions compare only within one epoch."""
        return self._channel.open().epoch

    @property
    def session_id(self) -> str:
        """What this session's leases name as their holder."""
        return self._channel.session_id

    @property
    def session(self) -> Session:
        """What its services share; for those that wait in another way."""
        return self._session

    def belongs_to(self, runtime: object, is_kept: Callable[[], bool]) -> None:
        """Keep who started the manager for as long as this client is, and do not wait for one that they let end."""
        self.runtime = runtime
        self._channel.is_supervised = is_kept

    def execution(self, plan_id: str, *, lease: int | None = None) -> PlanExecutionContext:
        """A new context in which to record changes; `lease` where another client started the execution."""
        return PlanExecutionContext(self._session, plan_id, lease)

    def batch(self) -> Batch:
        """Many commands in one frame, one outcome each."""
        return Batch(self._session)

    def transaction(self) -> Transaction:
        """Many writes at one revision, or none."""
        return Transaction(self._session)

    def view(self, projects: Iterable[str] | None = None, *, since: int | None = None) -> View:
        """All fragments of some projects at one revision, by default of this session's; bodies are read unasked.

        With `since`, a revision of this `epoch`, only what changed after it. `is_difference` says whether that could be
        told: where it could not, the view has everything. Looking is no access: it moves nothing in the tiers.
        """
        return self._views.open(projects, since)

    def ingest(
        self, path: str | os.PathLike[str], *, project: str | None = None, on_progress: OnProgress | None = None
    ) -> IngestReport:
        """Bring a project up to date with a directory, or with one file: what it has is what the files are now.

        The files are those that git knows of or would add, or, where there is no git, all but hidden and generated
        ones. They are split at definitions, headings, turns or blank lines, by the workers if there are any. Those
        that are as they were are not even read. `project` is, if not given, the session's only one, or else named as
        the directory is. `on_progress` is called with how many files are done, of how many, and which.

        What cannot be read, is no text, or is huge is in the report, with the reason. Interrupted, it goes on where it
        was the next time. Fragments that were deleted, or have expired, are stored again.
        """
        return self._ingesting.ingest(path, project, on_progress)

    def assemble(
        self,
        request: ContextRequest | None = None,
        *,
        plan_id: str | None = None,
        strategies: Sequence[str] | None = None,
        view: View | None = None,
        deadline_s: float | None = None,
        components: Mapping[str, str] | None = None,
        keep_receipt: bool = True,
        on_progress: OnStrategyProgress | None = None,
    ) -> Answer:
        """What should be seen for a question, in as many tokens as the request allows; and why.

        All `strategies` that are named, or that the request prefers, or else that the workers offer, look at one state:
        that of `view`, or of now. One that fails, or takes more than `deadline_s`, costs the answer what it would have
        found, and the answer says so. With `plan_id`, what was decided for the plan goes into it, its projects are all
        that is looked at, and without a request its description is the question. `components` replaces stages of the
        pipeline by name: `{"fuse": "reciprocal"}`.

        The receipt is kept under `answer.receipt_id`, unless there is no room for it, or `keep_receipt` is False.
        """
        return self._assembling.assemble(
            request,
            plan_id,
            strategies=strategies,
            view=view,
            deadline_s=deadline_s,
            stages=components,
            keep_receipt=keep_receipt,
            on_progress=on_progress,
        )

    def receipt(self, receipt_id: str) -> Receipt:
        """How an answer came about."""
        return self._assembling.receipt(receipt_id)

    def replay(self, receipt: Receipt | str) -> Answer:
        """The answer of a receipt, or of its id, again: the same bytes, or `BodyGone` if some of them are gone."""
        return self._assembling.replay(receipt)

    def watch(self, since: int | None = None, projects: Iterable[str] | None = None) -> Watch:
        """Follow what is committed, in order and without gaps: behind the revision `since`, or from now on.

        Of `projects`, by default all that this session may see; actions and the budget are everybody's. A transaction
        is several events of one revision. Whoever is too slow gets `EventsMissed`, and goes on from where it says.
        """
        return self._watches.open(since, projects)

    def status(self) -> Status:
        """How the manager is."""
        return self._session.status()

    def open(self) -> None:
        """Make sure that there is a manager: a wrong address or scope is said now, not at the first call."""
        self._channel.open()

    def close(self) -> None:
        """End the session: its leases are given up, and its connections closed."""
        self._watches.close()
        self.strategies.close()
        self._channel.close(holds_leases=bool(self._session.leases))
        self._session.bodies.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        return connect, (self.address, self.projects)

    def __repr__(self) -> str:
        return f"<stepwell.Client of {self.address!r}>"


def connect(address: str | os.PathLike[str], projects: Iterable[str] | None = None) -> Client:
    """A client of the manager at an address, from any process of the same user.

    `projects` limits the session to those; None is unrestricted, and an empty list is an error.
    """
    client = unconnected(address, projects)
    client.open()
    return client


def unconnected(address: str | os.PathLike[str], projects: Iterable[str] | None) -> Client:
    """A client that has not looked yet whether there is a manager."""
    scope = project_names(projects)
    if scope is not None and not scope:
        raise InvalidArgument("projects is empty: name at least one, or leave it out for an unrestricted session")
    return Client(os.fspath(address), scope)
