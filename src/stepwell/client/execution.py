"""`PlanExecutionContext`: where the changes of one execution are recorded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Literal

from stepwell import limits
from stepwell.client.api.changesets import ChangesetApi
from stepwell.client.session.session import Session
from stepwell.client.workflows import apply, capture, merge, plan_diff, rollback
from stepwell.client.workflows.capture import Captured
from stepwell.client.workflows.heartbeat import Heartbeat
from stepwell.client.workflows.merge import ConflictSides
from stepwell.client.workflows.plan_delta import real_root
from stepwell.client.workflows.plan_diff import PlanChanges
from stepwell.domain.plans.model import Plan


class PlanExecutionContext(ChangesetApi):
    """The changes of one execution, safe from any number of threads.

    A context owns its active changesets, and two contexts of one plan never see each other's: make one for each
    worker with `client.execution(plan_id)`. Threads that share one context and open changesets side by side name
    theirs with `changeset_id=`; "the most recent" is then somebody else's question. There is no lock: which changeset a
    change goes to is decided by the manager, in the same step that records it.
    """

    def of(self, plan_id: str, lease: int | None = None) -> PlanExecutionContext:
        """Another context in the same session, of a child, say, to read what was recorded there."""
        return PlanExecutionContext(self.session, plan_id, lease)

    def merge_children(self) -> Plan:
        """Make what finished children changed the plan's own: one changeset, and conflicts for somebody to resolve.

        Path by path, in declared order, by the plan's `MergeStrategy`; what comes of it depends on what they recorded,
        and on nothing else. It is all recorded or nothing is, and a merge that was interrupted is made again by another
        call; once made, another call gives the same. With `fail_on_conflict` it raises `MergeConflicts`.
        """
        return merge.merge_children(self)

    def resolve(
        self,
        path: str,
        *,
        accept: Literal["ours", "theirs"] | None = None,
        body: bytes | None = None,
        mode: int | None = None,
        alias: str | None = None,
    ) -> Plan:
        """Choose for the first open conflict of a path: what is merged so far, what the child left, or a body.

        Conflicts of one path come in declared order, and what is chosen is `ours` for the next: nobody's work is
        passed over unseen. `alias` is the child's, to be sure.
        """
        return merge.resolve(self, path, accept=accept, body=body, mode=mode, alias=alias)

    def conflict_sides(self, path: str) -> ConflictSides:
        """The first open conflict of a path, with the bytes of both sides and what git makes of them."""
        return merge.conflict_sides(self, path)

    def conflict_text(self, path: str) -> str:
        """The first open conflict of a path as git writes it, between markers: to be edited, and given as `body`.

        Where it is not about text, but about modes, binary files or what was deleted, what each side has is described.
        """
        return merge.conflict_text(self, path)

    def plan_diff(self, *, paths: Sequence[str] = (), tools: Sequence[str] = ()) -> str:
        """A unified diff of what the whole plan comes to, in order of path, moves found; git applies it.

        Binary files are only named, and git refuses a diff that has one.

        `paths` are globs, as in `tiers.list`; with `tools` it has the paths that one of those has changed.
        """
        return plan_diff.plan_diff(self, paths, tools)

    def plan_summary(self) -> PlanChanges:
        """What the whole plan comes to, in numbers."""
        return plan_diff.plan_summary(self)

    def capture(self, root: str | os.PathLike[str], *, tool: str = "capture") -> AbstractContextManager[Captured]:
        """While the block runs, notice what changes under `root`; at its end, record it as one closed changeset.

        By content, whoever changed it: files, links and empty directories, with modes and moves; what git ignores is
        not looked at. All or nothing: an exception in the block, or a refusal at its end, records nothing.
        """
        return capture.capture(self, root, tool)

    def apply(
        self,
        root: str | os.PathLike[str],
        *,
        wait_s: float = limits.APPLY_WAIT_SECONDS,
        lease_ms: int = limits.LEASE_MS,
    ) -> Plan:
        """Make the plan's changes in the tree at `root`, all or none, run its validations, and end its apply.

        Of all who call, in whatever processes, one does it, and all get the same plan: `plan.applied` has how it was
        proven, `plan.constrained` which required validation failed; the tree is as it was then. One that ended so, or
        was rolled back since, is given as it is. A tree that is not what the plan expects is a `TreeConflict` that
        names every path; nothing is written, and the plan stays queued. A tree in which all is done already, because
        somebody worked in place, is proven and left alone. What failed on the way leaves the plan errored:
        `retry_plan` queues it again. Killed at any moment, the next call at that root, also for another plan, leaves
        the tree entirely before or entirely after, as the plan is.

        `wait_s` is for others, at the same plan or tree: past it, `Busy`. `lease_ms` is renewed while it works.
        """
        return apply.PlanApply(self, real_root(root), wait_s, lease_ms).run()

    def rollback(
        self, root: str | os.PathLike[str], *, reason: str = "", wait_s: float = limits.APPLY_WAIT_SECONDS
    ) -> Plan:
        """Make the tree at `root` what it was before the plan was applied, all or nothing; `plan.rolled_back` says so.

        Where somebody changed the files since, it is a `TreeConflict` that names every path, and nothing is written. A
        second call gives the same plan.
        """
        return rollback.roll_back(self, real_root(root), reason, wait_s)


class WorkContext(PlanExecutionContext):
    """The context in which one child is worked on, under its lease."""

    def __init__(self, session: Session, plan_id: str, lease: int, heartbeat: Heartbeat) -> None:
        super().__init__(session, plan_id, lease)
        self._heartbeat = heartbeat

    def check(self) -> None:
        """Raise `LeaseLost` if the child is not the caller's any more; for whoever works long without recording."""
        self._heartbeat.check()
