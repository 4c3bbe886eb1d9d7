"""Functions that other threads post to the thread of a manager's loop.

The loop waits in `epoll`, so the mailbox has an event descriptor: posting makes it readable, which ends the wait.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future


class Mailbox:
    """A queue of functions that the loop's thread calls between two turns.

    Any thread may post. Only the loop's thread runs and closes. The descriptor is readable while functions are queued.
    """

    def __init__(self) -> None:
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._posted: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._is_closed = False

    def fileno(self) -> int:
        return self._wake

    def post(self, action: Callable[[], None]) -> Future[None]:
        """Queue a function, and return a future that is done after its call.

        The future is cancelled if the mailbox is closed, or is closed before the call.
        """
        done: Future[None] = Future()
        with self._lock:
            if self._is_closed:
                done.cancel()
            else:
                self._posted.append((action, done))
                os.eventfd_write(self._wake, 1)
        return done

    def run_posted(self) -> None:
        """Call the queued functions. If one raises, the functions behind it stay for the next manager."""
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
        """Cancel all queued functions. No further function is called."""
        with self._lock:
            self._is_closed = True
            while self._posted:
                self._posted.popleft()[1].cancel()
            os.close(self._wake)
