"""`BackgroundPool`: a supervisor with its workers in a thread of the program, as `Runtime` and `serve` use it."""

from __future__ import annotations

import os
import threading

from stepwell import limits
from stepwell.errors import StartFailed
from stepwell.pool.strategy.settings import PoolSettings, PoolStatus
from stepwell.pool.strategy.supervisor import Supervisor


class BackgroundPool:
    """A running pool of strategy workers. Any thread of the process that made it may use it.

    The constructor waits until all workers are ready, unless `is_awaited` is False, and raises StartFailed if they
    are not in time. After `close` no worker is left. In a forked child, `release` and `close` do nothing.
    """

    def __init__(self, settings: PoolSettings, *, is_awaited: bool = True) -> None:
        self._owner_pid = os.getpid()
        self._changed = threading.Condition()
        self._latest = PoolStatus(wanted=settings.workers, ready=0, restarts=0, pids=())
        self._supervisor = Supervisor(settings, self._on_change)
        # A daemon, because its end, and with it the end of the workers, has to come with the program's.
        self._thread = threading.Thread(target=self._supervisor.run, name="stepwell-workers", daemon=True)
        self._thread.start()
        try:
            if is_awaited:
                self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def status(self) -> PoolStatus:
        """The status of the workers at this moment."""
        return self._supervisor.status

    def release(self) -> None:
        """Tell the workers to end, without waiting for them."""
        if self._owner_pid == os.getpid():
            self._supervisor.stop()

    def close(self) -> None:
        """Tell the workers to end, and wait until they have."""
        if self._owner_pid == os.getpid():
            self._supervisor.stop()
            self._thread.join()

    def _on_change(self, status: PoolStatus) -> None:
        """Note a new status; the supervisor calls this in its own thread."""
        with self._changed:
            self._latest = status
            self._changed.notify_all()

    def _wait_until_ready(self) -> None:
        """Wait until all workers are ready; raise StartFailed if the supervisor gave up or the time is over."""
        with self._changed:
            self._changed.wait_for(self._is_decided, limits.WORKER_START_SECONDS_MAX)
            status = self._latest
        if status.problem or status.ready < status.wanted:
            late = f"{status.ready} of {status.wanted} were ready after {limits.WORKER_START_SECONDS_MAX:g} s"
            raise StartFailed(f"the workers did not come up: {status.problem or late}")

    def _is_decided(self) -> bool:
        return bool(self._latest.problem) or self._latest.ready >= self._latest.wanted
