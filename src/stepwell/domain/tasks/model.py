"""The values of tasks and workers. A task is a strategy's work on a request, from its acceptance to its one outcome.

    queued ──▶ leased ──▶ done
       ▲         │  ├───▶ failed        the strategy raised, or the deadline passed
       └─────────┤  └───▶ quarantined   it was the third worker that died during the task
     the worker  └──────▶ cancelled     by the client; also from queued
     died

A busy worker may have its next task already. That task is prefetched: it is leased but has no deadline yet, and a
worker that becomes idle may get it instead. A worker that dies before it says that it has begun a task does not count
among the deaths of that task.

Tasks and workers end with the manager. A client submits its unfinished tasks again to the next manager. No revision
counts them, and the store does not keep them.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from stepwell import limits
from stepwell.domain.bounded_types import Label, Sentence, StrategyName
from stepwell.domain.tiers.model import COLD, BodyRef, Tier
from stepwell.text import PlainEnum


class TaskState(PlainEnum):
    """The state of a task. The last four are outcomes, which never change."""

    QUEUED = "queued"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    QUARANTINED = "quarantined"


ENDED: Final = frozenset({TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED, TaskState.QUARANTINED})
"""The states in which a task has ended."""


class WorkerDeath(Struct, frozen=True, array_like=True, gc=False):
    """The death of a worker during a task. The evidence arrives later, from the supervisor that started the worker."""

    pid: int
    at_ms: int
    evidence: str = ""


class TaskFault(Struct, frozen=True, array_like=True, gc=False):
    """The reason why a task failed: the name of an error class and its message."""

    kind: Label
    message: Sentence


class Task(Struct, frozen=True, array_like=True, gc=False):
    """A task at one moment. Its payload and result are opaque: only its client and its worker understand them.

    `attempt` fences: a worker shows it to finish the task. `due_at_ms` is the deadline of the present attempt; a leased
    task without one is prefetched. A result that is too large for a message is stored as a body: `content` refers to
    it.
    """

    task_id: str
    session_id: str  # the session that submitted it and gets its outcome
    strategy: str
    projects: tuple[str, ...]
    payload: bytes
    priority: int
    deadline_ms: int  # of work, for one attempt
    serial: int  # the order in which tasks were accepted
    submitted_at_ms: int
    state: TaskState = TaskState.QUEUED
    attempt: int = 1
    worker_id: str | None = None
    due_at_ms: int | None = None
    is_begun: bool = False
    deaths: tuple[WorkerDeath, ...] = ()
    fault: TaskFault | None = None
    result: bytes | None = None
    content: BodyRef | None = None
    ended_at_ms: int | None = None

    @property
    def key(self) -> str:
        return self.task_id

    @property
    def carried_bytes(self) -> int:
        """The bytes of payload and result, which the manager holds in its memory."""
        return len(self.payload) + len(self.result or b"")

    @property
    def is_over(self) -> bool:
        """True if the task has its outcome."""
        return self.state in ENDED

    @property
    def due_since_ms(self) -> int:
        """The time at which the present attempt began to count against the deadline."""
        assert self.due_at_ms is not None
        return self.due_at_ms - self.deadline_ms

    @property
    def is_prefetched(self) -> bool:
        """True if the task is leased in advance to a worker that is busy with another one."""
        return self.state is TaskState.LEASED and self.due_at_ms is None

    @property
    def held(self) -> tuple[BodyRef, ...]:
        """The bodies that the task refers to: a large result."""
        return (self.content,) if self.content else ()

    @property
    def tier(self) -> Tier:
        """The tier from which a large result is referred to: on disk, because it is fetched once and then dropped."""
        return COLD


JOB: Final = "chore"
"""The capability that marks an offer as a job: work that is no strategy, such as splitting files."""


class StrategyOffer(Struct, frozen=True, array_like=True, gc=False):
    """A strategy that a worker runs, or a job that it does.

    `is_partitioned`: the strategy can work on parts of a project.
    """

    name: StrategyName
    capabilities: Annotated[tuple[Label, ...], Meta(max_length=limits.CAPABILITIES_MAX)] = ()
    is_partitioned: bool = False

    @property
    def is_job(self) -> bool:
        """True if the offer is a job and not a strategy, so that lists of strategies leave it out."""
        return JOB in self.capabilities


_ProblemText = Annotated[str, Meta(max_length=limits.STRATEGY_PROBLEM_CHARS_MAX)]


class StrategyProblem(Struct, frozen=True, array_like=True, gc=False):
    """An installed strategy that a worker could not load.

    `name` is that of the entry point, which need not be the name of the strategy. `source` is the object that the entry
    point refers to, with the package that has it.
    """

    name: Annotated[str, Meta(max_length=limits.LABEL_CHARS_MAX)]
    source: _ProblemText
    reason: _ProblemText

    @classmethod
    def of(cls, name: str, source: str, reason: str) -> StrategyProblem:
        """Return the problem with its texts shortened to their bounds, without characters that cannot be encoded."""
        texts = (each.encode("utf-8", "replace").decode() for each in (name, source, reason))
        chars = (limits.LABEL_CHARS_MAX, limits.STRATEGY_PROBLEM_CHARS_MAX, limits.STRATEGY_PROBLEM_CHARS_MAX)
        return cls(*(text[:most] for text, most in zip(texts, chars, strict=True)))

    @property
    def key(self) -> tuple[str, str]:
        """The same for all workers that have the problem; their reasons may differ, because a reason can quote a `repr`
        with an address in memory.
        """
        return self.name, self.source

    def __str__(self) -> str:
        return f"{self.name} ({self.source}): {self.reason}"


StrategyProblems = Annotated[tuple[StrategyProblem, ...], Meta(max_length=limits.STRATEGY_PROBLEMS_MAX)]


class Worker(Struct, frozen=True, array_like=True, gc=False):
    """A process that works on one task after the other.

    `problems` are the installed strategies that it could not load, and therefore does not offer.

    `is_condemned`: it works on a task that has ended, and is being killed. `is_leaving`: it ends by itself, or its
    supervisor is about to stop it. In both cases it gets no more tasks.
    """

    worker_id: str
    pid: int
    offers: tuple[StrategyOffer, ...]
    joined_at_ms: int
    is_condemned: bool = False
    is_leaving: bool = False
    problems: StrategyProblems = ()

    @property
    def key(self) -> str:
        return self.worker_id
