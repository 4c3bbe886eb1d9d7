"""A manager inside the test's own process: turned by hand, or by a thread, so that its limits can be changed."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stepwell.clock import StateClock
from stepwell.domain.tiers.model import TierBudget
from stepwell.manager.loop import Loop
from stepwell.manager.request_handler import RequestHandler
from stepwell.manager.state_owner import StateOwner
from stepwell.storage.null_store import NullStore
from stepwell.storage.store import Store
from stepwell.telemetry import Logger, LogLevel
from stepwell.transport.address import listen, private_directory

TURNS_MAX = 2_000
EPOCH = "epoch"
ENCODING = "estimate"


class Stage:
    """A loop whose turns the test runs, in the thread that made it."""

    def __init__(
        self,
        address: str,
        signals: dict[int, str] | None = None,
        budget: TierBudget | None = None,
        store: Store | None = None,
    ) -> None:
        self.address = address
        self.listener = listen(address)
        self.store = store or NullStore(ENCODING, EPOCH)
        self.owner = StateOwner(budget, self.store)
        kept = self.owner.stored
        self.requests = RequestHandler(self.owner, StateClock(kept.clock_ms if kept else 0), Logger(LogLevel.WARNING))
        self.loop = Loop(self.listener, self.requests, log=Logger(LogLevel.WARNING), signals=signals, spin_s=0)
        if kept is not None:
            self.loop.housekeeping.resume(budget, kept)
            self.loop.restore_sessions(kept)
        self.owner.journal.commit()

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.loop.turn()

    def turn_until(self, condition: Callable[[], object]) -> None:
        """Turn until the condition holds, a bounded number of times."""
        for _ in range(TURNS_MAX):
            if condition():
                return
            self.loop.turn()
        raise AssertionError(f"not within {TURNS_MAX} turns: {condition}")

    @property
    def peers(self) -> int:
        return len(self.loop._connections)

    @property
    def sessions(self) -> int:
        return len(self.loop._sessions)

    def close(self) -> None:
        self.loop.close()
        self.owner.close()
        self.store.close()
        self.listener.close()


@contextmanager
def staged(signals: dict[int, str] | None = None, budget: TierBudget | None = None) -> Iterator[Stage]:
    """A stage at an address of its own."""
    directory = private_directory()
    address = directory / "manager.sock"
    try:
        stage = Stage(str(address), signals, budget)
        try:
            yield stage
        finally:
            stage.close()
    finally:
        _clear(directory)


@contextmanager
def served(budget: TierBudget | None = None) -> Iterator[Stage]:
    """A stage whose loop runs in a thread of its own until the end of the block."""
    directory = private_directory()
    reader, writer = socket.socketpair()
    ready = threading.Event()
    made: list[Stage] = []

    def run() -> None:
        stage = Stage(str(directory / "manager.sock"), {reader.fileno(): "test"}, budget)
        made.append(stage)
        ready.set()
        try:
            stage.loop.run()
        finally:
            stage.close()

    thread = threading.Thread(target=run, name="manager")
    thread.start()
    ready.wait(60)
    try:
        yield made[0]
    finally:
        writer.close()
        thread.join(60)
        reader.close()
        _clear(directory)


def _clear(directory: Path) -> None:
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()
