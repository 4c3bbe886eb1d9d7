"""A well-behaved client beside bad peers. It works all the time, and reports its progress."""

import threading
from types import TracebackType
from typing import Self

import stepwell as sw
from tests.support.wait import promptly

OPERATIONS = 40
"""Enough that they cannot all have been under way before."""

PROGRESS_SECONDS = 10.0
"""Loose, for a busy machine; a hostage would wait for 30 s, the time after which a stalled peer is cut off."""


class Bystander:
    """Stores and reads, one request at a time, and checks every answer."""

    def __init__(self, address: str) -> None:
        self._client = sw.connect(address, projects=["good"])
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="bystander")
        self._failure: BaseException | None = None
        self.operations = 0

    def progresses(self, operations: int = OPERATIONS) -> None:
        """Wait until it has done that many more, from now on."""
        goal = self.operations + operations

        def goes_on() -> bool:
            """The good client makes progress."""
            return self.operations >= goal or self._failure is not None

        promptly(goes_on, PROGRESS_SECONDS)
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        try:
            while not self._over.is_set():
                number = self.operations
                body = str(number).encode() * 100
                self._client.tiers.store(sw.Fragment(fragment_id=f"f{number % 10}", body=body, tokens=1))
                assert self._client.tiers.get(f"f{number % 10}").body == body
                self.operations += 2
        except BaseException as error:  # noqa: BLE001 - it is raised in the test's own thread
            self._failure = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._client.close()
        if self._failure is not None:
            raise self._failure
