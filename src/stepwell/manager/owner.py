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
from stepwell.errors import NotOwner
from stepwell.memory.heap import BodyHeap


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

    def execute(self, command: Command[Reply], origin: Origin) -> Outcome:
        """Apply one command, or raise its refusal."""
        self._guard()
        outcome = machine.apply(self._state, command, origin)
        self._follow(outcome)
        return outcome

    def execute_all(self, commands: Sequence[Write[Reply]], origin: Origin) -> list[Outcome]:
        """Apply all commands at one revision, or none and raise."""
        self._guard()
        outcomes = machine.apply_all(self._state, commands, origin)
        for outcome in outcomes:
            self._follow(outcome)
        return outcomes

    def bodies(self, reply: Reply) -> dict[bytes, bytes]:
        """The bytes of the bodies that a reply refers to."""
        self._guard()
        return self._heap.read(reply.wants)

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

    def _follow(self, outcome: Outcome) -> None:
        """Let the bytes follow the references."""
        if outcome.bodies:
            self._heap.keep(outcome.bodies, self._state.bodies)
        gone = [row.digest for change in outcome.changes if isinstance(row := change.before, FragmentRow)]
        if gone:
            self._heap.drop(gone, self._state.bodies)

    def _guard(self) -> None:
        if threading.get_ident() != self._thread or _here.process != self._process:
            raise NotOwner(
                f"the state belongs to process {self._process} and the thread that made it; this is process "
                f"{os.getpid()}, thread {threading.current_thread().name!r}. Nothing is shared with it: send requests "
                "instead, through stepwell.connect(address) or runtime.client()"
            )
