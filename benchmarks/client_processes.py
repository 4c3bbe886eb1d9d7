"""Client processes that run the same workload at the same time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Final

_END_SECONDS: Final = 10.0
_spawn = get_context("spawn")

Workload = Callable[[float], float]
"""A workload: it takes an amount (a count or seconds) and returns the measured value."""
Open = Callable[[int], Workload]
"""A function from a client's number to its workload. It is called once, in the client's process."""


class ClientProcesses:
    """A fixed set of client processes that all contenders share. Each opens a contender at its first use."""

    def __init__(self, size: int, opens: Mapping[str, Open]) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        try:
            for number in range(size):
                ours, theirs = _spawn.Pipe()
                self._pipes.append(ours)
                process = _spawn.Process(target=_serve, args=(number, dict(opens), theirs), daemon=True)
                process.start()
                theirs.close()
                self._processes.append(process)
        except BaseException:
            self.close()
            raise

    def do(self, name: str, amount: float, clients: int | None = None) -> list[float]:
        """Run a workload in `clients` processes (None: in all) at the same time, and return the value of each."""
        pipes = self._pipes[:clients]
        _answers(pipes, name)  # each process opens the contender; the workload starts when all have
        return _answers(pipes, amount)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(_END_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()


def _answers(pipes: Sequence[Connection], word: str | float) -> list[float]:
    for pipe in pipes:
        pipe.send(word)
    answers: list[float | Exception] = [pipe.recv() for pipe in pipes]
    for each in answers:
        if isinstance(each, Exception):
            raise each
    return [each for each in answers if not isinstance(each, Exception)]


def _serve(number: int, opens: Mapping[str, Open], orders: Connection) -> None:
    opened: dict[str, Workload] = {}
    name = ""
    while True:
        try:
            word: str | float = orders.recv()
            try:
                if isinstance(word, str):
                    name = word
                    if name not in opened:
                        opened[name] = opens[name](number)
                    answer: float | Exception = 0.0
                else:
                    answer = opened[name](word)
            except Exception as error:  # noqa: BLE001 - the parent process raises it
                answer = RuntimeError(repr(error))
            orders.send(answer)
        except (EOFError, OSError):
            return
