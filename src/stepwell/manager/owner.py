"""The owner of the state: one process, one thread, and a guard that says so to everybody else."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from stepwell.domain import machine
from stepwell.domain.commands import Command, Write
from stepwell.domain.deciding import Origin
from stepwell.domain.fragment import FragmentRow, TierBudget
from stepwell.domain.machine import Outcome
from stepwell.domain.replies import Reply
from stepwell.domain.state import State
from stepwell.errors import NotOwner, StepwellError
from stepwell.memory.heap import BodyHeap
from stepwell.protocol.messages import Answer


class _Here:
    """This process, without asking the kernel each time."""

    def __init__(self) -> None:
        self.look()
        os.register_at_fork(after_in_child=self.look)

    def look(self) -> None:
        self.process = os.getpid()


_here = _Here()


class Clock:
    """Wall-clock milliseconds that never go back, whatever happens to the machine's clock."""

    def __init__(self) -> None:
        self._latest_ms = 0

    def now_ms(self) -> int:
        self._latest_ms = max(self._latest_ms, time.time_ns() // 1_000_000)
        return self._latest_ms


class StateBroken(BaseException):
    """A defect while the state was changing: what is half changed must not be served, so that nobody may catch this."""


class StateOwner:
    """Single-threaded by design, and enforced: any use outside the owning process and thread raises `NotOwner`.

    There is no lock in here because there is nobody to lock out. Whoever else wants something of the state sends a
    request to the manager, whose serial loop is the only caller.
    """

    def __init__(self, budget: TierBudget | None = None) -> None:
        self._process = _here.process
        self._thread = threading.get_ident()
        self._state = State(budget)
        self._heap = BodyHeap()

    def execute(self, command: Command[Reply], origin: Origin) -> Answer:
        """Apply one command, or raise its refusal."""
        self._guard()
        try:
            return self._answer(machine.apply(self._state, command, origin))
        except StepwellError:
            raise
        except Exception as error:
            raise StateBroken(repr(error)) from error

    def execute_all(self, commands: Sequence[Write[Reply]], origin: Origin) -> list[Answer]:
        """Apply all commands at one revision, or none and raise."""
        self._guard()
        try:
            return [self._answer(outcome) for outcome in machine.apply_all(self._state, commands, origin)]
        except StepwellError:
            raise
        except Exception as error:
            raise StateBroken(repr(error)) from error

    def holds_leases(self, session_id: str) -> bool:
        """Whether a session is working on any plan."""
        self._guard()
        return session_id in self._state.plans.by_session

    @property
    def revision(self) -> int:
        self._guard()
        return self._state.revision

    @property
    def next_expiry_ms(self) -> int | None:
        """When the first lease ends."""
        self._guard()
        return self._state.plans.next_expiry_ms

    def _answer(self, outcome: Outcome) -> Answer:
        """Let the bytes follow the references, and give those that the reply wants."""
        if outcome.bodies:
            self._heap.keep(outcome.bodies, self._state.bodies)
        for change in outcome.changes:
            if isinstance(change.before, FragmentRow):
                self._heap.drop(change.before.digest, self._state.bodies)
        wanted = outcome.reply.wants
        return Answer(outcome.revision, outcome.reply, self._heap.read(wanted) if wanted else {})

    def _guard(self) -> None:
        if threading.get_ident() != self._thread or _here.process != self._process:
            raise NotOwner(
                f"the state belongs to process {self._process} and the thread that made it; this is process "
                f"{os.getpid()}, thread {threading.current_thread().name!r}. Nothing is shared with it: send requests "
                "instead, through stepwell.connect(address) or runtime.client()"
            )
