"""Waiting for another session's work on a plan, and for the lock of a root.

Both waits are bounded and both look again about once a second, because the thing that is waited for may become
unnecessary: the plan may end elsewhere while this process waits for the tree.
"""

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
from stepwell.errors import Busy, EventsMissed, TreeInUse
from stepwell.trees.lock import RootLock


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
