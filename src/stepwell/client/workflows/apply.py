"""Applying a plan to a tree: in the caller's process, under the plan's lease, entirely or not at all.

The turn at the root comes before the lease. Whoever waits for a tree holds up nobody's plan, and a tree that is not
what the plan expects leaves the plan as it was. Whatever is found at a root once it is ours was left by somebody who
has gone; `leftovers` has what becomes of it. From the lease on, in this order:

    go           the tree is after; each step is preceded by a look at the lease
    validations  in the tree
    keep         the tree stays after, and can still be undone
    complete     the manager knows: this is the moment
    settle       and there is no way back

A lease that is lost is noticed at the next step, or by the manager at the latest; the tree is undone then, and nobody
else was in it meanwhile, because the turn is still ours. Where nobody can tell whether the manager knows, the tree
stays after and the transaction done: the next call asks, and settles, goes on or undoes.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from stepwell import limits
from stepwell.client.api.changesets import ChangesetApi
from stepwell.client.api.plans import PlanApi
from stepwell.client.workflows import tree_recovery
from stepwell.client.workflows.heartbeat import Heartbeat, now_s
from stepwell.client.workflows.plan_delta import PlanDelta, is_same_root, text_of
from stepwell.client.workflows.report import report_outcome
from stepwell.client.workflows.validations import run_all
from stepwell.client.workflows.wait import await_end, await_turn
from stepwell.domain.plans.model import Phase, Plan, PlanState, Position
from stepwell.domain.plans.validations import ValidationResult, missing
from stepwell.errors import Conflict, PlanError, PlanNotReady, Refused, StepwellError, TreeFailed
from stepwell.trees.lock import RootLock
from stepwell.trees.transaction import TreeTransaction

_EXECUTED: Final = Position(Phase.EXECUTE, PlanState.COMPLETE)
_PROCESSING: Final = Position(Phase.APPLY, PlanState.PROCESSING)
_ENDED: Final = frozenset({Position(Phase.APPLY, PlanState.APPLIED), Position(Phase.APPLY, PlanState.CONSTRAINED)})


class PlanApply:
    """One call of `apply`."""

    def __init__(self, context: ChangesetApi, root: str, wait_s: float, lease_ms: int) -> None:
        self._context = context
        self._session = context.session
        self._plan_id = context.plan_id
        self._plans = PlanApi(context.session)
        self._root = root
        self._wait_s = wait_s
        self._until_s = time.monotonic() + wait_s
        self._lease_ms = lease_ms

    def run(self) -> Plan:
        """The plan as it ended, whoever ended it."""
        while True:
            plan = self._plans.get_plan(self._plan_id)
            if plan.position in _ENDED:
                tree_recovery.tidy(self._context, self._root)
                _require_here(plan, self._root)
                return plan
            if plan.position == _EXECUTED:
                with suppress(Conflict):  # somebody else did
                    self._plans.apply_plan(self._plan_id, expected_version=plan.version)
            elif plan.position == _PROCESSING:
                await_end(self._session, plan, self._until_s, self._wait_s)
            elif plan.position != tree_recovery.QUEUED:
                tree_recovery.tidy(self._context, self._root)
                raise _not_ready(plan)
            elif ended := self._take_turn():
                return ended

    def _take_turn(self) -> Plan | None:
        """The plan as it ended; None if it has to be looked at anew."""
        try:
            with await_turn(self._root, self._until_s, self._wait_s) as turn:
                own = tree_recovery.recover_root(self._context, turn) if turn else None
                plan = self._plans.get_plan(self._plan_id)
                return self._apply(turn, plan, own) if turn and plan.position == tree_recovery.QUEUED else None
        except tree_recovery.TransactionUndecided as undecided:
            await_end(self._session, undecided.plan, self._until_s, self._wait_s)
        return None

    def _apply(self, turn: RootLock, plan: Plan, own: str | None) -> Plan | None:
        """With what an earlier attempt has done, if it is still there: it is this one's as soon as the lease is."""
        netted = PlanDelta(self._context)
        name = own or tree_recovery.name_of(plan)
        with TreeTransaction(turn, name, netted.deltas, netted.read_body, resumes=True) as change:
            asked_at_s = now_s()
            try:
                started = self._plans.start_apply(self._plan_id, lease_ms=self._lease_ms, expected_version=plan.version)
            except Conflict:  # somebody else was quicker, at another root
                change.undo()
                return None
            assert started.lease is not None
            change.rename(tree_recovery.name_of(started))
            token = started.lease.token
            with Heartbeat(self._session, self._plan_id, token, self._lease_ms, asked_at_s=asked_at_s) as lease:
                return _LeasedApply(self._plans, started, self._root, lease).run(change, netted)


class _LeasedApply:
    """What is done under a lease."""

    def __init__(self, plans: PlanApi, plan: Plan, root: str, lease: Heartbeat) -> None:
        self._plans = plans
        self._plan = plan
        self._root = root
        self._lease = lease

    def run(self, change: TreeTransaction, netted: PlanDelta) -> Plan:
        try:
            change.apply(self._lease.check)
            results = run_all(self._plan.validations, self._root, self._lease.check)
            if failed := missing(self._plan.validations, results):
                change.undo()
                return self._constrain(failed, results)
            self._lease.check()
            change.commit()
        except BaseException as error:
            self._give_up(change, error)
            raise
        try:
            ended = self._complete(netted, results)
        except Refused as refusal:
            self._give_up(change, refusal)
            raise
        with suppress(TreeFailed):  # it is applied; what is left over is seen to by the next who comes
            change.finalize()
        return ended

    def _complete(self, netted: PlanDelta, results: tuple[ValidationResult, ...]) -> Plan:
        def call() -> Plan:
            return self._plans.complete_apply(
                self._plan.plan_id,
                proof=netted.proof,
                validations=results,
                root=text_of(self._root),
                lease=self._lease.token,
            )

        def is_told(plan: Plan) -> bool:
            return plan.applied is not None and plan.applied.attempt == self._plan.attempt

        return report_outcome(self._plans, self._plan.plan_id, call, is_told, self._is_over)

    def _constrain(self, failed: list[str], results: tuple[ValidationResult, ...]) -> Plan:
        reason = f"required validations have not passed: {', '.join(failed)}"[: limits.ERROR_CHARS_MAX]

        def call() -> Plan:
            return self._plans.constrain_apply(self._plan.plan_id, reason, validations=results, lease=self._lease.token)

        def is_told(plan: Plan) -> bool:
            return plan.constrained is not None and plan.constrained.attempt == self._plan.attempt

        return report_outcome(self._plans, self._plan.plan_id, call, is_told, self._is_over)

    def _is_over(self, plan: Plan) -> bool:
        return plan.lease is None or plan.lease.token != self._lease.token

    def _give_up(self, change: TreeTransaction, error: BaseException) -> None:
        """Nothing of it is in the tree, and whoever asks is told why, if it is still ours to say so."""
        try:
            change.undo()
        finally:
            with suppress(StepwellError):
                self._plans.fail_apply(self._plan.plan_id, f"{type(error).__name__}: {error}", lease=self._lease.token)


def _require_here(plan: Plan, root: str) -> None:
    """Whoever is told that it is applied goes on with the tree that they named."""
    if plan.applied is not None and not is_same_root(plan.applied.root, root):
        raise PlanError(
            f"plan {plan.plan_id!r} was applied at {plan.applied.root!r}, and nothing of it at {root!r}: a plan is "
            "applied to one tree",
            plan_id=plan.plan_id,
            root=plan.applied.root,
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
