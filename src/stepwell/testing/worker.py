"""A worker in a thread: the same code as in a process of its own, without what protects that from its strategies."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable

from stepwell import limits
from stepwell.client.channel import Channel
from stepwell.errors import OutcomeUnknown, RuntimeFault, RuntimeLost
from stepwell.pool.strategy.worker import StrategyWorker
from stepwell.strategies.registry import Registry


class _Hand(StrategyWorker):
    """Says that it can be given work."""

    on_ready: Callable[[], None] = staticmethod(lambda: None)

    def _join(self) -> None:
        super()._join()
        self.on_ready()


class LocalWorker:
    """Works on one task at a time, for one manager. When it is not wanted any more, another one can take its place."""

    def __init__(self, address: str, registry: Callable[[], Registry], on_change: Callable[[], object]) -> None:
        self._registry = registry
        self._on_change = on_change  # called when it can be given work, and when it cannot any more
        self._lifeline, self._theirs = socket.socketpair()
        # What it says as a worker and what it asks for as a client are numbered apart, and so they are two sessions.
        self._channels = (Channel(address, None), Channel(address, None))
        self.is_ready = False
        self.problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="stepwell-local-worker", daemon=True)
        self._thread.start()

    @property
    def session_ids(self) -> Iterable[str]:
        """Under which it talks to the manager."""
        return (channel.session_id for channel in self._channels)

    @property
    def is_over(self) -> bool:
        """Whether it does nothing any more."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with contextlib.suppress(RuntimeLost, OutcomeUnknown):  # the manager is gone, or does not want it any more
                hand = _Hand(*self._channels, self._registry(), self._theirs)
                hand.on_ready = self._be_ready
                hand.run()
        except BaseException as error:  # noqa: BLE001 - raised where the runtime is closed
            self.problem = error
        finally:
            self.is_ready = False
            for channel in self._channels:
                channel.close()
            self._theirs.close()
            self._on_change()

    def _be_ready(self) -> None:
        self.is_ready = True
        self._on_change()

    def close(self) -> None:
        """Let it end, and see that it does."""
        self._lifeline.close()
        self._thread.join(limits.WORKER_END_SECONDS_MAX)
        if self._thread.is_alive():
            raise RuntimeFault(
                f"a strategy was still running {limits.WORKER_END_SECONDS_MAX:g} s after its runtime was closed, and a "
                "thread cannot be stopped: wait for its result first, or give it something that ends"
            )
        if self.problem is not None:
            raise self.problem
