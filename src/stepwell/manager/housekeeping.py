"""Housekeeping: the commands that the manager issues in its own name, because no client would send them.

Clients send requests, which `request_handler` answers. Everything that happens by time alone, or because a session or a
worker came or went, is decided here and becomes a command of the domain like any other: leases expire, idle fragments
move down, closed plans are forgotten, tasks are leased to workers. Because these are commands, they are journaled,
committed and published in the same way as a client's, and a replay of the rows needs to know nothing about timers.
Commands on tasks and workers are the exception: they are ephemeral, so nothing of them is stored.

Each step is bounded by the domain (`limits.EXPIRIES_PER_STEP_MAX`, `SWEEP_MOVES_MAX` and others), so that one pass
costs the loop some milliseconds at most. Where a reply says that there is more, the next pass goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from stepwell import limits
from stepwell.clock import StateClock
from stepwell.domain.commands import Command
from stepwell.domain.logs.commands import TrimLogs
from stepwell.domain.logs.replies import LogsTrimmed
from stepwell.domain.plans.commands import EndSession, ExpireLeases, ForgetPlans, KeepLeases
from stepwell.domain.pools.commands import EndTokenLeases
from stepwell.domain.replies import (
    FragmentsMoved,
    PlansForgotten,
    Reply,
    SessionEnded,
    TasksForgotten,
    TasksLeased,
)
from stepwell.domain.tasks.commands import ExpireTasks, ForgetTasks, JoinPool, LeaseTasks, LeavePool, ReserveTasks
from stepwell.domain.tasks.model import StrategyOffer, StrategyProblem, Task
from stepwell.domain.tiers.commands import ExpireFragments, SweepIdle
from stepwell.domain.tiers.model import TierBudget
from stepwell.domain.verdict import Origin
from stepwell.manager.sessions import SessionTable
from stepwell.manager.state_owner import MANAGER, StateOwner
from stepwell.protocol.messages import CommandResult
from stepwell.storage.store import StoredState
from stepwell.telemetry import Logger


class Housekeeping:
    """The timers of the manager and the commands that it issues itself.

    The loop owns the one instance and calls it between requests, in its own thread. A domain refusal of a command that
    a peer caused (a worker that may not join) is raised to the caller, and so is the refusal of a budget
    into which the stored state does not fit (`resume`). All other commands here cannot be refused.
    """

    def __init__(self, owner: StateOwner, clock: StateClock, log: Logger) -> None:
        self.owner = owner
        self._clock = clock
        self._log = log
        self.due_at_s = self.sweep_due_at_s = self._tidy_due_at_s = clock.now_s()

    def make_due(self, now_s: float) -> None:
        """Let every timer fire at the next occasion. For tests, which put the clock forward."""
        self.due_at_s = self.sweep_due_at_s = self._tidy_due_at_s = now_s

    def resume(self, budget: TierBudget | None, stored: StoredState) -> None:
        """Continue where an earlier manager ended: within the budget, and with the leases that were held.

        Leases that would end before now + the session grace are extended to that time, because their holders could not
        renew them while no manager ran.
        """
        now_ms = self._clock.now_ms()
        self.owner.enforce_budget(budget, Origin(MANAGER, now_ms))
        grace_ms = int(limits.SESSION_GRACE_SECONDS * 1000)
        self._execute(KeepLeases(held_at_ms=stored.clock_ms, until_ms=now_ms + grace_ms))
        # A copy of a data directory has no sessions, and so has tokens that no client can return.
        for session_id in {*self.owner.sessions_with_tokens} - {session.session_id for session in stored.sessions}:
            self._execute(EndTokenLeases(session_id))

    def run(self, sessions: SessionTable, now_s: float) -> None:
        """Do the periodic work that concerns no connection, and set the time of the next pass."""
        self.due_at_s = now_s + limits.HOUSEKEEPING_SECONDS
        self.expire_leases()
        self.owner.housekeep(now_s)
        if now_s >= self._tidy_due_at_s:
            self._tidy_due_at_s = now_s + limits.TIDY_SECONDS
            self.owner.journal.tidy({each.session_id: each.answered for each in sessions}, now_s)

    def sweep_if_due(self, now_s: float) -> None:
        """Demote idle fragments, forget closed plans, trim logs: once a minute, and in every pass if there is more."""
        if now_s >= self.sweep_due_at_s and not (self._sweep() | self._forget_plans() | self._trim_logs()):
            self.sweep_due_at_s = now_s + limits.SWEEP_SECONDS

    def work(self) -> bool:
        """Do one slice of background work: of the owner, or rows of dead entries of logs. Return True if it did some.

        Entries that have only expired wait for the sweep, so that they are deleted together.
        """
        if self.owner.work():
            return True
        if is_due := self.owner.has_dead_entries:
            self._trim_logs()
        return is_due

    def end_session(self, session_id: str) -> SessionEnded:
        """Release the leases of a session that is gone, on plans and of tokens. The reply names the plans."""
        if session_id in self.owner.sessions_with_tokens:
            self._execute(EndTokenLeases(session_id))
        ended = self._execute(EndSession(session_id)).reply
        assert isinstance(ended, SessionEnded)
        return ended

    @property
    def has_expired(self) -> bool:
        """True if there are fragments to delete: the next turn follows at once, and a view may be waiting for it."""
        due_ms = self.owner.next_fragment_expiry_ms
        return due_ms is not None and due_ms <= self._clock.now_ms()

    def expire_fragments(self) -> None:
        """Delete the fragments that have expired, up to a bound. The next turn, which follows at once, goes on."""
        if self.has_expired:
            self._execute(ExpireFragments())

    def expire_leases(self) -> None:
        """Release the leases whose time is over."""
        due_ms = self.owner.next_expiry_ms
        if due_ms is not None and due_ms <= self._clock.now_ms():
            reply = self._execute(ExpireLeases()).reply
            self._log.info("leases.expired", reply=reply)

    def join_pool(
        self, session_id: str, pid: int, offers: tuple[StrategyOffer, ...], problems: tuple[StrategyProblem, ...]
    ) -> None:
        """Register a session as a worker, or raise the refusal."""
        self._execute(JoinPool(session_id, pid, offers, problems))

    def leave_pool(self, session_id: str) -> None:
        """Unregister a worker. The domain queues its unfinished tasks again, or quarantines them."""
        self._execute(LeavePool(session_id))

    def lease_tasks(self, *, takes_back: bool) -> Iterator[Task]:
        """Lease queued tasks to idle workers, and yield each task that was leased.

        With `takes_back`, tasks that were prefetched to busy workers and not begun may move to idle ones.
        """
        return self._lease(LeaseTasks(takes_back))

    def reserve_tasks(self) -> Iterator[Task]:
        """Prefetch to each busy worker the task that it does next, and yield each task that was prefetched."""
        return self._lease(ReserveTasks())

    @property
    def seconds_to_deadline(self) -> float:
        """The seconds until the first task exceeds its deadline, or may be taken back from a busy worker."""
        tasks = self.owner.tasks
        if not tasks.by_deadline:
            return math.inf
        due_ms = tasks.by_deadline[0][0]
        if tasks.prefetched and self.owner.has_idle_workers:
            due_ms = min(due_ms, self._clock.now_ms() + limits.TASK_PREFETCHED_MS)
        return (due_ms - self._clock.now_ms()) / 1000

    def expire_tasks(self) -> None:
        """End the attempts that have exceeded their deadline. The domain condemns their workers."""
        by_deadline = self.owner.tasks.by_deadline
        if by_deadline and by_deadline[0][0] <= self._clock.now_ms():
            reply = self._execute(ExpireTasks()).reply
            assert isinstance(reply, TasksLeased)
            self._log.info("tasks.expired", task_ids=[task.task_id for task in reply.tasks])

    def forget_tasks(self, session_id: str, task_ids: tuple[str, ...] | None) -> bool:
        """Forget tasks of a session, or all of them if no ids are given. Return True if there are more."""
        reply = self._execute(ForgetTasks(session_id, task_ids)).reply
        assert isinstance(reply, TasksForgotten)
        return reply.more

    def now_ms(self) -> int:
        """Return the time of the state's clock, which never goes back."""
        return self._clock.now_ms()

    def now_s(self) -> float:
        """Return monotonic seconds, for durations."""
        return self._clock.now_s()

    def _sweep(self) -> bool:
        reply = self._execute(SweepIdle()).reply
        assert isinstance(reply, FragmentsMoved)
        return reply.more

    def _forget_plans(self) -> bool:
        before_ms = self._clock.now_ms() - limits.PLAN_RETENTION_MS
        reply = self._execute(ForgetPlans(limits.CLOSED_PLANS_MAX, before_ms)).reply
        assert isinstance(reply, PlansForgotten)
        return reply.more

    def _trim_logs(self) -> bool:
        reply = self._execute(TrimLogs()).reply
        assert isinstance(reply, LogsTrimmed)
        return reply.more

    def _lease(self, command: LeaseTasks | ReserveTasks) -> Iterator[Task]:
        more = True
        while more:
            reply = self._execute(command).reply
            assert isinstance(reply, TasksLeased)
            yield from reply.tasks
            more = reply.more and bool(reply.tasks)

    def _execute(self, command: Command[Reply]) -> CommandResult:
        return self.owner.execute(command, Origin(MANAGER, self._clock.now_ms()))
