"""Schedules of concurrent tasks: all at once, or one held at a seam until all others are done.

A schedule runs tasks in threads and gives each one's result or error. Meanwhile a reader calls `look`, so that a
scenario sees what was there in between and not only what is left at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Barrier, Event
from typing import Protocol, TypeVar

from tests.support.wait import PATIENCE_SECONDS

T = TypeVar("T")


def look_at_nothing() -> None:
    """Read nothing: the default of a schedule."""


class Schedule(Protocol):
    look: Callable[[], None]

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[T | Exception]: ...


class AtOnce:
    """All start at the same moment, and a reader looks for as long as they run."""

    def __init__(self) -> None:
        self.look: Callable[[], None] = look_at_nothing

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[T | Exception]:
        start = Barrier(len(tasks) + 1)
        done = Event()

        def begin(task: Callable[[], T]) -> T | Exception:
            start.wait(PATIENCE_SECONDS)
            return attempt(task)

        def read() -> None:
            start.wait(PATIENCE_SECONDS)
            while not done.is_set():
                self.look()

        with ThreadPoolExecutor(len(tasks) + 1) as pool:
            reader = pool.submit(read)
            workers = [pool.submit(begin, task) for task in tasks]
            wait(workers)
            done.set()
        reader.result()
        return [worker.result() for worker in workers]


class FirstHeld:
    """The first task is held when it comes to a point, until all others are done; a reader looks while it is.

    If it never comes there, that is an error: an interleaving that was not forced shows nothing.
    """

    def __init__(self, point: str) -> None:
        self.look: Callable[[], None] = look_at_nothing
        self._point = point
        self._is_running = False  # what a scenario prepares goes through
        self._is_held = False
        self._came = Event()
        self._others_done = Event()

    def seam(self, point: str) -> None:
        """Hold the first task at the point. The unsynchronised double calls this at each of its seams."""
        if point != self._point or not self._is_running or self._is_held:
            return
        self._is_held = True  # no other task runs yet
        self.look()
        self._came.set()
        if not self._others_done.wait(PATIENCE_SECONDS):
            raise TimeoutError(f"held at {point!r} for too long")

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[T | Exception]:
        self._is_running = True
        with ThreadPoolExecutor(len(tasks)) as pool:
            first: Future[T | Exception] = pool.submit(attempt, tasks[0])
            first.add_done_callback(lambda _: self._came.set())
            self._came.wait()
            if not self._is_held:
                self._is_running = False
                raise RuntimeError(f"the first caller never came to {self._point!r}, so that nothing was forced")
            others = [pool.submit(attempt, task) for task in tasks[1:]]
            wait(others)
            self._others_done.set()
        return [each.result() for each in (first, *others)]


def attempt(task: Callable[[], T]) -> T | Exception:
    """Its result or its error: what a caller got is for the Then steps to judge."""
    try:
        return task()
    except Exception as error:  # noqa: BLE001
        return error
