"""The same work in real processes, spawned: nothing is inherited, everything is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

import multiprocess
from multiprocess.connection import Connection

from stepwell.process import SpawnedProcess
from tests.support.features.schedules import attempt
from tests.support.wait import PATIENCE_SECONDS

T = TypeVar("T")


def in_processes(tasks: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """Run each task in a process of its own, all from the same moment; for each its result or its error."""
    pipes = [multiprocess.Pipe() for _ in tasks]
    processes = [SpawnedProcess(_work, (theirs, task)) for (_, theirs), task in zip(pipes, tasks, strict=True)]
    try:
        for process, (_, theirs) in zip(processes, pipes, strict=True):
            process.start()
            theirs.close()  # so that a child's death is the end of its pipe
        ours = [pipe for pipe, _ in pipes]
        for pipe in ours:
            _receive(pipe)
        for pipe in ours:
            pipe.send("go")
        with ThreadPoolExecutor(len(ours)) as pool:
            return cast("list[T | Exception]", list(pool.map(_receive, ours)))
    finally:
        for pipe, _ in pipes:
            pipe.close()
        for process in processes:
            process.join(PATIENCE_SECONDS)
            process.kill()
            process.join()
            process.close()


def _work(pipe: Connection, task: Callable[[], object]) -> None:
    pipe.send("ready")
    pipe.recv()
    pipe.send(attempt(task))


def _receive(pipe: Connection) -> object:
    if not pipe.poll(PATIENCE_SECONDS):
        raise TimeoutError("a process did not answer")
    return pipe.recv()
