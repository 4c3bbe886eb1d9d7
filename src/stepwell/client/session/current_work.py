"""The plan that the caller works on at the moment: fragments that it stores meanwhile say so.

It belongs to a thread or a task, as a `contextvars.ContextVar` does, and not to a session: an agent may hold several
clients. A client of another manager has no such plan, so that it does not name it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from stepwell.domain.checks import check
from stepwell.domain.tiers.model import Work

_CURRENT: Final[ContextVar[tuple[str, Work] | None]] = ContextVar("stepwell_work", default=None)


@contextmanager
def working_on(address: str, plan_id: str, changeset_id: str | None = None) -> Generator[None]:
    """Have what this thread or task stores at a manager, during the block, say that it is for a plan."""
    work = Work(plan_id, changeset_id)
    check(work)
    token = _CURRENT.set((address, work))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_work(address: str) -> Work | None:
    """Return what the caller works on at the manager with this address, or None."""
    current = _CURRENT.get()
    return current[1] if current is not None and current[0] == address else None
