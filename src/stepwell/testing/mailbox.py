"""What other threads have to say to the one that a manager's loop runs in."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future


class Mailbox:
    """Things to be called between two turns. Its descriptor is readable while there are any."""

    def __init__(self) -> None:
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._posted: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._is_closed = False

    def fileno(self) -> int:
        return self._wake

    def post(self, action: Callable[[], None]) -> Future[None]:
        """Have something done; cancelled, if nobody does it any more."""
        done: Future[None] = Future()
        with self._lock:
            if self._is_closed:
                done.cancel()
            else:
                self._posted.append((action, done))
                os.eventfd_write(self._wake, 1)
        return done

    def run_posted(self) -> None:
        """Do what was posted. What comes behind a deed that ends the manager is for the next one."""
        while True:
            with self._lock:
                if not self._posted:
                    return
                action, done = self._posted.popleft()
                if not self._posted:
                    os.eventfd_read(self._wake)
            try:
                action()
            finally:
                done.set_result(None)

    def close(self) -> None:
        """Nobody does anything any more."""
        with self._lock:
            self._is_closed = True
            while self._posted:
                self._posted.popleft()[1].cancel()
            os.close(self._wake)
