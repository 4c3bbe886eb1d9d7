"""What the commands need of an execution context: its calls that work on a tree."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, cast

from stepwell.client.execution import PlanExecutionContext
from stepwell.domain.changeset import EntryRow
from stepwell.domain.plan import Plan


class Captured(Protocol):
    """What a capture recorded, once it has ended."""

    @property
    def changeset_id(self) -> str | None: ...

    @property
    def entries(self) -> Sequence[EntryRow]: ...


class WorksOnTrees(Protocol):
    """A context in the process that has the tree."""

    def capture(self, root: Path, *, tool: str) -> AbstractContextManager[Captured]: ...

    def apply(self, root: Path) -> Plan: ...

    def rollback(self, root: Path, *, reason: str) -> Plan: ...

    def plan_diff(self, *, paths: Sequence[str], tools: Sequence[str]) -> str: ...


def on_trees(context: PlanExecutionContext) -> WorksOnTrees:
    """A context, as these commands see it."""
    return cast("WorksOnTrees", context)
