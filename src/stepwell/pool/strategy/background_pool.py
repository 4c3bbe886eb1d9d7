"""The workers of a program: a supervisor in a thread of its own, for as long as the program wants them."""

from __future__ import annotations

import os
import threading

from stepwell import limits
from stepwell.errors import StartFailed
from stepwell.pool.strategy.supervisor import PoolSettings, PoolStatus, Supervisor


class BackgroundPool:
    """Started, ready unless nobody waits for that, and gone when it is closed."""

    def __init__(self, settings: PoolSettings, *, is_awaited: bool = True) -> None:
        self._owner = os.getpid()
        self._changed = threading.Condition()
        self._latest = PoolStatus(wanted=settings.workers, ready=0, restarts=0, pids=())
        self._supervisor = Supervisor(settings, self._note)
        # Its end is the end of its workers, as the kernel sees it.
        self._thread = threading.Thread(target=self._supervisor.run, name="stepwell-workers", daemon=True)
        self._thread.start()
        try:
            if is_awaited:
                self._await_ready()
        except BaseException:
            self.close()
            raise

    @property
    def status(self) -> PoolStatus:
        """How the workers are."""
        return self._supervisor.status

    def release(self) -> None:
        """Let the workers end, without waiting for them."""
        if self._owner == os.getpid():  # a forked child has no say in its parent's
            self._supervisor.stop()

    def close(self) -> None:
        """Let the workers end, and see that they do."""
        if self._owner == os.getpid():
            self._supervisor.stop()
            self._thread.join()

    def _note(self, status: PoolStatus) -> None:
        with self._changed:
            self._latest = status
            self._changed.notify_all()

    def _await_ready(self) -> None:
        with self._changed:
            self._changed.wait_for(self._is_settled, limits.WORKER_START_SECONDS_MAX)
            status = self._latest
        if status.problem or status.ready < status.wanted:
            why = status.problem or f"{status.ready} of {status.wanted} were ready after 30 s"
            raise StartFailed(f"the workers did not come up: {why}")

    def _is_settled(self) -> bool:
        return bool(self._latest.problem) or self._latest.ready >= self._latest.wanted
