"""The calls of a workload, made on a manager: by a blocking client, and by a client of an event loop.

The functions that turn a call into a request and an answer into an outcome are the same for both. They remember the
revision of each value that was read or written, because a compare-and-set of the client names a revision. The revision
goes no further: the record has the value that was expected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, cast

from stepwell import aio, limits
from stepwell.client.api.batch import CommandBuffer
from stepwell.client.api.fragments import StoredFragment
from stepwell.client.api.log_entries import LogListing, StoredLogEntry
from stepwell.client.api.views import View
from stepwell.client.client import Client
from stepwell.client.session.calls import Pending
from stepwell.domain.plans.model import Plan
from stepwell.domain.replies import FragmentPlaced
from stepwell.domain.tiers.model import Fragment
from stepwell.errors import (
    BodyGone,
    Conflict,
    InvalidArgument,
    LeaseLost,
    NotFound,
    PlanNotReady,
    Refused,
    RuntimeLost,
    StepwellError,
    TransactionAborted,
)
from stepwell.prove.history import (
    Accepted,
    AnyCall,
    AnyOutcome,
    Declined,
    DeleteCall,
    GetCall,
    LogAppendCall,
    LogPopCall,
    LogReadCall,
    NoAnswer,
    NotDone,
    Observed,
    PlanReadCall,
    PlanStepCall,
    ReplaceCall,
    SnapshotCall,
    StoreCall,
    TransactCall,
)
from stepwell.prove.workload import Request

_Services = Client | aio.Client | CommandBuffer


class _Revisions:
    """The revision of each value that this lane has seen, which a compare-and-set has to name."""

    def __init__(self, project: str) -> None:
        self.project: Final = project
        self._known: dict[tuple[str, str | None], int] = {}

    def expected(self, write: StoreCall | ReplaceCall) -> int | None:
        """Return the revision that a write expects; None if it expects nothing, 0 if it expects no value.

        Raise `InvalidArgument` if the client has accepted the value and given no revision: then nothing is sent.
        """
        if isinstance(write, StoreCall):
            return None
        revision = 0 if write.expected is None else self._known.get((write.key, write.expected))
        if revision is None:
            raise InvalidArgument(f"no revision of {write.expected!r} at {write.key!r} is known")
        return revision

    def fragment(self, write: StoreCall | ReplaceCall) -> Fragment:
        """Return the fragment that a write stores."""
        return Fragment(fragment_id=write.key, project=self.project, body=write.value, tokens=1)

    def note(self, key: str, value: str, revision: int) -> None:
        """Note the revision of a value."""
        self._known[key, value] = revision


def _asked(services: _Services, call: AnyCall, revisions: _Revisions) -> object:
    """Make a call: return its result, an awaitable of it, or its `Pending` in a batch."""
    match call:
        case StoreCall() | ReplaceCall():
            return services.tiers.store(revisions.fragment(call), expected_revision=revisions.expected(call))
        case GetCall():
            return services.tiers.get(call.key, project=revisions.project)
        case DeleteCall():
            return services.tiers.delete(call.key, project=revisions.project)
        case PlanReadCall():
            return services.plans.get_plan(call.plan)
        case PlanStepCall():
            # A lease that ended by itself would be a transition that no call has made.
            lease = {"lease_ms": limits.LEASE_MS_MAX} if call.step.startswith("start") else {}
            step = cast("Callable[..., object]", getattr(services.plans, call.step))
            return step(call.plan, **lease)
        case LogAppendCall():
            return services.log(call.log, project=revisions.project).append(call.value)
        case LogPopCall():
            return services.log(call.log, project=revisions.project).pop()
        case LogReadCall():
            return services.log(call.log, project=revisions.project).since(limit=limits.PAGE_ROWS_MAX)
        case TransactCall() | SnapshotCall():
            raise AssertionError("it is a request of its own")


def _answered(call: AnyCall, result: object, revisions: _Revisions) -> AnyOutcome:
    """Return the outcome of a call that was accepted."""
    match call, result:
        case GetCall(), StoredFragment():
            revisions.note(call.key, result.text, result.revision)
            return Observed((result.text,))
        case StoreCall() | ReplaceCall(), FragmentPlaced():
            revisions.note(call.key, call.value, result.revision)
            return Accepted()
        case LogPopCall(), StoredLogEntry() | None:
            return Observed((None if result is None else result.text,))
        case LogReadCall(), LogListing():
            return Observed(tuple(entry.text for entry in result))
        case PlanReadCall(), Plan():
            return Observed((f"{result.phase}/{result.state}",))
        case _:
            return Accepted()


def _failed(call: AnyCall, error: StepwellError) -> AnyOutcome:
    """Return the outcome of a call that raised an error. A manager that is gone for good ends the run."""
    match call, error:
        case GetCall(), NotFound():
            return Observed((None,))
        case _, Conflict() | NotFound() | PlanNotReady() | LeaseLost():
            return Declined()
        case TransactCall(), TransactionAborted() if error.details.get("cause") == Conflict.__name__:
            return Declined()
        case _, Refused():
            return NotDone()
        case _, RuntimeLost():
            raise error
        case _:
            return NoAnswer()


def _snapshot(view: View, keys: tuple[str, ...], revisions: _Revisions) -> AnyOutcome:
    """Return the values of a view; no answer if a body was deleted since it was opened."""
    found = [view.get(key, project=revisions.project) for key in keys]
    try:
        values = tuple(None if each is None else each.text for each in found)
    except BodyGone:
        return NoAnswer()
    for key, value, each in zip(keys, values, found, strict=True):
        if each is not None and value is not None:
            revisions.note(key, value, each.revision)
    return Observed(values)


def _collected(request: Request, pending: list[object], revisions: _Revisions) -> list[AnyOutcome]:
    """Return the outcomes of the calls of a batch."""
    outcomes: list[AnyOutcome] = []
    for call, each in zip(request, pending, strict=True):
        assert isinstance(each, Pending)
        try:
            outcomes.append(_answered(call, cast("Pending[object]", each).result(), revisions))
        except StepwellError as error:
            outcomes.append(_failed(call, error))
    return outcomes


class BlockingPerformer:
    """Makes requests with a blocking client, which other threads may use too. One thread uses the performer."""

    def __init__(self, client: Client, project: str) -> None:
        self._client = client
        self._revisions = _Revisions(project)

    def perform(self, request: Request) -> list[AnyOutcome]:
        """Make a request, and return the outcome of each of its calls."""
        try:
            return self._perform(request)
        except StepwellError as error:
            return [_failed(call, error) for call in request]

    def _perform(self, request: Request) -> list[AnyOutcome]:
        match request:
            case (TransactCall() as call,):
                with self._client.transaction() as transaction:
                    pending = [_asked(transaction, write, self._revisions) for write in call.writes]
                _collected(call.writes, pending, self._revisions)
                return [Accepted()]
            case (SnapshotCall() as call,):
                return [_snapshot(self._client.view([self._revisions.project]), call.keys, self._revisions)]
            case (call,):
                return [_answered(call, _asked(self._client, call, self._revisions), self._revisions)]
            case _:
                with self._client.batch() as batch:
                    pending = [_asked(batch, call, self._revisions) for call in request]
                return _collected(request, pending, self._revisions)


class LoopPerformer:
    """Makes requests with the client of an event loop. Tasks of that loop may use it at the same time."""

    def __init__(self, client: aio.Client, project: str) -> None:
        self._client = client
        self._revisions = _Revisions(project)

    async def perform(self, request: Request) -> list[AnyOutcome]:
        """Make a request, and return the outcome of each of its calls."""
        try:
            return await self._perform(request)
        except StepwellError as error:
            return [_failed(call, error) for call in request]

    async def _perform(self, request: Request) -> list[AnyOutcome]:
        match request:
            case (TransactCall() as call,):
                async with self._client.transaction() as transaction:
                    pending = [_asked(transaction, write, self._revisions) for write in call.writes]
                _collected(call.writes, pending, self._revisions)
                return [Accepted()]
            case (SnapshotCall() as call,):
                view = await self._client.view([self._revisions.project])
                return [_snapshot(view, call.keys, self._revisions)]
            case (call,):
                result = await cast("Awaitable[object]", _asked(self._client, call, self._revisions))
                return [_answered(call, result, self._revisions)]
            case _:
                async with self._client.batch() as batch:
                    pending = [_asked(batch, call, self._revisions) for call in request]
                return _collected(request, pending, self._revisions)
