"""Tasks: a strategy's work on a request, from its acceptance to its one outcome; and the workers that do them.

    queued ──▶ leased ──▶ done
       ▲         │  ├───▶ failed        the strategy raised, or its deadline passed
       └─────────┤  └───▶ quarantined   it was the third worker that died of it
     its worker  └──────▶ cancelled     from queued, too
     died

A worker that is busy may have its next task already. It is leased, and lies ahead: it has no deadline yet, and whoever
else becomes idle may get it. A worker that dies before it says that it has begun has not died of it.

They end with the manager: whoever submitted one submits it again to the next. No revision counts them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

from stepwell.domain.bounded_types import Label, Sentence, StrategyName
from stepwell.domain.tiers.model import COLD, BodyRef, Tier


class TaskState(StrEnum):
    """Where a task is."""

    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    QUARANTINED = "quarantined"


OVER: Final = frozenset({TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED, TaskState.QUARANTINED})
"""From these nothing leads anywhere: a task has one outcome."""


class WorkerDeath(Struct, frozen=True, array_like=True, gc=False):
    """A worker that died while it had a task. The evidence comes later, from whoever started the worker."""

    pid: int
    at_ms: int
    evidence: str = ""


class TaskFault(Struct, frozen=True, array_like=True, gc=False):
    """Why a task failed: the name of an error, and what it said."""

    kind: Label
    message: Sentence


class Task(Struct, frozen=True, array_like=True, gc=False):
    """A task as it is now. What its payload and its result mean is between its client and its worker."""

    task_id: str
    session_id: str  # who wants to know
    strategy: str
    projects: tuple[str, ...]
    payload: bytes
    priority: int
    deadline_ms: int  # of work, for one attempt
    serial: int  # the order in which tasks were accepted
    submitted_at_ms: int
    state: TaskState = TaskState.QUEUED
    attempt: int = 1  # what a worker shows to finish it
    worker_id: str | None = None
    due_at_ms: int | None = None  # of a leased one, None: it lies ahead
    is_begun: bool = False
    deaths: tuple[WorkerDeath, ...] = ()
    fault: TaskFault | None = None
    result: bytes | None = None
    content: BodyRef | None = None  # in place of a result that no message carries
    ended_at_ms: int | None = None

    @property
    def key(self) -> str:
        return self.task_id

    @property
    def carried_bytes(self) -> int:
        """What it takes of the manager's memory."""
        return len(self.payload) + len(self.result or b"")

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    @property
    def due_since_ms(self) -> int:
        """When its time began."""
        assert self.due_at_ms is not None
        return self.due_at_ms - self.deadline_ms

    @property
    def is_ahead(self) -> bool:
        """Whether it lies with a worker that does something else."""
        return self.state is TaskState.LEASED and self.due_at_ms is None

    @property
    def held(self) -> tuple[BodyRef, ...]:
        return (self.content,) if self.content else ()

    @property
    def tier(self) -> Tier:
        """Where a large result is kept: fetched once, and then dropped."""
        return COLD


JOB: Final = "chore"
"""The capability of what a worker does that is no strategy."""


class StrategyOffer(Struct, frozen=True, array_like=True, gc=False):
    """A strategy that a worker has, or a chore that it does."""

    name: StrategyName
    capabilities: Annotated[tuple[Label, ...], Meta(max_length=32)] = ()
    is_partitioned: bool = False

    @property
    def is_chore(self) -> bool:
        return JOB in self.capabilities


class Worker(Struct, frozen=True, array_like=True, gc=False):
    """A process that does one task after the other. One that is being killed, or ends by itself, gets no more."""

    worker_id: str
    pid: int
    offers: tuple[StrategyOffer, ...]
    joined_at_ms: int
    is_condemned: bool = False
    is_leaving: bool = False

    @property
    def key(self) -> str:
        return self.worker_id
