"""A worker in a thread: the code of a worker process, without the limits that protect that from its strategies.

A thread cannot be killed and has no memory limit of its own. In return a strategy in a test can be patched, debugged
and asked for its state.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable

from stepwell import limits
from stepwell.client.session.channel import Channel
from stepwell.errors import OutcomeUnknown, RuntimeFault, RuntimeLost
from stepwell.pool.strategy.worker import StrategyWorker
from stepwell.strategies.registry import Registry


class _NotifyingWorker(StrategyWorker):
    """A worker that calls `on_ready` when the manager has accepted it."""

    on_ready: Callable[[], None] = staticmethod(lambda: None)

    def _join(self) -> None:
        super()._join()
        self.on_ready()


class LocalWorker:
    """A thread that works on one task at a time, for one manager.

    It ends when the manager dies or drops it, and then another one can take its place. The runtime owns it and closes
    it. `is_ready`, `is_over` and `problem` are written by its thread and read by the manager's.
    """

    def __init__(self, address: str, registry: Callable[[], Registry], on_change: Callable[[], object]) -> None:
        self._registry = registry
        self._on_change = on_change  # called when it is ready, and when it has ended
        self._lifeline, self._worker_end = socket.socketpair()
        # Its messages as a worker and its requests as a client are numbered apart, so there are two sessions.
        self._channels = (Channel(address, None), Channel(address, None))
        self.is_ready = False
        self.was_ready = False
        self.is_over = False
        self.problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="stepwell-local-worker", daemon=True)
        self._thread.start()

    @property
    def session_ids(self) -> Iterable[str]:
        """The two sessions under which it talks to the manager."""
        return (channel.session_id for channel in self._channels)

    def _run(self) -> None:
        try:
            with contextlib.suppress(RuntimeLost, OutcomeUnknown):  # the manager died, or dropped it
                worker = _NotifyingWorker(*self._channels, self._registry(), self._worker_end)
                worker.on_ready = self._note_ready
                worker.run()
        except BaseException as error:  # noqa: BLE001 - raised where the runtime is closed
            self.problem = error
        finally:
            self.is_ready = False
            for channel in self._channels:
                channel.close()
            self._worker_end.close()
            self.is_over = True  # before the runtime looks: the thread itself ends a moment later
            self._on_change()

    def _note_ready(self) -> None:
        self.is_ready = self.was_ready = True
        self._on_change()

    def close(self) -> None:
        """End the worker and wait for its thread. Raise its error, or `RuntimeFault` if a strategy does not end."""
        self._lifeline.close()
        self._thread.join(limits.WORKER_END_SECONDS_MAX)
        if self._thread.is_alive():
            raise RuntimeFault(
                f"a strategy was still running {limits.WORKER_END_SECONDS_MAX:g} s after its runtime was closed, and a "
                "thread cannot be stopped: wait for its result first, or give it something that ends"
            )
        if self.problem is not None:
            raise self.problem
