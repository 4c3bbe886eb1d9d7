"""Waiting for what somebody else does with a plan, told by events; and for a turn at a tree."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress

from stepwell import limits
from stepwell.client.api.plans import PlanApi
from stepwell.client.api.watch import Watch
from stepwell.client.session.session import Session
from stepwell.domain.events import AboutPlan, LeaseRenewed
from stepwell.domain.plans.model import Plan, PlanState
from stepwell.errors import Busy, EventsMissed
from stepwell.trees.lock import RootLock


def await_end(session: Session, plan: Plan, until_s: float, wait_s: float) -> None:
    """Return when nobody works on the plan under the lease that it has; or `Busy`."""
    with ExitStack() as stack:
        watch: Watch | None = None
        with suppress(Busy):  # so many watch that nobody else may: then it is looked now and then
            watch = stack.enter_context(Watch(session.channel, None, plan.projects))
        while True:
            now = PlanApi(session).get_plan(plan.plan_id)
            if now.state is not PlanState.PROCESSING or now.fence != plan.fence:
                return
            rest_s = until_s - time.monotonic()
            if rest_s <= 0:
                holder = now.lease.session_id if now.lease else None
                raise Busy(
                    f"plan {plan.plan_id!r} is {now.position} by session {holder!r}, and {wait_s:g} seconds were not "
                    "enough for it: call again to go on waiting",
                    plan_id=plan.plan_id,
                )
            _await_event(watch, plan.plan_id, min(rest_s, limits.APPLY_LOOK_SECONDS))


@contextmanager
def await_turn(root: str, until_s: float, wait_s: float) -> Generator[RootLock | None]:
    """A turn at a root. None after a while: then look whether it is still wanted. `Busy` when the time is over."""
    rest_s = until_s - time.monotonic()
    with ExitStack() as stack:
        turn: RootLock | None = None
        try:
            turn = stack.enter_context(RootLock(root, wait_s=max(0.0, min(rest_s, limits.APPLY_LOOK_SECONDS))))
        except Busy as busy:
            if rest_s <= limits.APPLY_LOOK_SECONDS:
                pid = busy.details["pid"]
                raise Busy(
                    f"process {pid} is changing {root!r}, and {wait_s:g} seconds were not enough: try again later",
                    pid=pid,
                ) from busy
        yield turn


def _await_event(watch: Watch | None, plan_id: str, seconds: float) -> None:
    """Something happened to the plan, or might have, or nothing has for a while."""
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
