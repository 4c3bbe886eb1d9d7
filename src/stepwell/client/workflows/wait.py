"""Waiting for another session's work on a plan, for the lock of a root, and for a plan's turn at a tree.

The first two are bounded and look again about once a second, because the thing that is waited for may become
unnecessary: the plan may end elsewhere while this process waits for the tree.

A caller that waits for its turn joins the manager's queue of the tree, and is told its place at once and with each
change, by events. The manager keeps the ticket while the plan is being applied, so that others see what they wait for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Self

from stepwell import limits
from stepwell.client.api.plans import PlanApi
from stepwell.client.api.watch import Watch
from stepwell.client.session.session import Session
from stepwell.domain.applies.model import queued_error
from stepwell.domain.events import AboutPlan, LeaseRenewed
from stepwell.domain.plans.model import Plan, PlanState
from stepwell.domain.replies import ApplyQueued
from stepwell.errors import Busy, EventsMissed, PlanNotReady, StepwellError, TreeInUse
from stepwell.trees.lock import RootLock

OnPlace = Callable[[ApplyQueued], None]
"""A function that is told the caller's place in a queue, whenever it has changed."""


def wait_for_lease_end(session: Session, plan: Plan, until_s: float, wait_s: float) -> None:
    """Return when the plan is no longer processed under the lease that it has now; `Busy` at the time `until_s`.

    `until_s` is on the monotonic clock; `wait_s` is the caller's whole waiting time, for the message. Events end the
    wait early. If the manager has no room for another watch, the plan is polled.
    """
    with ExitStack() as stack:
        watch: Watch | None = None
        with suppress(Busy):
            watch = stack.enter_context(Watch(session.channel, None, plan.projects))
        while True:
            now = PlanApi(session).get_plan(plan.plan_id)
            if now.state is not PlanState.PROCESSING or now.fence != plan.fence:
                return
            rest_s = until_s - time.monotonic()
            if rest_s <= 0:
                holder = now.lease.session_id if now.lease else None
                raise Busy(
                    f"plan {plan.plan_id!r} is {now.position} by session {holder!r}, and {wait_s:g} s were not "
                    "enough for it: call again to go on waiting",
                    plan_id=plan.plan_id,
                )
            wait_for_event(watch, plan.plan_id, min(rest_s, limits.APPLY_POLL_SECONDS))


@contextmanager
def wait_for_root_lock(root: str, until_s: float, wait_s: float) -> Generator[RootLock | None]:
    """Hold the lock of a root for the block.

    Gives None after `limits.APPLY_POLL_SECONDS`, so that the caller can check whether the lock is still wanted before
    it waits again. Raises `Busy`, with the holder's process id, at the time `until_s`, and `TreeInUse` at once if the
    tree is being captured, because that may take hours.
    """
    rest_s = until_s - time.monotonic()
    with ExitStack() as stack:
        lock: RootLock | None = None
        try:
            lock = stack.enter_context(RootLock(root, wait_s=max(0.0, min(rest_s, limits.APPLY_POLL_SECONDS))))
        except TreeInUse:
            raise
        except Busy as busy:
            if rest_s <= limits.APPLY_POLL_SECONDS:
                pid = busy.details.get("pid")
                if pid is None:
                    raise
                raise Busy(
                    f"process {pid} is changing {root!r}, and {wait_s:g} s were not enough: try again later",
                    pid=pid,
                ) from busy
        yield lock


def wait_for_event(watch: Watch | None, plan_id: str, seconds: float) -> None:
    """Return when an event of the plan other than a renewal arrives, when events were missed, or after the time."""
    if watch is None:
        time.sleep(seconds)
        return
    until_s = time.monotonic() + seconds
    try:
        while (event := watch.get(max(0.0, until_s - time.monotonic()))) is not None:
            if isinstance(event, AboutPlan) and event.plan_id == plan_id and not isinstance(event, LeaseRenewed):
                return
    except EventsMissed:
        return


class ApplyTurn:
    """A context manager: one caller's ticket, for one thread. Leaving the block ends the ticket.

    `tree` is the real path of the root, as valid text. `timeout_s` bounds the waiting; None waits for any time.
    """

    def __init__(
        self,
        session: Session,
        plan_id: str,
        tree: str,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
        on_place: OnPlace | None = None,
    ) -> None:
        self._session = session
        self._plans = PlanApi(session)
        self._plan_id = plan_id
        self._tree = tree
        self._priority = priority
        self._timeout_s = timeout_s
        self._until_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._on_place = on_place
        self._ticket_id: str | None = None
        self._told: tuple[int, int, str | None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ticket_id is not None:
            with suppress(StepwellError):  # it ends with the session, too
                self._plans.leave_apply_queue(self._ticket_id)

    def wait(self, plan: Plan) -> bool:
        """Return when it is the plan's turn, or when the plan is not queued for apply any more: True after waiting.

        Called again while it is the plan's turn, it gives the turn more time. Raises `Busy` past the waiting time.
        """
        if self._is_turn():
            return False
        with ExitStack() as stack:
            watch: Watch | None = None
            with suppress(Busy):  # there are too many watchers: the manager is asked now and then
                watch = stack.enter_context(Watch(self._session.channel, None, plan.projects))
            pause_s = limits.APPLY_POLL_SECONDS if watch is None else limits.APPLY_QUEUE_CHECK_SECONDS
            # The place is asked for again, because it may have changed before the watch was there.
            while not self._is_turn():
                rest_s = pause_s if self._until_s is None else self._until_s - time.monotonic()
                if rest_s <= 0:
                    raise self._late()
                wait_for_event(watch, self._plan_id, min(rest_s, pause_s))
        return True

    def _is_turn(self) -> bool:
        """Join the queue, or ask for the place; return True if the caller need not wait any more."""
        ticket_id = self._ticket_id = self._ticket_id or self._session.new_id()
        try:
            found = self._plans.join_apply_queue(
                self._plan_id, self._tree, priority=self._priority, ticket_id=ticket_id
            )
        except PlanNotReady:  # another process has applied the plan, or it has ended in another way
            return True
        told = (found.place, found.plans, found.applying)
        if told != self._told and self._on_place is not None:
            self._on_place(found)
        self._told = told
        return found.place == 1

    def _late(self) -> Busy:
        """Return the error of a caller that has waited for too long."""
        place, plans, _ = self._told or (0, 0, None)
        return Busy(
            f"plan {self._plan_id!r} is number {place} of {plans} in the queue of {self._tree!r}, and "
            f"{self._timeout_s:g} s were not enough: call again to wait at the end of the queue",
            plan_id=self._plan_id,
            place=place,
            plans=plans,
        )


def require_no_queue(plans: PlanApi, plan_id: str, tree: str) -> None:
    """Raise `TreeQueued` if other plans wait for a tree, and the plan is not the first of them.

    The manager checks the same when the plan starts. This is earlier: a caller that may not overtake need not wait for
    the tree's lock.
    """
    queue = plans.apply_queue(tree)
    is_first = any(each.plan_id == plan_id and each.place == queue.at_work + 1 for each in queue.tickets)
    if queue.plans > queue.at_work and not is_first:
        raise queued_error(tree, plan_id, queue.plans + 1, queue.plans)
