"""`SessionRules`: the state of a session, and what a welcome, an answer or a lost manager means for it.

The rules do no I/O and know no time: a driver tells them what happened and does what they decide. There are two
drivers, the blocking `channel.Channel` with its pool, and `stepwell.aio.channel.Channel`. Both share one `SessionRules`
if they belong to one client. `delivery.Delivery` has the rules for one message.

What a welcome means (`SessionRules.welcomed`):

| the welcome has            | meaning                                                 | decision                      |
|----------------------------|---------------------------------------------------------|-------------------------------|
| another epoch              | another manager, without the state of the first         | no connection: connect anew   |
| a revision before one seen | the manager has lost writes that this session has seen  | the session is over, for good |
| another generation         | the manager has forgotten the session, with its leases  | adopt it, without leases      |
| none of these              | the same session                                        | adopt it                      |

The second case is decided by the client alone, and the manager gets a `Goodbye` only: otherwise one client's claim
could end the service for all others.
"""

from __future__ import annotations

import threading
from typing import NamedTuple, Protocol

from stepwell import limits
from stepwell.client.session.request_numbers import RequestNumbers
from stepwell.errors import Busy, HistoryLost, OutcomeUnknown, ProtocolError, RuntimeLost, StepwellError
from stepwell.protocol.messages import (
    VERSION,
    Events,
    Hello,
    ManagerMessage,
    Refusal,
    Rejected,
    Response,
    Status,
    ViewOpened,
    Welcome,
)


class Unreachable(Exception):
    """No connection can be made. `is_final` says that another attempt would fail in the same way.

    It is internal: `Delivery.unreachable` decides whether there is a further attempt, or which error is raised.
    """

    def __init__(self, error: StepwellError | OSError, *, is_final: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_final = is_final


class SessionConnection(Protocol):
    """A connection of the session; blocking or asynchronous. `SessionRules` sets the generation and the revision."""

    generation: int  # of the session, when it was welcomed on this connection
    seen_before: int  # the highest revision that the session had seen before it said Hello on this connection
    is_used: bool  # carried a call before, and may have died while it was idle


class Observation(NamedTuple):
    """The facts outside of the session that decide about a further attempt, as the driver sees them after a failure."""

    now_s: float  # a monotonic time
    jitter: float  # a random factor for a pause
    is_given_up: bool  # the program that started the manager would not start it again; False if it is unknown
    is_restarting: bool  # a program holds the restart lock of the address
    cause: StepwellError | None  # why the manager is not started again


class SessionRules:
    """The identity of one session, its leases, its request numbers, and what it knows about the manager.

    The channel owns it. Any number of threads may use it: `_lock` is held for a few statements, and never during I/O.

    - `welcome` is the last one; None before the first. It is never of another epoch than the first.
    - `ended_by` is the reason for which the last manager ended, if the manager told it and no other has welcomed us.
    - `leases` maps plans to the tokens that this session received, and `token_leases` has the ids of its leases of
      pools. They are emptied when the manager has forgotten the session, and in a forked child: they are lost then.
    - `is_closed` never becomes False again. `is_over` is True if it is closed, or if the manager has lost writes that
      this session has seen: then there is no further connection, and `require_open` raises the reason.
    """

    def __init__(self, address: str, projects: tuple[str, ...] | None, session_id: str, label: str = "") -> None:
        self.address = address
        self.projects = projects
        self.label = label
        self.numbers = RequestNumbers()
        self.leases: dict[str, int] = {}
        self.token_leases: set[str] = set()
        self.is_closed = False
        self.is_over = False
        self._begin(session_id)

    def _begin(self, session_id: str) -> None:
        """Begin a session that the manager does not know yet."""
        self.session_id = session_id
        self.welcome: Welcome | None = None
        self.ended_by: StepwellError | None = None
        self._seen = 0  # the highest revision in an answer; it only rises
        self._lost: HistoryLost | None = None  # set once
        self.is_over = self.is_closed
        self._lock = threading.Lock()

    def in_forked_child(self, session_id: str) -> None:
        """Begin another session in a forked child; a closed one stays closed.

        The lock is replaced, because another thread of the parent may have held it during the fork.
        """
        self.forget_leases()
        self.numbers.in_forked_child()
        self._begin(session_id)

    def forget_leases(self) -> None:
        """Forget all leases, because they are lost or given up."""
        self.leases.clear()
        self.token_leases.clear()

    # What happened.

    def close(self) -> None:
        """End the session, because the program closes its client."""
        self.is_closed = self.is_over = True

    def hello(self, connection: SessionConnection, mapped: tuple[int, ...]) -> Hello:
        """Return the first message of a new connection; it names the segments that are already mapped.

        The highest revision that was seen is noted now, because other connections may see higher ones while the welcome
        is on its way.
        """
        connection.seen_before = self._seen
        return Hello(VERSION, self.session_id, self.projects, mapped, self.label)

    def welcomed(self, connection: SessionConnection, answer: ManagerMessage) -> Welcome:
        """Adopt the welcome in the answer to Hello and return it, or raise `Unreachable` (see the module's table)."""
        welcome = _welcome_in(answer)
        with self._lock:
            known = self.welcome
            if self._lost is not None:
                raise _history_lost(self._lost)
            if known is not None and welcome.epoch != known.epoch:
                gone = RuntimeLost("the manager was replaced by another one, and its state is gone: connect anew")
                raise Unreachable(gone, is_final=True)
            if known is not None and welcome.revision < connection.seen_before:
                self._lost, self.is_over = history_lost_error(connection.seen_before, welcome), True
                raise _history_lost(self._lost)
            if known is not None and welcome.generation != known.generation:
                self.forget_leases()
            self._seen = max(self._seen, welcome.revision)
            connection.generation = welcome.generation
            self.welcome, self.ended_by = welcome, None
            return welcome

    def greeting_failed(self, error: StepwellError) -> Unreachable:
        """Return what an error between Hello and its answer means: whether another attempt may succeed.

        A manager that goes away during the greeting may come back. An answer that cannot be decoded is final.
        """
        if self.is_closed:
            return client_closed_error()
        if not isinstance(error, RuntimeLost | OutcomeUnknown):
            return Unreachable(error, is_final=True)
        lost = RuntimeLost(f"the manager at {self.address!r} went away while greeting")
        lost.__cause__ = error
        return Unreachable(lost, is_final=False)

    def answered(self, answer: ManagerMessage) -> None:
        """Note the revision of an answer or of events, with which a later welcome is compared.

        The results of a response are in the order of their revisions.
        """
        if isinstance(answer, Response):
            if not answer.results:
                return
            revision = answer.results[-1].revision
        elif isinstance(answer, Status | ViewOpened | Events):
            revision = answer.revision
        else:
            return
        if revision > self._seen:
            with self._lock:
                self._seen = max(self._seen, revision)

    def manager_ended(self, refusal: Refusal) -> OutcomeUnknown:
        """Note why the manager ends, and return the error of the request that it does not answer any more."""
        self.ended_by = refusal.error()
        return OutcomeUnknown(f"the manager ended before it answered: {self.ended_by.message}")

    # What follows.

    def require_open(self) -> None:
        """Raise `Unreachable` if the client is closed, or its session is over."""
        if self.is_closed:
            raise client_closed_error()
        if self._lost is not None:
            raise _history_lost(self._lost)

    def expects_restart(self, seen: Observation) -> bool:
        """Return True if the manager's state outlives it and, as far as this client knows, a program restarts it.

        A client that has never been connected waits only if such a program holds the restart lock of the address. Once
        that program has given up, no client waits.
        """
        if seen.is_given_up:
            return False
        if self.welcome is None:
            return seen.is_restarting
        return self.welcome.database is not None and seen.cause is None

    def should_resubscribe(self, lost_at_s: float, error: RuntimeLost, seen: Observation) -> bool:
        """Return True if another attempt to restore a subscription that was lost at `lost_at_s` may succeed.

        An error without a cause is a statement (this client is closed, or the manager was replaced and its state is
        gone), not a broken connection. So another attempt would fail in the same way.
        """
        in_time = seen.now_s < lost_at_s + limits.RECONNECT_SECONDS_MAX
        return in_time and self.expects_restart(seen) and error.__cause__ is not None


def _welcome_in(answer: ManagerMessage) -> Welcome:
    """Return the welcome; raise `Unreachable` for any other answer. Only a busy manager is worth another attempt."""
    match answer:
        case Welcome():
            return answer
        case Rejected():
            refusal = answer.refusal.error()
            raise Unreachable(refusal, is_final=not isinstance(refusal, Busy))
        case _:
            kind = type(answer).__name__
            raise Unreachable(ProtocolError(f"the manager answered Hello with {kind}"), is_final=True)


def history_lost_error(seen: int, welcome: Welcome) -> HistoryLost:
    """Return the error of a session that has seen a higher revision than the manager has."""
    return HistoryLost(
        f"the manager has lost writes: it is at revision {welcome.revision}, and this client has seen revision {seen} "
        f"of the same epoch {welcome.epoch}. Its data directory was damaged or replaced by an older one: see "
        "`stepwell doctor`. This session is over: connect anew, and read the state",
        seen=seen,
        found=welcome.revision,
        epoch=welcome.epoch,
    )


def _history_lost(lost: HistoryLost) -> Unreachable:
    """Return the error of one call, with a traceback of its own, in a session that is over."""
    return Unreachable(HistoryLost(lost.message, **lost.details), is_final=True)


def client_closed_error() -> Unreachable:
    """Return the error of a call on a client that its own program has closed."""
    return Unreachable(RuntimeLost("this client is closed: connect anew"), is_final=True)
