"""`Client`, the object through which a program uses a manager, and `connect`, which makes one.

The class only puts parts together: services of `client.api` and workflows of `client.workflows`, all on one session.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Self

from stepwell.assembly.answer import Answer
from stepwell.assembly.receipt import Receipt
from stepwell.client.api.batch import Batch, Transaction
from stepwell.client.api.logs import Log, LogService
from stepwell.client.api.pools import TokenPoolService
from stepwell.client.api.receipts import ReceiptService
from stepwell.client.api.strategies import StrategyService
from stepwell.client.api.tiers import ContextTierService
from stepwell.client.api.views import View, Views
from stepwell.client.api.watch import Watch, Watches, project_names
from stepwell.client.execution import PlanExecutionContext
from stepwell.client.plan_lifecycle import PlanLifecycleService
from stepwell.client.session.channel import Channel
from stepwell.client.session.current_work import working_on
from stepwell.client.session.environment import SYSTEM, Environment
from stepwell.client.session.session import Session
from stepwell.client.session.task_futures import OnProgress
from stepwell.client.workflows.assemble import ContextAssembly, RequestOptions
from stepwell.client.workflows.ingest import ProjectIngest
from stepwell.client.workflows.strategy_executor import OnStrategyProgress
from stepwell.domain.checks import require_instance
from stepwell.errors import InvalidArgument
from stepwell.ingest.report import IngestReport
from stepwell.ingest.secret_policy import SecretPolicy
from stepwell.protocol.messages import Status
from stepwell.strategies.protocol import ContextRequest
from stepwell.transport.address import default_address


class Client:
    """One session with a manager. Make it with `stepwell.connect` or `Runtime.client`, and close it, or use `with`.

    Services: `tiers` (fragments), `plans`, `pools` (of tokens), `logs`, `receipts` and `strategies`. `execution` makes
    a context for one plan, `log` a log of a project.

    Threads and processes: any number of threads may use one client at the same time; each request in progress has a
    connection of its own. A forked child may use it, too, and begins a session of its own. Pickled to another process,
    it connects from there. Leases stay with the session that they were given to.

    Guarantees: each call takes effect in one step at the manager, in one order with the calls of all other clients, and
    before it returns. A call whose connection is lost is sent again and takes effect once; if that cannot be known, it
    raises `OutcomeUnknown`. A refusal (`Refused`) means that the call changed nothing. A session that is limited to
    `projects` neither sees nor changes others.
    """

    def __init__(
        self,
        address: str,
        projects: tuple[str, ...] | None = None,
        environment: Environment = SYSTEM,
        label: str = "",
    ) -> None:
        self.runtime: object = None  # the Runtime that started the manager, if this program did
        self._channel = Channel(address, projects, environment, label)
        self._session = Session(self._channel)
        self.tiers = ContextTierService(self._session)
        self.plans = PlanLifecycleService(self._session)
        self.receipts = ReceiptService(self._session)
        self.pools = TokenPoolService(self._session)
        self.logs = LogService(self._session)
        self._views = Views(self._session, self.tiers)
        self.strategies = StrategyService(self._session, self._views)
        self._ingest = ProjectIngest(self._session, self._views, self.tiers, self.strategies)
        self._assembly = ContextAssembly(self)
        self._watches = Watches(self._channel)

    @property
    def address(self) -> str:
        """The path of the manager's socket."""
        return self._channel.address

    @property
    def projects(self) -> tuple[str, ...] | None:
        """The projects that this session may see and change; None means all."""
        return self._channel.projects

    @property
    def label(self) -> str:
        """The client's own name for itself, which is in everything that it stores; empty if it has none."""
        return self._channel.rules.label

    @property
    def epoch(self) -> str:
        """The id of the manager's history. Two revisions can be compared only within one epoch."""
        return self._channel.open().epoch

    @property
    def session_id(self) -> str:
        """The id of this session, which its leases name as their holder."""
        return self._channel.session_id

    @property
    def session(self) -> Session:
        """The session that all services share; for `stepwell.aio` and for workflows, not for programs."""
        return self._session

    def belongs_to(self, runtime: object, is_kept: Callable[[], bool]) -> None:
        """Keep a `Runtime` alive as long as this client, and ask it whether a lost manager will be started again."""
        self.runtime = runtime
        self._channel.is_supervised = is_kept

    def execution(self, plan_id: str, *, lease: int | None = None) -> PlanExecutionContext:
        """Return a new context in which to record the changes of one execution of a plan.

        Give `lease`, the token, if another client started the execution; otherwise this session's own is used.
        """
        return PlanExecutionContext(self._session, plan_id, lease)

    def working_on(self, plan_id: str, changeset_id: str | None = None) -> AbstractContextManager[None]:
        """Have the fragments that this thread or task stores in a `with` block name a plan, and perhaps a changeset.

        `plans.work_on` does that for the plan that it runs. The manager does not check whether the plan exists.
        """
        return working_on(self.address, plan_id, changeset_id)

    def log(self, name: str, *, project: str | None = None) -> Log:
        """Return a log of a project: a list of entries to which any number of processes append.

        No request is made. A log exists from its first append, or from `Log.retain`.
        """
        return Log(self._session, self._watches, self._session.project_or_default(project), name)

    def batch(self) -> Batch:
        """Return a batch: calls in its block are sent in one frame, and each has an outcome of its own."""
        return Batch(self._session)

    def transaction(self) -> Transaction:
        """Return a transaction: the writes in its block are committed together at one revision, or not at all."""
        return Transaction(self._session)

    def view(self, projects: Iterable[str] | None = None, *, since: int | None = None) -> View:
        """Return all fragments of some projects, by default of this session's, as they are at one revision.

        Bodies are read from shared memory, without a request. With `since`, a revision of this `epoch`, the view has
        only what changed after it, if the manager still knows; `View.is_difference` is False if it has everything.
        A view is no access: it moves nothing in the tiers.
        """
        return self._views.open(projects, since)

    def ingest(
        self,
        path: str | os.PathLike[str],
        *,
        project: str | None = None,
        include_secrets: bool = False,
        redact_entropy: bool = False,
        on_progress: OnProgress | None = None,
    ) -> IngestReport:
        """Bring a project up to date with a directory or one file, so that its fragments are what the files are now.

        The files are those that git tracks or would add; without git, all but hidden and generated ones. Workers split
        them at definitions, headings, turns or blank lines; without workers, this process does. Unchanged files are not
        read. By default, `project` is the session's only one, or has the name of the directory. `on_progress` is called
        with the number of files done, the number of all files, and the file's name.

        Well-known secret files are left out, and private keys, tokens and passwords of known formats are redacted in
        the others; the report says which and how many. With `redact_entropy`, texts that look random are redacted, too.
        With `include_secrets`, everything is stored as it is. Files that were ingested otherwise are read again.

        Files that cannot be read, are no text, or are too large are in the report, with the reason. An interrupted call
        is continued by the next one. Fragments that were deleted or have expired are stored again.
        """
        policy = SecretPolicy.of(include_secrets=include_secrets, redact_entropy=redact_entropy)
        return self._ingest.ingest(path, project, policy, on_progress)

    def assemble(
        self,
        request: ContextRequest | str | None = None,
        *,
        projects: Sequence[str] | None = None,
        focus: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        breadth: int | None = None,
        depth: int | None = None,
        budget_tokens: int | None = None,
        as_of_ms: int | None = None,
        stop_score: float | None = None,
        plan_id: str | None = None,
        strategies: Sequence[str] | None = None,
        view: View | None = None,
        deadline_s: float | None = None,
        components: Mapping[str, str] | None = None,
        keep_receipt: bool = True,
        on_progress: OnStrategyProgress | None = None,
    ) -> Answer:
        """Return what should be seen for a question, within a number of tokens, with the reasons.

        The question is a text, with the fields of a `ContextRequest` as keywords, or a whole `ContextRequest`. A text
        is searched for in `projects`, by default in those of the view, of the plan or of this session; a session
        without a limit has to name them.

        The named `strategies` run, or those that the request prefers, or all that the workers offer; all on one state,
        that of `view` or the present one. A strategy that fails, or takes longer than `deadline_s`, does not fail the
        answer: its part is missing, and the answer says so. With `plan_id`, the plan's decisions and those of its
        ancestors are included, only the plan's projects are searched, and its description is the question unless a
        one is given. `components` replaces stages of the pipeline by name: `{"fuse": "reciprocal"}`.

        The answer has what matches, and ends before its budget is filled with what scores less than `stop_score` of the
        best; `stop_score=0` fills the budget. An answer without any match has no fragments.

        The receipt is stored under `answer.receipt_id`, unless there is no room for it or `keep_receipt` is False.
        """
        options = RequestOptions(
            projects=projects,
            focus=focus,
            kinds=kinds,
            breadth=breadth,
            depth=depth,
            budget_tokens=budget_tokens,
            as_of_ms=as_of_ms,
            stop_score=stop_score,
        )
        return self._assembly.assemble(
            request,
            options,
            plan_id,
            strategies=strategies,
            view=view,
            deadline_s=deadline_s,
            stages=components,
            keep_receipt=keep_receipt,
            on_progress=on_progress,
        )

    def receipt(self, receipt_id: str) -> Receipt:
        """Return a stored receipt: the request, the strategies, and each candidate with its scores and its outcome."""
        return self._assembly.receipt(receipt_id)

    def replay(self, receipt: Receipt | str) -> Answer:
        """Return the answer of a receipt, or of its id, again: the same bytes, or `BodyGone` if some are gone."""
        return self._assembly.replay(receipt)

    def watch(self, since: int | None = None, projects: Iterable[str] | None = None) -> Watch:
        """Return a watch that gives committed events in order and without gaps, after revision `since` or from now on.

        It has events of `projects`, by default of all that this session may see; events of actions and of the budget
        concern every session. A transaction is several events of one revision. A watch that reads too slowly raises
        `EventsMissed` once, and continues behind the gap.
        """
        return self._watches.open(since, projects)

    def status(self) -> Status:
        """Return the manager's status: process, revision, tiers, memory, and number of sessions and requests."""
        return self._session.status()

    def open(self) -> None:
        """Connect now, so that a wrong address or scope is raised here and not at the first call."""
        self._channel.open()

    def close(self) -> None:
        """End the session: release its leases, close connections and watches, and fail futures that still wait."""
        self._watches.close()
        self.strategies.close()
        rules = self._channel.rules
        self._channel.close(holds_leases=bool(rules.leases or rules.token_leases))
        self._session.bodies.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        return partial(connect, label=self.label), (self.address, self.projects)

    def __repr__(self) -> str:
        return f"<stepwell.Client of {self.address!r}>"


def connect(
    address: str | os.PathLike[str] | None = None, projects: Iterable[str] | None = None, *, label: str = ""
) -> Client:
    """Return a connected client of the manager at an address (the path of its socket), for a process of the same user.

    Without an address it is the one in the environment variable `STEPWELL_ADDRESS` or, if that is not set, the one at
    which `stepwell serve` listens by default. `RuntimeLost` says that no manager is there, and how to start one.

    `projects` limits the session to these; None means no limit, and an empty list is an `InvalidArgument`. `label` is
    the client's own name for itself, such as "planner": fragments that it stores, and their events, say so.
    """
    client = unconnected(address, projects, label=label)
    client.open()
    return client


def unconnected(
    address: str | os.PathLike[str] | None,
    projects: Iterable[str] | None,
    environment: Environment = SYSTEM,
    *,
    label: str = "",
) -> Client:
    """Return a client that connects at its first call; so a wrong address is raised there.

    A simulator gives an `environment` of its own.
    """
    require_instance(address, (str, os.PathLike, type(None)), "address is the path of a manager's socket")
    scope = project_names(projects)
    if scope is not None and not scope:
        raise InvalidArgument("projects is empty: name at least one, or leave it out for an unrestricted session")
    return Client(default_address() if address is None else os.fspath(address), scope, environment, label)
