"""What earlier processes left at a root, judged by what the manager knows of their plans.

A transaction is named after its plan and the attempt under whose lease it was made, so that there is no doubt whether
it is the one that the manager was told of. What is done and was told is settled. What is done and was not told, and
cannot be any more, is undone. A rollback is the other way round: there is no lease that keeps its telling from arriving
late, so that it is told now. What the manager does not know is left to whoever does: it is another manager's.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

from stepwell.client.api.changesets import ChangesetApi
from stepwell.client.api.plans import PlanApi
from stepwell.client.workflows.plan_delta import PlanDelta
from stepwell.domain.plans.model import Phase, Plan, PlanState, Position
from stepwell.errors import Busy, NotFound, PlanError, TreeFailed
from stepwell.trees import recovery
from stepwell.trees.lock import RootLock
from stepwell.trees.staging_dir import has_staging_dir

_NAME: Final = re.compile(r"(?P<plan_id>[0-9A-Za-z-]+)-(?P<attempt>\d+)(?P<back>-back)?")


QUEUED: Final = Position(Phase.APPLY, PlanState.QUEUED)


class TransactionUndecided(Exception):
    """Somebody may be about to tell the manager what they left: it has to be waited for."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.plan_id)
        self.plan = plan


def name_of(plan: Plan) -> str:
    """The transaction by which a plan is applied, in its present attempt."""
    return f"{plan.plan_id}-{plan.attempt}"


def name_back(plan: Plan) -> str:
    """The transaction by which an applied plan is rolled back."""
    return f"{name_of(plan)}-back"


def recover_root(context: ChangesetApi, turn: RootLock) -> str | None:
    """See to everything that was left, but for what an earlier attempt at this very plan has done, if it is queued.

    That is given, to be gone on with. There is at most one: each attempt goes on with the one before it. Raises
    `Undecided`, and can be called again.
    """
    recovery.recover(turn)
    plans = PlanApi(context.session)
    own: str | None = None
    for name in recovery.committed(turn):
        known = _NAME.fullmatch(name)
        if known is None:
            continue
        try:
            plan = plans.get_plan(known["plan_id"])
        except NotFound:
            continue
        if known["back"]:
            _finish_rollback(context, turn, plan, name)
        elif plan.applied is not None and plan.applied.attempt == int(known["attempt"]):
            recovery.finalize(turn, name)
        elif (plan.phase, plan.state, plan.attempt) == (Phase.APPLY, PlanState.PROCESSING, int(known["attempt"])):
            raise TransactionUndecided(plan)
        elif plan.plan_id == context.plan_id and plan.position == QUEUED and own is None:
            own = name
        else:
            recovery.undo(turn, name)
    return own


def tidy(context: ChangesetApi, root: str) -> None:
    """Whoever worked on a plan that is over may have been killed before all was settled: if it can be done at once.

    Whoever only asks how it ended need not have that tree at all.
    """
    if has_staging_dir(root):
        with suppress(Busy, TreeFailed, TransactionUndecided), RootLock(root, wait_s=0) as turn:
            recover_root(context, turn)


def _finish_rollback(context: ChangesetApi, turn: RootLock, plan: Plan, name: str) -> None:
    """The tree was proven to be what it was before: that somebody changed it since does not undo the rollback."""
    if plan.rolled_back is None:
        its = context.of(plan.plan_id)
        try:
            PlanApi(context.session).roll_back(plan.plan_id, proof=PlanDelta(its, backwards=True).proof)
        except PlanError:  # half of the plan is forgotten: nobody will ask
            return
    recovery.finalize(turn, name)
