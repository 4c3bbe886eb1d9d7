"""`PlanExecutionContext`: record the changes of one execution of a plan, read them, and carry them to a tree.

The calls that only talk to the manager are inherited from `ChangesetApi`. This facade adds the workflows that merge
children, capture changes in a tree, and apply a plan to a tree or roll it back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from stepwell import limits
from stepwell.client.api.changesets import ChangesetApi
from stepwell.client.session.session import Session
from stepwell.client.workflows import apply, capture, conflicts, merge, plan_diff, rollback
from stepwell.client.workflows.capture import Captured
from stepwell.client.workflows.conflicts import ConflictSides
from stepwell.client.workflows.heartbeat import Heartbeat
from stepwell.client.workflows.plan_delta import real_root, root_text
from stepwell.client.workflows.plan_diff import PlanChanges
from stepwell.client.workflows.wait import ApplyTurn
from stepwell.domain.plans.conflicts import MergeConflict, Side
from stepwell.domain.plans.model import Plan
from stepwell.domain.replies import ApplyQueued
from stepwell.errors import InvalidArgument


class PlanExecutionContext(ChangesetApi):
    """The changes of one execution of a plan. Make it with `client.execution(plan_id)`.

    Threads and processes: any number of threads may use one context, and any number of contexts and processes may work
    on one plan. A context owns its active changesets: two contexts of one plan never record into each other's. So make
    one for each worker. Threads that share a context and open several changesets at the same time name theirs with
    `changeset_id=`, because "the most recent one" may be another thread's. In a forked child it is another context.

    Guarantees: there is no lock in the client. The manager decides which changeset a change goes to, in the same step
    that records it. Recording needs the lease of the execution, the session's own or the one given; without it, they
    raise `LeaseLost`. Only closed changesets count. `apply` and `rollback` change a tree entirely or not at all, even
    if the process is killed; processes that call them at the same time wait for each other.
    """

    def of(self, plan_id: str, lease: int | None = None) -> PlanExecutionContext:
        """Return another context in the same session, for instance of a child, to read what was recorded there."""
        return PlanExecutionContext(self.session, plan_id, lease)

    def merge_children(self) -> Plan:
        """Merge the changes of finished children into this plan, and return it, with conflicts that must be resolved.

        The merge goes path by path, children in declared order, by the plan's `MergeStrategy`. Its outcome depends only
        on what the children recorded. It is recorded as one changeset, entirely or not at all; after an interruption,
        call it again. Once the plan is merged, further calls return it as it is. Raises `PlanNotReady` if a child is
        not finished, and, with `fail_on_conflict`, `MergeConflicts`.
        """
        return merge.merge_children(self)

    def resolve(
        self,
        conflict: str | MergeConflict | ConflictSides,
        *,
        accept: Side | Sequence[Side] | None = None,
        body: bytes | None = None,
        mode: int | None = None,
        version: str | None = None,
    ) -> Plan:
        """Resolve the open conflict of a path, and return the plan.

        `accept` is a side, "ours" for what is merged so far or "theirs" for what the child left, or a list with a side
        for each of `conflict_sides(path).hunks`. As in git it concerns the hunks alone: all edits that do not overlap
        are in the result. `body` is a new content instead, with `mode`; conflict markers that are left in it are
        refused. The children that changed the same path later are then merged with the result, in declared order, up
        to the next one that is in conflict with it.

        `conflict` is one of `plan.open_conflicts`, or what `conflict_sides` returned, or, for the conflict as it is
        now, its path. If the conflict is not the one that was seen any more, by its `version`, this raises `Conflict`
        and changes nothing.
        """
        return conflicts.resolve(self, conflict, accept=accept, body=body, mode=mode, version=version)

    def conflict_sides(self, path: str) -> ConflictSides:
        """Return the open conflict of a path, with the bytes of both sides, git's merge of them, and the hunks."""
        return conflicts.conflict_sides(self, path)

    def conflict_text(self, path: str) -> str:
        """Return the open conflict of a path as text with git's markers, to be edited and given as `body`.

        If the conflict is not about text, but about modes, binary or deleted files, both sides are described instead.
        """
        return conflicts.conflict_text(self, path)

    def plan_diff(self, *, paths: Sequence[str] = (), tools: Sequence[str] = ()) -> str:
        """Return a unified diff of the plan's net changes, in order of path and with moves, as `git apply` reads it.

        Binary files are only named, and git refuses a diff that has one. `paths` are globs, as in `tiers.list`; with
        `tools`, the diff has only paths that one of these tools changed.
        """
        return plan_diff.plan_diff(self, paths, tools)

    def plan_summary(self) -> PlanChanges:
        """Return statistics of the plan's net changes: by operation, by tool, and the paths."""
        return plan_diff.plan_summary(self)

    def capture(self, root: str | os.PathLike[str], *, tool: str = "capture") -> AbstractContextManager[Captured]:
        """Record what changes below `root` while the block runs, as one closed changeset at its end.

        Changes are found by content, whichever program made them: files, links and empty directories, with modes and
        moves. Files that git ignores are not captured. An exception in the block, or a refusal at its end, records
        nothing. Raises `PlanNotReady` or `LeaseLost` at the beginning if this session may not record now.

        While the block runs, no other capture begins and no plan is applied or rolled back at this root, at one that
        contains it or at one in it, in any process of this user: these calls raise `TreeInUse`, which names this plan,
        its process and its tool. Otherwise each would record the changes of the other. The lock ends with the process.
        It is a file in this user's state directory (`XDG_STATE_HOME`), which must not be below the root: `TreeFailed`.
        A change of the tree that is under way at the beginning is waited for. Agents that work at the same time each
        take a copy: `workspace`.
        """
        return capture.capture(self, root, tool)

    def workspace(
        self, root: str | os.PathLike[str], *, tool: str = "workspace", lease_ms: int = limits.LEASE_MS
    ) -> AbstractContextManager[Path]:
        """Give a private copy of the tree at `root` to work in, and record what changes in it as one closed changeset.

            with context.workspace("live/shop") as path:
                (path / "cart.py").write_text(...)

        So any number of agents change one tree at the same time: each in a copy of its own, without the changes of the
        others. The copy has what `capture` sees: no `.git`, and no file that git ignores; in it, files are ignored by
        the rules of the original. Symbolic links are copied as links. No plan is applied to the tree while it is
        copied. What this plan has recorded or merged already is in the copy, too. The tree itself is not changed:
        `apply` brings the changes there.

        The lease of the execution is renewed by `lease_ms` again and again while the block runs. The copy is in this
        user's state directory (`XDG_STATE_HOME`). It is removed when the block ends, and what a killed process left is
        removed by a later call. An exception in the block, or a refusal at its end, records nothing. Raises
        `PlanNotReady` or `LeaseLost` at the beginning if this session may not record now, `TreeConflict` if the tree is
        not what the earlier changes of the plan found, and `InvalidArgument` if the root is no directory, or too large.
        """
        return capture.workspace(self, root, tool, lease_ms)

    def apply(
        self,
        root: str | os.PathLike[str],
        *,
        wait: bool = False,
        priority: int = 0,
        timeout_s: float | None = None,
        on_place: Callable[[ApplyQueued], None] | None = None,
        wait_s: float = limits.APPLY_WAIT_SECONDS,
        lease_ms: int = limits.LEASE_MS,
        on_warning: Callable[[str], None] | None = None,
    ) -> Plan:
        """Make the plan's changes in the tree at `root`, all or none, run its validations, and end the apply phase.

        If several processes call this for one plan, one does the work, and all get the same plan; in it, `applied` has
        the proof. A later call returns the first outcome again, and changes nothing. But a plan is applied once: after
        a `rollback`, this raises `AlreadyRolledBack`, and the action has to be used again.

        If a required validation fails, the tree is restored, the plan is constrained, and this raises
        `ValidationFailed` with the command, its exit code and the end of its output. So does each later call, whatever
        its root. A root that is no directory raises `InvalidArgument`, whatever the plan's state.

        If the tree is not as the plan expects, this raises `TreeConflict`, which names every path; nothing is written,
        and the plan stays queued. A tree that has all changes already, because an agent worked in place, is proven and
        left alone. Any other failure undoes the tree and leaves the plan errored: `retry_plan` queues it again. If the
        process is killed at any moment, the next call at that root, also for another plan, recovers: the tree is then
        entirely before or entirely after, in agreement with the plan.

        With `wait`, the plan takes its turn at the tree: plans that are ready to be applied there, by clients of this
        manager, wait in a queue. The highest `priority` (-100 to 100) comes first, and of equal ones the plan that has
        waited longest; an apply that has begun is not interrupted. `on_place` is called in this thread with each change
        of the place: `found.place` of `found.plans`, and `found.applying` is the plan that is being applied.
        `timeout_s` bounds the waiting for the turn; past it, this raises `Busy` and leaves the queue. A caller that is
        stopped holds up the others for half a minute at most (`limits.APPLY_TURN_MS`), and one whose process has died
        not at all. A tree is its root's real path. Without `wait`, this raises `TreeQueued` while other plans wait,
        with the place that the plan would have.

        `wait_s` bounds the waiting for other processes at the same plan or tree; past it, this raises `Busy`. The lease
        of `lease_ms` is renewed while the work goes on. Directories in `.stepwell` that processes of this user did not
        make, because they came with the tree, are left alone: `on_warning` gets a sentence about each, and without it a
        warning is logged.
        """
        if not wait and (priority or timeout_s is not None or on_place is not None):
            raise InvalidArgument("priority, timeout_s and on_place are for callers that wait: give wait=True")
        path = real_root(root)
        turn = None
        if wait:
            turn = ApplyTurn(
                self.session,
                self.plan_id,
                root_text(path),
                priority=priority,
                timeout_s=timeout_s,
                on_place=on_place,
            )
        return apply.PlanApply(self, path, wait_s, lease_ms, on_warning, turn=turn).run()

    def rollback(
        self,
        root: str | os.PathLike[str],
        *,
        reason: str = "",
        wait_s: float = limits.APPLY_WAIT_SECONDS,
        on_warning: Callable[[str], None] | None = None,
    ) -> Plan:
        """Restore the tree at `root` as it was before the plan was applied, all or nothing, and return the plan.

        `plan.rolled_back` has the reason and the time. If files of the plan were changed since, this raises
        `TreeConflict`, which names every path, and writes nothing. A second call returns the same plan. `wait_s` bounds
        the waiting for other processes at the same tree; past it, this raises `Busy`. `on_warning` is as in `apply`.
        """
        return rollback.roll_back(self, real_root(root), reason, wait_s, on_warning)


class WorkContext(PlanExecutionContext):
    """The context in which an agent works on one child, under the child's lease (see `plans.work_on`).

    It can do all that a `PlanExecutionContext` can, and any thread may use it while the agent's function runs. After
    that, or once the lease is lost, recording raises `LeaseLost`.
    """

    def __init__(self, session: Session, plan_id: str, lease: int, heartbeat: Heartbeat) -> None:
        super().__init__(session, plan_id, lease)
        self._heartbeat = heartbeat

    def check(self) -> None:
        """Raise `LeaseLost` if the child was taken away; for functions that work for long without recording."""
        self._heartbeat.check()
