"""Completion of values in a shell: the plans, actions, projects and strategies of the manager that a command would ask.

A shell asks whenever the user presses Tab. So a completion never prints an error, never starts a manager, and waits no
longer than `COMPLETION_SECONDS`: without a manager, or with one that does not answer, there is nothing to complete.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import typer

from stepwell import limits
from stepwell.cli.common.exit_codes import FAILED
from stepwell.errors import StepwellError

if TYPE_CHECKING:
    from stepwell.client.client import Client

_HARMLESS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")
"""The values that are offered. The script for zsh evaluates them, and that for bash splits them into words."""


def complete_plans(context: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of plans that begin with a text."""
    return _completed(
        context,
        incomplete,
        # A page begins after its cursor, so the ids that begin with the text come first.
        lambda client: (
            each.plan_id
            for each in client.plans.list_plans(limit=limits.PAGE_ROWS_MAX, cursor=incomplete or None).plans
        ),
    )


def complete_actions(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of actions that begin with a text."""
    return _completed(
        context,
        incomplete,
        lambda client: (each.name for each in client.plans.list_actions(limit=limits.PAGE_ROWS_MAX).actions),
    )


def complete_projects(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of projects that begin with a text."""
    return _completed(context, incomplete, lambda client: client.tiers.projects(limit=limits.PAGE_ROWS_MAX).projects)


def complete_strategies(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of strategies that the workers offer and that begin with a text."""
    return _completed(context, incomplete, lambda client: (each.name for each in client.strategies.list().offers))


def _completed(context: typer.Context, incomplete: str, read: Callable[[Client], Iterable[str]]) -> list[str]:
    """Return the values that the manager has and that begin with a text; none, if it cannot be asked."""
    from stepwell.cli.common.addresses import resolve_address  # noqa: PLC0415
    from stepwell.client.client import connect  # noqa: PLC0415 - a command that completes nothing needs no client

    try:
        with _time_limit(), connect(resolve_address(context.params.get("address"))) as client:
            found = [*read(client)]
    except (StepwellError, OSError):
        return []
    return [each for each in found if each.startswith(incomplete) and _HARMLESS.fullmatch(each)]


@contextmanager
def _time_limit() -> Generator[None]:
    """End the process if the block takes too long. The process does nothing but complete, so there is nothing to lose.

    The signal is repeated, because the first exception may be raised where another one is expected and handled.
    """

    def give_up(_number: int, _frame: object) -> None:
        raise SystemExit(FAILED)

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, limits.COMPLETION_SECONDS, limits.COMPLETION_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
