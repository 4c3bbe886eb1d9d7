"""The faults of a run: when each happens, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulator.settings import FaultKind

if TYPE_CHECKING:
    from tests.simulator.machine import Machine


class FaultPlan:
    """The faults that are to come. `stop` ends all of them, so that the rest of a run must come to its end.

    Some happen at a moment, the others at a step of the machine. Time passes while the processes wait, so that a moment
    mostly meets an idle machine; a step meets a busy one.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._due: list[tuple[float, FaultKind]] = []  # by moment
        self._due_at_step: list[tuple[int, FaultKind]] = []
        self.on_kill_client: Callable[[], None] = lambda: None
        self.on_kill_worker: Callable[[], None] = lambda: None
        self.on_power_loss: Callable[[], None] = lambda: None
        self.happened: list[FaultKind] = []
        self.is_any_left = False  # faults are still to come
        self.has_frozen = False  # a pipe was frozen, and may be so still

    def schedule(self, seconds: float, steps: int) -> None:
        """Draw the faults, each from the next `seconds` or from the first `steps`; more early ones, for short runs."""
        settings, generator = self._machine.settings, self._machine.random
        now_s = self._machine.now_s()
        for _ in range(settings.fault_count if settings.faults else 0):
            kind = generator.choice(settings.faults)
            if generator.random() < settings.busy_faults:
                self._due_at_step.append((int(steps * generator.random() ** 3), kind))
            else:
                self._due.append((now_s + seconds * generator.random() ** 3, kind))
        self._due.sort()
        self._due_at_step.sort()
        self.is_any_left = bool(self._due or self._due_at_step)

    def moments(self) -> list[float]:
        return [self._due[0][0]] if self._due else []

    def stop(self) -> None:
        """Let no further fault happen, and mend what is broken."""
        self._due.clear()
        self._due_at_step.clear()
        self._machine.disk.is_full = False
        self._machine.disk.fails_at = None
        self._machine.manager.dies_at = None
        self._machine.manager.loses_power = False
        for pipe in self._machine.network.news:
            pipe.frozen_until_s = 0.0
        self.is_any_left = self.has_frozen = False

    def apply_due(self) -> None:
        while self._due and self._due[0][0] <= self._machine.clock.now_s:
            self._apply(self._due.pop(0)[1])
        while self._due_at_step and self._due_at_step[0][0] <= self._machine.steps:
            self._apply(self._due_at_step.pop(0)[1])
        self.is_any_left = bool(self._due or self._due_at_step)

    def _apply(self, kind: FaultKind) -> None:
        machine, generator = self._machine, self._machine.random
        self.happened.append(kind)
        match kind:
            case FaultKind.KILL_MANAGER:
                machine.manager.dies_at = generator.choice((0, 1, 2, 5, 10, 30, 100))
            case FaultKind.LOSE_POWER:
                machine.manager.dies_at = generator.choice((0, 3, 10, 40))
                machine.manager.loses_power = True
            case FaultKind.KILL_CLIENT:
                self.on_kill_client()
            case FaultKind.KILL_WORKER:
                self.on_kill_worker()
            case FaultKind.CUT_CONNECTION:
                machine.manager.cut_connection()
            case FaultKind.FREEZE_PIPE:
                if machine.network.news:
                    pipe = generator.choice([*machine.network.news])
                    self.has_frozen = True
                    pipe.frozen_until_s = machine.clock.now_s + generator.choice((0.1, 5.0, 60.0, 100.0))
            case FaultKind.PAUSE_MACHINE:
                machine.clock.now_s += generator.choice((0.3, 2.0))
            case FaultKind.JUMP_CLOCK:
                machine.clock.jump(generator.choice((-3_600.0, -1.0, 1.0, 60.0)))
            case FaultKind.FULL_DISK:
                machine.disk.is_full = True
            case FaultKind.FAIL_WRITE:
                machine.disk.fails_at = generator.randrange(20)
