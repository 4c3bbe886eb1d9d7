"""The asynchronous services: the calls of the client's API, awaited, and the operations that combine several calls.

Operations of one or a few calls are written here with `await`. Workflows are not written twice: they run as methods of
the blocking service in a thread.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from stepwell import limits
from stepwell.aio.caller import AsyncCaller
from stepwell.aio.capture import AsyncCapture
from stepwell.aio.log_watch import LogWatch
from stepwell.aio.threads import run_in_thread
from stepwell.aio.watch import Watches
from stepwell.client import execution, plan_lifecycle
from stepwell.client.api.changesets import ChangesetCalls, ChangeSummary, summary_of
from stepwell.client.api.fragments import StoredFragment
from stepwell.client.api.log_entries import StoredLogEntry
from stepwell.client.api.logs import Body, LogCalls, LogsCalls, all_appended, append_call, checked_names, in_appends
from stepwell.client.api.plans import PlanCalls
from stepwell.client.api.pools import PoolCalls
from stepwell.client.api.receipts import ReceiptCalls
from stepwell.client.api.service import AsyncService
from stepwell.client.api.tiers import BulkRead, TierCalls, all_placed, in_frames
from stepwell.client.session.calls import Call
from stepwell.client.session.session import Session
from stepwell.client.workflows.capture import Captured
from stepwell.domain.changesets.model import EntryRow
from stepwell.domain.logs.replies import EntriesAppended
from stepwell.domain.pools.model import TokenLease
from stepwell.domain.replies import FragmentPlaced
from stepwell.domain.tiers.model import Fragment, FragmentRow, Tier
from stepwell.errors import StepwellError


class ContextTierService(TierCalls, AsyncService):
    """Fragments in tiers. Each method is awaited and returns what that of `stepwell.ContextTierService` does."""

    caller: AsyncCaller

    async def store_many(self, fragments: Iterable[Fragment], *, tier: Tier = Tier.HOT) -> Sequence[FragmentPlaced]:
        """Store many fragments, frame after frame; not atomic.

        If some are refused, `PartlyRefused` has every outcome.
        """
        outcomes: list[FragmentPlaced | StepwellError] = []
        for chunk in in_frames(fragments):
            calls = await self.caller.build(partial(self._store_calls, chunk, tier), chunk)
            outcomes += [outcome for outcome, _ in await self.caller.perform_each(calls)]
        return all_placed(outcomes)

    async def get_many(self, fragment_ids: Iterable[str], *, project: str | None = None) -> dict[str, StoredFragment]:
        """Return many fragments by id, read frame after frame; not atomic. Missing fragments are left out."""
        reading = BulkRead(fragment_ids)
        reading.find_indexed(lambda each: self._get_indexed(each, project))
        while reading.remaining:
            outcomes: list[StoredFragment | StepwellError] = []
            for chunk in reading.chunks():
                calls = [TierCalls.get.call(self, fragment_id, project=project) for fragment_id in chunk]
                outcomes += [outcome for outcome, _ in await self.caller.perform_each(calls)]
            reading.add(outcomes)
        return reading.in_order()

    async def scoped(
        self,
        *,
        project: str | None = None,
        globs: Sequence[str] = (),
        tier: Tier | None = None,
        kind: str | None = None,
    ) -> AsyncIterator[FragmentRow]:
        """Yield all fragments that match, page by page, each as it was when its page was read."""
        cursor: str | None = None
        while True:
            page = await self.list(
                project=project, globs=globs, tier=tier, kind=kind, limit=limits.PAGE_ROWS_MAX, cursor=cursor
            )
            for row in page.rows:
                yield row
            if page.cursor is None:
                return
            cursor = page.cursor

    def _store_calls(self, chunk: Sequence[Fragment], tier: Tier) -> list[Call[FragmentPlaced]]:
        """Build the calls that store a group of fragments; it counts tokens, so it may run in a thread."""
        return [TierCalls.store.call(self, each, tier=tier) for each in chunk]


class PlanLifecycleService(PlanCalls, AsyncService):
    """Actions and plans. Each method is awaited and returns what that of `stepwell.PlanLifecycleService` does.

    A `start_*` whose task is cancelled may have taken the lease all the same. The session does not remember it then,
    and it expires by itself.
    """

    def __init__(self, session: Session, caller: AsyncCaller) -> None:
        """Make a service, and a blocking one of the same session for `work_on`."""
        super().__init__(session, caller)
        self.blocking_client = plan_lifecycle.PlanLifecycleService(session)
        self.threads = caller.threads

    work_on = run_in_thread(plan_lifecycle.PlanLifecycleService.work_on)
    """Work on the children of a plan: `stepwell.PlanLifecycleService.work_on`, in a thread, in which `run` is called.

    Cancelled, it goes on in the thread to its end: give it a `wait_s`, or cancel the plan.
    """


class ReceiptService(ReceiptCalls, AsyncService):
    """Receipts. Each method is awaited and returns what that of `stepwell.ReceiptService` does."""


class TokenPoolService(PoolCalls, AsyncService):
    """Token pools. Each method is awaited and returns what that of `stepwell.TokenPoolService` does."""

    @asynccontextmanager
    async def leased(self, name: str, tokens: int) -> AsyncGenerator[AsyncLeasedTokens]:
        """Hold tokens of a pool for an `async with` block; raise `PoolEmpty` if it has not so many.

        The block reports what it uses by `await held.use(n)`; the rest is returned at its end.
        """
        held = AsyncLeasedTokens(self, name, await self.lease(name, tokens))
        try:
            yield held
        finally:
            await self.give_back(name, held.lease)


class AsyncLeasedTokens:
    """Tokens that a block holds. `TokenPoolService.leased` makes it."""

    def __init__(self, service: TokenPoolService, name: str, lease: TokenLease) -> None:
        self._service = service
        self._name = name
        self.lease = lease

    @property
    def left(self) -> int:
        """The tokens that were leased and not reported as used, as this task knows it."""
        return self.lease.left

    async def use(self, tokens: int) -> None:
        """Report tokens as used."""
        self.lease = await self._service.use(self._name, self.lease, tokens)


class Log(LogCalls, AsyncService):
    """One log of a project. Each method is awaited and returns what that of `stepwell.Log` does."""

    caller: AsyncCaller

    def __init__(self, session: Session, caller: AsyncCaller, watches: Watches, project: str, name: str) -> None:
        super().__init__(session, caller)
        self.project, self.name = checked_names(project, name)
        self._watches = watches

    async def extend(self, bodies: Iterable[Body]) -> Sequence[EntriesAppended]:
        """Append any number of entries, frame after frame; not atomic. Return each append.

        If some are refused, `PartlyRefused` has every outcome.
        """
        outcomes: list[EntriesAppended | StepwellError] = []
        for frame in in_appends(bodies):
            ((outcome, _),) = await self.caller.perform_each([append_call(self.project, self.name, frame, None)])
            outcomes.append(outcome)
        return all_appended(outcomes)

    async def entries(self, since: int = 0) -> AsyncIterator[StoredLogEntry]:
        """Yield all entries behind a position, page by page, until the end that the log has then."""
        while True:
            page = await self.since(since, limit=limits.PAGE_ROWS_MAX)
            for entry in page.entries:
                yield entry
            if not page.more:
                return
            since = page.entries[-1].position

    def watch(self, since: int | None = None) -> LogWatch:
        """Return an asynchronous iterator over the entries behind a position, and then over each new one.

        Without `since` it begins with the next entry; 0 is the beginning. `EntriesMissed` is raised, once, where
        entries were removed before the watch read them; iterating again continues behind them.
        """
        return LogWatch(
            (self.project, self.name),
            lambda position: self.since(position, limit=limits.LOG_WATCH_ENTRIES),
            self.status,
            self._watches,
            since,
        )

    def __repr__(self) -> str:
        return f"<stepwell.aio.Log {self.name!r} of {self.project!r}>"


class LogService(LogsCalls, AsyncService):
    """The logs of projects. Each method is awaited and returns what that of `stepwell.LogService` does."""


class PlanExecutionContext(ChangesetCalls, AsyncService):
    """The changes of one execution.

    Each method is awaited and returns what that of `stepwell.PlanExecutionContext` does.

    Tasks that share a context and open changesets side by side pass `changeset_id=`.
    """

    def __init__(self, session: Session, caller: AsyncCaller, plan_id: str, lease: int | None) -> None:
        """Make a context, and a blocking one with the same id, so that workflows record into the same changesets."""
        super().__init__(session, caller)
        self.plan_id = plan_id
        self.lease = lease
        self.blocking_client = execution.PlanExecutionContext(session, plan_id, lease)
        self.threads = caller.threads

    @property
    def context_id(self) -> str:
        """The id of this context, which it shares with its blocking counterpart."""
        return self.blocking_client.context_id

    async def entries(self, changeset_id: str) -> AsyncIterator[EntryRow]:
        """Yield the entries of a changeset in order of recording."""
        cursor: str | None = None
        while True:
            page = await self.page(changeset_id, limit=limits.PAGE_ROWS_MAX, cursor=cursor)
            for entry in page.reply.entries:
                yield entry
            if page.reply.cursor is None:
                return
            cursor = page.reply.cursor

    async def summary(self, changeset_id: str) -> ChangeSummary:
        """Return the numbers of a changeset."""
        return summary_of(changeset_id, [entry async for entry in self.entries(changeset_id)])

    def capture(self, root: str | os.PathLike[str], *, tool: str = "capture") -> AsyncCapture[Captured]:
        """Record what changes under `root` during a block: `async with context.capture(root) as captured:`."""
        return AsyncCapture(self.threads, self.blocking_client.capture(root, tool=tool))

    def workspace(
        self, root: str | os.PathLike[str], *, tool: str = "workspace", lease_ms: int = limits.LEASE_MS
    ) -> AsyncCapture[Path]:
        """Work in a private copy of a tree, and record it: `async with context.workspace(root) as path:`."""
        return AsyncCapture(self.threads, self.blocking_client.workspace(root, tool=tool, lease_ms=lease_ms))

    diff = run_in_thread(execution.PlanExecutionContext.diff)
    net_changes = run_in_thread(execution.PlanExecutionContext.net_changes)
    merge_children = run_in_thread(execution.PlanExecutionContext.merge_children)
    resolve = run_in_thread(execution.PlanExecutionContext.resolve)
    conflict_sides = run_in_thread(execution.PlanExecutionContext.conflict_sides)
    conflict_text = run_in_thread(execution.PlanExecutionContext.conflict_text)
    plan_diff = run_in_thread(execution.PlanExecutionContext.plan_diff)
    plan_summary = run_in_thread(execution.PlanExecutionContext.plan_summary)
    apply = run_in_thread(execution.PlanExecutionContext.apply)
    rollback = run_in_thread(execution.PlanExecutionContext.rollback)
