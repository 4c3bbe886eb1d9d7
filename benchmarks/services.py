"""The running services of the contenders and their client processes, for as long as they are compared."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

from benchmarks.contenders.base import Contender, Place
from benchmarks.load import ClientPool
from benchmarks.section import OURS

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Services:
    """Services that are started together and end together, also after an error.

    A peer that fails is absent from then on, with its reason, and must not stop the others. If stepwell fails, the
    benchmark fails.
    """

    def __init__(self, contenders: Sequence[Contender]) -> None:
        self.absent: dict[str, str] = {}
        self._contenders = contenders
        self._places: dict[str, Place] = {}
        self._pools: dict[str, ClientPool] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="sw-bench-", ignore_cleanup_errors=True))
            for contender in self._contenders:
                try:
                    self._places[contender.name] = stack.enter_context(contender.start(Path(directory)))
                except Exception as error:  # noqa: BLE001 - a peer that fails must not stop the others
                    self._exclude(contender, error)
            stack.callback(self._close_pools)  # clients end before their services
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def present(self) -> list[Contender]:
        """Return the contenders that take part, in the order in which they were given."""
        return [each for each in self._contenders if each.name in self._places]

    def use(
        self,
        contender: Contender,
        action: Callable[Concatenate[ClientPool, Contender, Place, _P], _T],
        *args: _P.args,
        **options: _P.kwargs,
    ) -> _T | None:
        """Return the result of a method of the client processes with a contender's service; None if that failed."""
        group = contender.name if contender.is_noisy else ""
        pool = self._pools.setdefault(group, ClientPool())
        try:
            return action(pool, contender, self._places[contender.name], *args, **options)
        except Exception as error:  # noqa: BLE001 - as in `__enter__`
            self._exclude(contender, error)
            self._pools.pop(group).close()
            return None

    def _exclude(self, contender: Contender, error: Exception) -> None:
        if contender.name.startswith(OURS):
            raise error
        self.absent[contender.name] = str(error) or type(error).__name__
        self._places.pop(contender.name, None)

    def _close_pools(self) -> None:
        for pool in self._pools.values():
            pool.close()
