"""Work on the children of a plan as one of any number of agents: each takes ready children, one after another.

Agents do not coordinate with each other, and need not. The manager never gives one child to two agents; and a child
whose agent dies, or is paused for longer than its lease, is given to another agent as another attempt. An agent can
report on a child only under the lease that it was given, so the recorded state is always true: `complete` if the work
came to its end, and an error, with the exception's text, if it did not.

The plan keeps the text of an exception only. So its traceback is logged, or the exception itself is raised, as the
caller has chosen (`on_error`).
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, Generic, Literal, TypeVar, get_args

from msgspec import Struct

from stepwell import limits
from stepwell.client.api.plan_leases import plan_of
from stepwell.client.api.plans import PlanApi
from stepwell.client.api.watch import Watch
from stepwell.client.session.calls import Call
from stepwell.client.session.current_work import working_on
from stepwell.client.session.session import Session
from stepwell.client.workflows.heartbeat import Heartbeat
from stepwell.domain.events import AnyEvent, PlanMoved, SubplansDeclared
from stepwell.domain.plans.abilities import Abilities
from stepwell.domain.plans.commands import CompletePhase, FailPhase
from stepwell.domain.plans.model import Phase, Plan
from stepwell.domain.replies import ReadyStarted
from stepwell.errors import Busy, EventsMissed, InvalidArgument, LeaseLost, PlanNotReady
from stepwell.telemetry import Logger, LogLevel

_LOG: Final = Logger(LogLevel.WARNING)

OnError = Literal["raise", "continue"]
"""The choice of an agent's caller for exceptions of its function."""

ContextT = TypeVar("ContextT")
"""The type of context that an agent's function gets; a type variable, because the facade that defines it is above."""

MakeContext = Callable[[Session, str, int, Heartbeat], ContextT]
"""Makes the context of one child from the session, the child's id, its lease and the lease's heartbeat."""


class WorkDone(Struct, frozen=True):
    """The result of one agent: ids of children, in the order in which the agent finished each.

    `lost` children were taken from the agent while it worked: cancelled, or given to another agent after the lease
    expired. `errored` children failed for good, in any agent's hands. If `is_over`, nothing is left to do without
    intervention; if `is_for_others`, only children are left that this agent cannot do; otherwise the agent's waiting
    time ended.
    """

    completed: tuple[str, ...]
    failed: tuple[str, ...]
    lost: tuple[str, ...]
    errored: tuple[str, ...]
    is_over: bool
    is_for_others: bool = False


class SubplanAgent(Generic[ContextT]):
    """One agent, in one thread of the caller; a heartbeat thread renews the lease of the child it works on.

    `run(plan, context)` is the caller's function. The agent reports its outcome: returning completes the child's phase,
    raising fails it; then the agent goes on to the next child or raises, by `on_error`. With `straight`, the manager
    starts children in their execute phase at once; otherwise `run` is called for the strategize phase, too. An agent
    that does not work as the actor of a child's execute phase leaves that phase to others.
    """

    def __init__(
        self,
        plans: PlanApi,
        parent_plan_id: str,
        run: Callable[[Plan, ContextT], object],
        lease_ms: int,
        *,
        straight: bool,
        abilities: Abilities,
        on_error: OnError,
        make_context: MakeContext[ContextT],
    ) -> None:
        if on_error not in get_args(OnError):
            raise InvalidArgument(f"on_error is {on_error!r}: give 'raise' or 'continue'")
        self._plans = plans
        self._session = plans.session
        self._parent_plan_id = parent_plan_id
        self._run = run
        self._make_context = make_context
        self._lease_ms = lease_ms
        self._straight = straight
        self._abilities = abilities
        self._on_error = on_error
        self._completed: list[str] = []
        self._failed: list[str] = []
        self._lost: list[str] = []

    def work(self, wait_s: float | None) -> WorkDone:
        """Work on ready children until none is left for the agent, or until none has been ready for `wait_s`."""
        while True:
            found = self._next(wait_s)
            if found.plan is None:
                ended = (tuple(self._completed), tuple(self._failed), tuple(self._lost))
                return WorkDone(*ended, found.errored, is_over=found.is_over, is_for_others=found.is_for_others)
            plan: Plan | None = found.plan
            while plan is not None:
                plan = self._phase(plan)

    def _next(self, wait_s: float | None) -> ReadyStarted:
        """Return the next ready child, waiting for it if need be; without one if there will be none for this agent, or
        if `wait_s` has passed.
        """
        found = self._ask()
        if _is_answer(found):
            return found
        until_s = None if wait_s is None else time.monotonic() + wait_s
        # The watch is opened before the next question, so that a child that becomes ready in between is not missed.
        with _watching(self._session) as watch:
            while True:
                found = self._ask()
                left_s = None if until_s is None else until_s - time.monotonic()
                if _is_answer(found) or (left_s is not None and left_s <= 0):
                    return found
                self._wait(
                    watch, limits.AGENT_POLL_SECONDS if left_s is None else min(left_s, limits.AGENT_POLL_SECONDS)
                )

    def _ask(self) -> ReadyStarted:
        """Ask the manager for a ready child; it starts one under a lease in the same step."""
        able = self._abilities
        return self._plans.start_ready(
            self._parent_plan_id,
            lease_ms=self._lease_ms,
            straight=self._straight,
            actors=able.actors,
            labels=able.labels,
            read_only=able.read_only,
        )

    def _wait(self, watch: Watch | None, seconds: float) -> None:
        """Wait for an event that may make a child ready, at most for the time; without a watch, pause shortly."""
        if watch is None:
            threading.Event().wait(min(seconds, limits.AGENT_UNWATCHED_POLL_SECONDS))
            return
        until_s = time.monotonic() + seconds
        try:
            while (event := watch.get(max(0.0, until_s - time.monotonic()))) is not None:
                if self._concerns(event):
                    return
        except EventsMissed:  # one of the missed events may have been it
            return

    def _concerns(self, event: AnyEvent) -> bool:
        """Return True if an event is about the parent or one of its children."""
        match event:
            case PlanMoved():
                return self._parent_plan_id in {event.plan_id, event.parent_plan_id}
            case SubplansDeclared():
                return event.plan_id == self._parent_plan_id
            case _:
                return False

    def _phase(self, plan: Plan) -> Plan | None:
        """Run one phase of a child and report its outcome; return the child if its next phase follows at once.

        An error of `run` is reported, and then logged or raised. `KeyboardInterrupt` and the like are always raised.
        """
        assert plan.lease is not None
        token = plan.lease.token
        try:
            with Heartbeat(self._session, plan.plan_id, token, self._lease_ms) as heartbeat:
                return self._run_phase(plan, token, heartbeat)
        finally:
            # The commands are sent past `PlanApi`, which would forget the lease by plan id: by now the session may
            # hold a newer lease of the same child.
            if self._session.leases.get(plan.plan_id) == token:
                self._session.leases.pop(plan.plan_id, None)

    def _run_phase(self, plan: Plan, token: int, heartbeat: Heartbeat) -> Plan | None:
        """Call `run` under the lease, and complete or fail the phase."""
        try:
            with working_on(self._session.channel.address, plan.plan_id):
                _require_done(self._run(plan, self._make_context(self._session, plan.plan_id, token, heartbeat)))
            heartbeat.check()
            if plan.phase is Phase.STRATEGIZE and self._executes(plan):
                return self._plans.proceed(plan.plan_id, lease=token, lease_ms=self._lease_ms)
            self._session.perform(Call(CompletePhase(plan.plan_id, plan.phase, token), plan_of))
            self._completed.append(plan.plan_id)
        except BaseException as error:
            if not self._is_handled(plan, token, error):
                raise
        return None

    def _executes(self, plan: Plan) -> bool:
        """Return True if the agent works as the actor of a child's execute phase. Actors of an action never change."""
        actors = self._abilities.actors
        return actors is None or self._plans.get_action(plan.action_name).execution_actor in actors

    def _is_handled(self, plan: Plan, token: int, error: BaseException) -> bool:
        """Report an error, and return True if the agent goes on: then its traceback is logged.

        If the child was taken away, that is no error of `run`. A lost lease of another plan is one.
        """
        if isinstance(error, LeaseLost) and error.details.get("plan_id") == plan.plan_id:
            self._lost.append(plan.plan_id)
            return True
        self._fail(plan, token, error)
        if self._on_error == "raise" or not isinstance(error, Exception):
            return False
        _LOG.exception(
            "child.failed",
            plan_id=plan.plan_id,
            parent_plan_id=self._parent_plan_id,
            action=plan.action_name,
            phase=str(plan.phase),
            attempt=plan.attempt,
        )
        return True

    def _fail(self, plan: Plan, token: int, error: BaseException) -> None:
        """Report why a child failed; if its lease is lost, count it as lost instead."""
        # Exceptions may carry surrogates, for instance of file names, which a message cannot.
        text = f"{type(error).__name__}: {error}".encode(errors="replace").decode()
        reason = text[: limits.ERROR_CHARS_MAX]
        try:
            self._session.perform(Call(FailPhase(plan.plan_id, plan.phase, token, reason), plan_of))
        except (LeaseLost, PlanNotReady):
            self._lost.append(plan.plan_id)
        else:
            self._failed.append(plan.plan_id)


def _is_answer(found: ReadyStarted) -> bool:
    """Return True if there is a child, or if waiting for one is of no use."""
    return found.plan is not None or found.is_over or found.is_for_others


@contextmanager
def _watching(session: Session) -> Generator[Watch | None]:
    """Open a watch for the block; None if the manager has no room for another one."""
    try:
        watch = Watch(session.channel, None, None)
    except Busy:
        yield None
        return
    with watch:
        yield watch


def _require_done(result: object) -> None:
    """Raise `InvalidArgument` if `run` returned a coroutine: its work has not been done."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise InvalidArgument("run was not run: it is called in a thread, and must be an ordinary function, not async")
