"""A lease that is renewed in the background, for as long as somebody works under it.

Whoever works asks `check` before each step that must not be taken without it. It knows of a lease that was taken away
as soon as the next renewal is refused, which is a matter of seconds however long the lease is; and of one that ran out
while this process was stopped or cut off without asking anybody, by the clock. What the manager is asked to do it
refuses by itself: this is for everything else.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from stepwell import limits
from stepwell.client.api.plan_leases import plan_of
from stepwell.client.session.calls import Call
from stepwell.client.session.session import Session
from stepwell.domain.plans.commands import RenewLease
from stepwell.errors import Busy, LeaseLost, Refused, StepwellError


def now_s() -> float:
    """A clock that goes on while the machine sleeps, as the manager's does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Heartbeat:
    """A block under a lease."""

    def __init__(
        self, session: Session, plan_id: str, lease_token: int, lease_ms: int, *, asked_at_s: float | None = None
    ) -> None:
        """`asked_at_s` is when the lease was asked for: it is over here before it is over at the manager."""
        self.token = lease_token
        self._session = session
        self._command = RenewLease(plan_id, lease_token, lease_ms)
        self._lease_s = lease_ms / 1000
        self._held_until_s = (now_s() if asked_at_s is None else asked_at_s) + self._lease_s
        self._refusal: StepwellError | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stepwell-heartbeat", daemon=True)

    def check(self) -> None:
        """Raise `LeaseLost` unless the lease is held, as far as can be known without asking."""
        plan_id, lease = self._command.plan_id, self._command.lease
        if self._refusal is None and now_s() < self._held_until_s:
            return
        why = self._refusal.message if self._refusal is not None else "it was not renewed in time"
        raise LeaseLost(f"stop working on plan {plan_id!r}: {why}", plan_id=plan_id, lease=lease)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        usual_s = pause_s = min(self._lease_s / 3, limits.HEARTBEAT_SECONDS_MAX)
        while not self._is_over.wait(pause_s):
            asked_at_s = now_s()
            pause_s = usual_s / 4  # if it is no answer
            try:
                self._session.perform(Call(self._command, plan_of))
            except Busy:
                continue
            except Refused as error:
                self._refusal = error
                return
            except StepwellError:  # nobody there, for now: what counts is whether the lease outlives that
                continue
            self._held_until_s = asked_at_s + self._lease_s
            pause_s = usual_s
