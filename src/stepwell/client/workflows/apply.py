"""Apply a plan to a tree: in the caller's process, under the plan's lease, entirely or not at all.

A plan does not overtake those that wait for the tree in the manager's queue; with a turn of its own (`ApplyTurn`), it
waits there first.

The root's lock is taken before the lease. So a process that waits for a tree does not block the plan, and a tree that
is not as the plan expects leaves the plan as it was. Unfinished transactions that are found under the lock are
recovered first (`tree_recovery`). Then, from the lease on, in this order:

    apply        the tree is changed; the lease is checked before each step
    validations  run in the changed tree
    commit       the tree stays changed, and can still be undone
    complete     the manager records the outcome: from now on the plan is applied
    finalize     the old contents are removed

A lost lease is noticed at the next step, or at the latest when the manager refuses the report. Then the tree is undone;
no other transaction ran in it meanwhile, because the root's lock is still held. If it stays unknown whether the manager
recorded the outcome, the tree stays changed and the transaction committed: the next call at this root asks the manager
and finalizes, resumes or undoes it.
"""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from typing import Final

from stepwell import limits
from stepwell.client.api.changesets import ChangesetApi
from stepwell.client.api.plans import PlanApi
from stepwell.client.workflows import tree_recovery
from stepwell.client.workflows.heartbeat import Heartbeat, now_s
from stepwell.client.workflows.plan_delta import PlanDelta, is_same_root, root_text
from stepwell.client.workflows.report import report_outcome
from stepwell.client.workflows.validations import failure_of, run_all
from stepwell.client.workflows.wait import (
    ApplyTurn,
    require_no_queue,
    wait_for_lease_end,
    wait_for_root_lock,
)
from stepwell.domain.plans.model import Phase, Plan, PlanState, Position, RolledBack
from stepwell.domain.plans.validations import ValidationResult, not_passed
from stepwell.errors import (
    AlreadyRolledBack,
    Conflict,
    PlanError,
    PlanNotReady,
    Refused,
    StepwellError,
    TreeFailed,
    TreeQueued,
)
from stepwell.trees.lock import RootLock
from stepwell.trees.transaction import TreeTransaction

_EXECUTED: Final = Position(Phase.EXECUTE, PlanState.COMPLETE)
_PROCESSING: Final = Position(Phase.APPLY, PlanState.PROCESSING)
_CONSTRAINED: Final = Position(Phase.APPLY, PlanState.CONSTRAINED)
_ENDED: Final = frozenset({Position(Phase.APPLY, PlanState.APPLIED), _CONSTRAINED})


class PlanApply:
    """One call of `PlanExecutionContext.apply`, for one thread.

    Any number of processes may apply the same plan at the same time: one holds the lease and works, the others wait for
    it and return the same outcome. `root` is absolute; `wait_s` bounds all waiting for other processes together, except
    for the turn; `on_warning` is for `tree_recovery`. Without a `turn`, the call is refused while other plans wait.
    """

    def __init__(
        self,
        context: ChangesetApi,
        root: str,
        wait_s: float,
        lease_ms: int,
        on_warning: tree_recovery.OnWarning | None = None,
        *,
        turn: ApplyTurn | None = None,
    ) -> None:
        self._context = context
        self._session = context.session
        self._plan_id = context.plan_id
        self._plans = PlanApi(context.session)
        self._root = root
        self._wait_s = wait_s
        self._until_s = time.monotonic() + wait_s
        self._lease_ms = lease_ms
        self._on_warning = on_warning
        self._turn = turn
        self._tree = root_text(root)

    def run(self) -> Plan:
        """Return the applied plan, applied by this process or another one.

        Raises `ValidationFailed` if the plan is constrained, `AlreadyRolledBack` if it was rolled back since,
        `PlanNotReady` if it cannot be applied in its state, `TreeConflict` if the tree is not as expected, `TreeQueued`
        if it would overtake other plans, `Busy` past the waiting time, and any error that ended this process's own
        attempt.
        """
        with self._turn or nullcontext():
            return self._run()

    def _run(self) -> Plan:
        """Look at the plan and do what its position asks for, until it has ended."""
        while True:
            plan = self._plans.get_plan(self._plan_id)
            if plan.position in _ENDED:
                tree_recovery.recover_if_unlocked(self._context, self._root, self._on_warning)
                # Read again: a killed process may have left a rollback that the recovery has just reported.
                plan = self._plans.get_plan(self._plan_id)
                if plan.position in _ENDED:
                    return _outcome(plan, self._root)
            elif plan.position == _EXECUTED:
                with suppress(Conflict):  # another session queued it at the same time
                    self._plans.apply_plan(self._plan_id, expected_version=plan.version)
            elif plan.position == _PROCESSING:
                self._allow_time()
                wait_for_lease_end(self._session, plan, self._until_s, self._wait_s)
            elif plan.position != tree_recovery.QUEUED:
                tree_recovery.recover_if_unlocked(self._context, self._root, self._on_warning)
                raise _not_ready(plan)
            else:
                self._wait_for_turn(plan)
                if ended := self._lock_and_apply():
                    return _outcome(ended, self._root)

    def _wait_for_turn(self, plan: Plan) -> None:
        """Wait for the plan's turn at the tree; without a turn, raise `TreeQueued` if other plans wait for it."""
        if self._turn is None:
            require_no_queue(self._plans, self._plan_id, self._tree)
        elif self._turn.wait(plan):
            self._allow_time()

    def _allow_time(self) -> None:
        """Let the time for other processes begin now, if the caller has waited for its turn until now."""
        if self._turn is not None:
            self._until_s = time.monotonic() + self._wait_s

    def _lock_and_apply(self) -> Plan | None:
        """Take the root's lock and apply the queued plan; return None if the plan must be read again first.

        The plan is read again under the lock, because it may have been applied while this process waited.
        """
        try:
            with wait_for_root_lock(self._root, self._until_s, self._wait_s) as lock:
                resumable = tree_recovery.recover_root(self._context, lock, self._on_warning) if lock else None
                plan = self._plans.get_plan(self._plan_id)
                return self._apply(lock, plan, resumable) if lock and plan.position == tree_recovery.QUEUED else None
        except tree_recovery.TransactionUndecided as undecided:
            wait_for_lease_end(self._session, undecided.plan, self._until_s, self._wait_s)
        return None

    def _apply(self, lock: RootLock, plan: Plan, resumable: str | None) -> Plan | None:
        """Prepare the transaction, start the apply phase, and apply under its lease.

        `resumable` is the name of a transaction that an earlier attempt committed. It gets this attempt's name as soon
        as this attempt has the lease, so that recovery after a crash compares it with the right attempt.
        """
        delta = PlanDelta(self._context)
        name = resumable or tree_recovery.apply_name(plan)
        with TreeTransaction(lock, name, delta.deltas, delta.read_body, resumes=True) as change:
            asked_at_s = now_s()
            try:
                started = self._plans.start_apply(
                    self._plan_id, lease_ms=self._lease_ms, expected_version=plan.version, tree=self._tree
                )
            except Conflict:  # another session was quicker, at another root
                change.undo()
                return None
            except TreeQueued:  # a plan of a higher priority, or any plan if this caller has no turn
                change.undo()
                if self._turn is None:
                    raise
                return None
            assert started.lease is not None
            change.rename(tree_recovery.apply_name(started))
            token = started.lease.token
            with Heartbeat(self._session, self._plan_id, token, self._lease_ms, asked_at_s=asked_at_s) as lease:
                return _LeasedApply(self._plans, started, self._root, lease).run(change, delta)


class _LeasedApply:
    """The part of an apply that runs under the plan's lease: from the first change in the tree to the report.

    When `run` raises `OutcomeUnknown`, the report is in doubt: the tree is committed if the apply was to be completed,
    and undone if a validation failed. After any other error the tree is undone, or the next transaction at this root
    undoes it.
    """

    def __init__(self, plans: PlanApi, plan: Plan, root: str, lease: Heartbeat) -> None:
        self._plans = plans
        self._plan = plan
        self._root = root
        self._lease = lease

    def run(self, change: TreeTransaction, delta: PlanDelta) -> Plan:
        """Return the plan, applied, or constrained if a required validation failed."""
        try:
            change.apply(self._lease.check)
            results = run_all(self._plan.validations, self._root, self._lease.check)
            if failed := not_passed(self._plan.validations, results):
                change.undo()
                return self._constrain(failed, results)
            self._lease.check()
            change.commit()
        except BaseException as error:
            self._undo_and_fail(change, error)
            raise
        try:
            ended = self._complete(delta, results)
        except Refused as refusal:
            self._undo_and_fail(change, refusal)
            raise
        with suppress(TreeFailed):  # the plan is applied; the next call at this root removes the transaction
            change.finalize()
        return ended

    def _complete(self, delta: PlanDelta, results: tuple[ValidationResult, ...]) -> Plan:
        """Report that the tree is changed, with the proof."""

        def send() -> Plan:
            return self._plans.complete_apply(
                self._plan.plan_id,
                proof=delta.proof,
                validations=results,
                root=root_text(self._root),
                lease=self._lease.token,
            )

        def is_recorded(plan: Plan) -> bool:
            return plan.applied is not None and plan.applied.attempt == self._plan.attempt

        return report_outcome(self._plans, self._plan.plan_id, send, is_recorded, self._is_lease_over)

    def _constrain(self, failed: list[str], results: tuple[ValidationResult, ...]) -> Plan:
        """Report that required validations failed; the tree is undone already."""
        reason = f"required validations have not passed: {', '.join(failed)}"[: limits.ERROR_CHARS_MAX]

        def send() -> Plan:
            return self._plans.constrain_apply(self._plan.plan_id, reason, validations=results, lease=self._lease.token)

        def is_recorded(plan: Plan) -> bool:
            return plan.constrained is not None and plan.constrained.attempt == self._plan.attempt

        return report_outcome(self._plans, self._plan.plan_id, send, is_recorded, self._is_lease_over)

    def _is_lease_over(self, plan: Plan) -> bool:
        return plan.lease is None or plan.lease.token != self._lease.token

    def _undo_and_fail(self, change: TreeTransaction, error: BaseException) -> None:
        """Undo the tree, then report the error as the reason of the failed attempt, if the lease still allows it."""
        try:
            change.undo()
        finally:
            with suppress(StepwellError):
                self._plans.fail_apply(self._plan.plan_id, f"{type(error).__name__}: {error}", lease=self._lease.token)


def _outcome(plan: Plan, root: str) -> Plan:
    """Return a plan that has ended if it is applied at this root; raise the error of any other end."""
    if plan.rolled_back is not None:
        raise _rolled_back(plan, plan.rolled_back)
    if plan.position == _CONSTRAINED:
        raise failure_of(plan)
    _require_applied_here(plan, root)
    return plan


def _require_applied_here(plan: Plan, root: str) -> None:
    """Raise `PlanError` if the plan was applied to another tree, because the caller continues with the one it named."""
    if plan.applied is not None and not is_same_root(plan.applied.root, root):
        raise PlanError(
            f"plan {plan.plan_id!r} was applied at {plan.applied.root!r}, and nothing of it at {root!r}: a plan is "
            "applied to one tree",
            plan_id=plan.plan_id,
            root=plan.applied.root,
        )


def _rolled_back(plan: Plan, ending: RolledBack) -> AlreadyRolledBack:
    why = f" ({ending.reason})" if ending.reason else ""
    return AlreadyRolledBack(
        f"plan {plan.plan_id!r} was applied and rolled back{why}, and a plan is applied once: use action "
        f"{plan.action_name!r} again, and record the changes in the new plan",
        plan_id=plan.plan_id,
        action_name=plan.action_name,
        reason=ending.reason,
        rolled_back_at_ms=ending.at_ms,
    )


def _not_ready(plan: Plan) -> PlanNotReady:
    advice = {
        PlanState.ERRORED: "retry_plan queues it again",
        PlanState.CANCELLED: "it has ended, and nothing of it is applied",
    }.get(plan.state, "it is applied once its execution is complete")
    why = f" ({plan.errors[-1].message})" if plan.errors and plan.state is PlanState.ERRORED else ""
    return PlanNotReady(
        f"plan {plan.plan_id!r} is {plan.position}{why}: {advice}",
        plan_id=plan.plan_id,
        phase=str(plan.phase),
        state=str(plan.state),
    )
