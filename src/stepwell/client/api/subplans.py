"""The calls on the children of a plan: declaring them, taking the next one that is ready, and recording their merge.

An executing plan declares its children once. Agents in any number of processes then call `start_ready` to share the
work. When all are finished, `PlanExecutionContext.merge_children` merges their changes, and `resolve` the conflicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepwell import limits
from stepwell.client.api.plan_leases import LeasedPlanCalls, name_tuple, plan_of, project_links
from stepwell.client.api.service import method
from stepwell.client.session.calls import Answered, Call
from stepwell.domain.plans.commands import (
    ConflictFound,
    DeclareSubplans,
    ProceedPlan,
    RecordMerge,
    StartReady,
    SubplanSpec,
)
from stepwell.domain.plans.model import ArgumentValue, MergeStrategy, Plan, ProjectLink, SubplanMode
from stepwell.domain.replies import ReadyStarted
from stepwell.identifiers import new_id


class SubplanCalls(LeasedPlanCalls):
    """The calls on the children of a plan; their result depends on the kind of service."""

    @method
    def declare_subplans(
        self,
        plan_id: str,
        children: Sequence[SubplanSpec],
        *,
        mode: SubplanMode = SubplanMode.PARALLEL,
        max_parallel: int = limits.MAX_PARALLEL,
        fail_fast: bool = False,
        merge: MergeStrategy = MergeStrategy.GIT_THREE_WAY,
        retries: int = 0,
        lease: int | None = None,
    ) -> Call[Plan]:
        """Create the children of an executing plan; `subplan()` describes one.

        `mode` and `max_parallel` decide in which order and how many at a time children are ready. The manager queues a
        child that fails again, up to `retries` times. After that `fail_fast` cancels its siblings. `merge` selects how
        `merge_children` joins changes of the same path. A second declaration raises `AlreadyExists`.
        """
        command = DeclareSubplans(
            plan_id=plan_id,
            lease=self._lease_token(plan_id, lease),
            children=tuple(children),
            mode=mode,
            max_parallel=max_parallel,
            fail_fast=fail_fast,
            merge=merge,
            retries=retries,
        )
        return Call(command, plan_of)

    @method
    def start_ready(
        self,
        parent_plan_id: str,
        *,
        lease_ms: int = limits.LEASE_MS,
        straight: bool = False,
        actors: Sequence[str] | None = None,
        labels: Sequence[str] | None = None,
        read_only: bool | None = None,
    ) -> Call[ReadyStarted]:
        """Take the lease on the first child, in declared order, that is ready. No two callers get the same child.

        `actors`, `labels` and `read_only` say what the caller can do; without them it is offered every child. With
        `actors`, only a child whose action names one of them for the phase that starts: `strategy_actor` for
        strategize, `execution_actor` for execute. With `labels`, only a child all of whose labels are among them; `()`
        stands for children without labels. `read_only=True` is for read-only children, `False` for the others.

        A child that this session failed is left to other sessions first, if some that can do it have asked for children
        of this plan. The reply's `plan` is None if there is none for the caller now. Then `is_over` says that no child
        is left for any caller, and `is_for_others` that those which are left need a scope or an ability that this
        caller does not have. Otherwise the caller should wait for a `PlanMoved` event of this parent's children. With
        `straight` a child goes to execute at once, without a strategy of its own.
        """
        command = StartReady(
            parent_plan_id, lease_ms, straight, name_tuple(actors), name_tuple(labels), read_only=read_only
        )
        return Call(command, self._ready)

    @method
    def proceed(
        self,
        plan_id: str,
        *,
        lease: int | None = None,
        lease_ms: int = limits.LEASE_MS,
        expected_version: int | None = None,
    ) -> Call[Plan]:
        """Move a plan whose strategize phase is done to execute, and take the new lease in the same step.

        No other session can take the plan in between.
        """
        return self._leasing_call(ProceedPlan(plan_id, self._lease_token(plan_id, lease), lease_ms, expected_version))

    @method
    def record_merge(
        self,
        plan_id: str,
        *,
        children: Sequence[str],
        changeset_id: str | None = None,
        conflicts: Sequence[tuple[str, str]] = (),
        lease: int | None = None,
    ) -> Call[Plan]:
        """Record that the executed children, in declared order, are merged into a closed changeset of the plan.

        `conflicts` are paths, each with the id of the child whose change does not fit, in declared order.
        """
        found = tuple(ConflictFound(path, child) for path, child in conflicts)
        command = RecordMerge(plan_id, self._lease_token(plan_id, lease), tuple(children), changeset_id, found)
        return Call(command, plan_of)

    def _ready(self, answered: Answered[ReadyStarted]) -> ReadyStarted:
        """Remember the lease of the child that was started, and return the reply."""
        plan = answered.reply.plan
        if plan is not None and plan.lease is not None:
            self.session.leases[plan.plan_id] = plan.lease.token
        return answered.reply


def subplan(
    action_name: str,
    *,
    alias: str,
    arguments: Mapping[str, ArgumentValue] | None = None,
    projects: Sequence[str | ProjectLink] = (),
    depends_on: Sequence[str] = (),
    labels: Sequence[str] = (),
) -> SubplanSpec:
    """Return the description of a child for `declare_subplans`. Without projects the child works on its parent's.

    `labels` are what an agent has to be able to do for this child, such as "gpu"; see `start_ready`.
    """
    return SubplanSpec(
        alias=alias,
        plan_id=new_id(),
        action_name=action_name,
        arguments=dict(arguments or {}),
        project_links=project_links(projects),
        depends_on=tuple(depends_on),
        labels=name_tuple(labels) or (),
    )
