"""Recovery of unfinished tree transactions at a root, decided by what the manager has recorded of their plans.

A process that is killed while it applies or rolls back a plan leaves its transaction in the root's staging directory.
The next process at that root finds it while it holds the root's lock, so the transaction is not running any more. A
transaction is named after its plan and the attempt under whose lease it was made; so it is certain whether the manager
recorded this one or another attempt. The outcome of a committed transaction:

| transaction          | the manager's state of the plan      | action                                              |
|----------------------|--------------------------------------|-----------------------------------------------------|
| apply                | this attempt is recorded as applied  | finalize: the change counts                         |
| apply                | this attempt's lease is still live   | wait: its report may still arrive                   |
| apply of this plan   | queued for another attempt           | resume it, if the caller applies this very plan     |
| apply                | anything else                        | undo: its lease has expired, so no report can count |
| rollback             | not recorded yet                     | report it, because no lease could make it too late  |
| rollback             | recorded                             | finalize                                            |
| of an unknown plan   |                                      | leave it: it belongs to another manager             |

Directories that are no transactions of this user's own processes are left as they are, and the user is warned: the tree
may have come with them, from a repository or an archive.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from stepwell import limits
from stepwell.client.api.changesets import ChangesetApi
from stepwell.client.api.plans import PlanApi
from stepwell.client.workflows.plan_delta import PlanDelta
from stepwell.domain.plans.model import Phase, Plan, PlanState, Position
from stepwell.errors import Busy, NotFound, PlanError, TreeFailed
from stepwell.telemetry import Logger, LogLevel
from stepwell.trees import recovery
from stepwell.trees.lock import RootLock
from stepwell.trees.staging_dir import UntrustedDirectory, has_staging_dir

_NAME: Final = re.compile(r"(?P<plan_id>[0-9A-Za-z-]+)-(?P<attempt>\d+)(?P<back>-back)?")

QUEUED: Final = Position(Phase.APPLY, PlanState.QUEUED)

_ADVICE: Final = (
    "if a stepwell of yours was interrupted here, compare the tree with what you expect; then remove the directory"
)

OnWarning = Callable[[str], None]
"""A function that gets a sentence about something that a person should look at."""


class TransactionUndecided(Exception):
    """Raised if a committed transaction's lease is still live, so that its report to the manager may still arrive.

    The caller releases the root's lock, waits for the end of that lease, and tries again.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.plan_id)
        self.plan = plan


def apply_name(plan: Plan) -> str:
    """The name of the transaction that applies a plan in its present attempt."""
    return f"{plan.plan_id}-{plan.attempt}"


def rollback_name(plan: Plan) -> str:
    """The name of the transaction that rolls an applied plan back."""
    return f"{apply_name(plan)}-back"


def recover_root(context: ChangesetApi, lock: RootLock, on_warning: OnWarning | None) -> str | None:
    """Recover every unfinished transaction at this root, of the plans that the manager knows; leave others alone.

    Return the name of the one that an earlier attempt of this plan committed, so that the caller can resume it; None
    if there is none or the plan is not queued. There is at most one, because each attempt resumes the one before it.
    Raises `TransactionUndecided`; the call can be repeated. `on_warning` gets a sentence about each directory that was
    left alone because it is not of this user's processes; None logs a warning instead.
    """
    try:
        recovery.recover(lock)
    finally:
        _warn(recovery.untrusted(lock), on_warning)
    plans = PlanApi(context.session)
    resumable: str | None = None
    for name in recovery.committed(lock):
        known = _NAME.fullmatch(name)
        if known is None:
            continue
        try:
            plan = plans.get_plan(known["plan_id"])
        except NotFound:
            continue
        if known["back"]:
            _finish_rollback(context, lock, plan, name)
        elif plan.applied is not None and plan.applied.attempt == int(known["attempt"]):
            recovery.finalize(lock, name)
        elif (plan.phase, plan.state, plan.attempt) == (Phase.APPLY, PlanState.PROCESSING, int(known["attempt"])):
            raise TransactionUndecided(plan)
        elif plan.plan_id == context.plan_id and plan.position == QUEUED and resumable is None:
            resumable = name
        else:
            recovery.undo(lock, name)
    return resumable


def recover_if_unlocked(context: ChangesetApi, root: str, on_warning: OnWarning | None) -> None:
    """Recover unfinished transactions at a root if it is possible at once; otherwise do nothing.

    For calls on a plan that has ended: its last process may have been killed before it finalized its transaction. But a
    caller that only asks for the outcome must neither wait for the tree nor need it, so a busy root, a failing file
    system and an undecided transaction are ignored. A `TreeConflict` is raised.
    """
    if has_staging_dir(root):
        with suppress(Busy, TreeFailed, TransactionUndecided), RootLock(root, wait_s=0) as lock:
            recover_root(context, lock, on_warning)


def _warn(found: list[UntrustedDirectory], on_warning: OnWarning | None) -> None:
    """Warn of the first directories, one by one, and of the number of the others."""
    log = Logger(LogLevel.WARNING)
    named, others = found[: limits.TREE_NAMED_MAX], len(found[limits.TREE_NAMED_MAX :])
    for each in named:
        if on_warning is None:
            log.warning("transaction.not_recovered", path=ascii(each.path), reason=each.reason, advice=_ADVICE)
        else:
            on_warning(f"{each.path!r} was left alone, because {each.reason}: {_ADVICE}")
    if others and on_warning is None:
        log.warning("transaction.not_recovered", others=others)
    elif others and on_warning is not None:
        on_warning(f"{others} more were left alone for the same reasons")


def _finish_rollback(context: ChangesetApi, lock: RootLock, plan: Plan, name: str) -> None:
    """Report a committed rollback to the manager, unless it is recorded, and finalize it.

    The tree was proven to be as before the plan when the transaction was committed. Changes of other programs since
    then do not undo the rollback.
    """
    if plan.rolled_back is None:
        rolled_back = context.of(plan.plan_id)
        try:
            PlanApi(context.session).roll_back(plan.plan_id, proof=PlanDelta(rolled_back, backwards=True).proof)
        except PlanError:  # parts of the plan were forgotten: it cannot be reported any more
            return
    recovery.finalize(lock, name)
