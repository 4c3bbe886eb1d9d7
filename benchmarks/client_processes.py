"""Client processes that do the same work at the same time, whatever it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Final

_END_SECONDS: Final = 10.0
_spawn = get_context("spawn")

Deed = Callable[[float], float]
"""Does so much, or for so long; what was measured of it."""
Open = Callable[[int], Deed]
"""Given a client's number, what it does. It runs in the client's process, once."""


class Crew:
    """Client processes. They are the same for every contender, and open it when they first have to do with it."""

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
        """Has that many of them do so much of it, beginning together; what each has measured."""
        pipes = self._pipes[:clients]
        _answers(pipes, name)  # they open it, and whoever has done that waits for the others
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
    opened: dict[str, Deed] = {}
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
            except Exception as error:  # noqa: BLE001 - whoever gave the order has to know
                answer = RuntimeError(repr(error))
            orders.send(answer)
        except (EOFError, OSError):
            return
