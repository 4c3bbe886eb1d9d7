"""The actor: one task of a client's process, with its randomness and its reports."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from stepwell.aio.client import Client
from tests.simulator.oracle import Oracle

if TYPE_CHECKING:
    from tests.simulator.client_process import ClientProcess

PROJECT = "p"


class Actor:
    """One task of a client's process. `number` makes the values that it writes unlike those of all others."""

    def __init__(self, process: ClientProcess, number: int, oracle: Oracle) -> None:
        self.process = process
        self.number = number
        self.oracle = oracle
        self.random = random.Random(process.machine.random.getrandbits(64))
        self._values = 0
        self.last_body = b""  # of its latest write

    @property
    def client(self) -> Client:
        return self.process.client

    def unique(self) -> str:
        """Return a text that no other actor has and this one has not used."""
        self._values += 1
        return f"{self.number}-{self._values}"
