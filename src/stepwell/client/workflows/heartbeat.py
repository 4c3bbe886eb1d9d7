"""A lease that is renewed in the background while its holder works.

The holder calls `check` before each step that must not be taken without the lease. `check` asks no manager. It knows of
a lease that was taken away once the next renewal is refused, which takes seconds however long the lease is. It knows of
a lease that expired while this process was stopped or disconnected from the clock. Commands to the manager need no
check, because the manager refuses them by itself; it is for everything else, such as changes to files.
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
    """Return the time of a clock that runs on while the machine sleeps, because the manager's leases do, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Heartbeat:
    """A context manager that renews a lease from a thread of its own until the block ends.

    `check` may be called from any thread. Leaving the block stops the renewals and waits for the thread; it does not
    release the lease.

    Guarantee, if `asked_at_s` is given: as long as `check` returns, the lease has not expired at the manager. Without
    it, the first lease may end there earlier, by the time that the request took.
    """

    def __init__(
        self, session: Session, plan_id: str, lease_token: int, lease_ms: int, *, asked_at_s: float | None = None
    ) -> None:
        """Make one for a lease of the given length.

        `asked_at_s` is the time just before the lease was requested (`now_s`). Counting from there, the lease ends here
        before it ends at the manager.
        """
        self.token = lease_token
        self._session = session
        self._command = RenewLease(plan_id, lease_token, lease_ms)
        self._lease_s = lease_ms / 1000
        self._held_until_s = (now_s() if asked_at_s is None else asked_at_s) + self._lease_s
        self._refusal: StepwellError | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stepwell-heartbeat", daemon=True)

    def check(self) -> None:
        """Raise `LeaseLost` if a renewal was refused or the lease was not renewed in time."""
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
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        """Renew three times per lease, more often for long leases; retry sooner after a renewal without an answer."""
        interval_s = pause_s = min(self._lease_s / 3, limits.HEARTBEAT_SECONDS_MAX)
        while not self._stopped.wait(pause_s):
            asked_at_s = now_s()
            pause_s = interval_s / 4
            try:
                self._session.perform(Call(self._command, plan_of))
            except Busy:
                continue
            except Refused as error:
                self._refusal = error
                return
            except StepwellError:  # the manager cannot be reached now; `check` knows when the lease has expired
                continue
            self._held_until_s = asked_at_s + self._lease_s
            pause_s = interval_s
