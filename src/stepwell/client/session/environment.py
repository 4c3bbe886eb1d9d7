"""`Environment`: what a client asks of the operating system, in one place.

The session, its connections and the asyncio client take sockets, time, randomness, ids and files from here. The
services take the ids in their commands from here. Therefore a simulator can run all of them against sockets and a clock
of its own: it passes an object with the same methods to `stepwell.client.client.unconnected`.
"""

from __future__ import annotations

import random
import socket
import time
from typing import Final

from stepwell.errors import StepwellError
from stepwell.identifiers import new_id
from stepwell.storage.body_reader import BodyFile
from stepwell.transport import address as addresses
from stepwell.transport import restart_lock


class Environment:
    """The operating system, as a client sees it. It has no state, so all clients of a process share `SYSTEM`.

    Any thread may use it. A subclass of another world has to be as safe as its clients need.
    """

    def dial(self, address: str, timeout_s: float | None) -> socket.socket:
        """Return a connected socket, which blocks for at most `timeout_s`: None is without limit, 0.0 never blocks.

        It raises `RuntimeLost` if no manager accepts there. With 0.0 its cause is `BlockingIOError` while the manager's
        backlog is full. It raises `OSError` if this process may open no more descriptors.
        """
        return addresses.dial(address, timeout_s)

    def monotonic(self) -> float:
        """Return the time in seconds, on a clock that never goes back."""
        return time.monotonic()

    def jitter(self) -> float:
        """Return a random factor from 0.5 to 1.0 for a pause, so that clients do not all come back at once."""
        return random.uniform(0.5, 1.0)  # noqa: S311 - no secret

    def new_id(self) -> str:
        """Return an id that nothing else has, for a session, a task, a plan, a changeset, a decision or a receipt."""
        return new_id()

    def is_restarting(self, address: str) -> bool:
        """Return True if a program is there that starts the manager of an address again when it dies."""
        return restart_lock.is_restarting(address)

    def read_cause(self, address: str) -> StepwellError | None:
        """Return why the manager of an address is not started again; None if no program has given it up."""
        return restart_lock.read_cause(address)

    def open_bodies(self, database: str) -> BodyFile:
        """Return the bodies in the database of a manager."""
        return BodyFile(database)


SYSTEM: Final = Environment()
"""The operating system that this process runs on."""
