"""The calls on children: declaring them, working on those whose turn it is, merging what they changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ulid import ULID

from stepwell import limits
from stepwell.client.api.plan_leases import LeasedPlanCalls, plan_of, project_links
from stepwell.client.api.service import method
from stepwell.client.session.calls import Answered, Call
from stepwell.domain.checks import require_instance
from stepwell.domain.plans.commands import (
    ConflictFound,
    DeclareSubplans,
    ProceedPlan,
    RecordMerge,
    ResolveConflict,
    StartReady,
    SubplanSpec,
)
from stepwell.domain.plans.conflicts import Resolution
from stepwell.domain.plans.model import ArgumentValue, MergeStrategy, Plan, ProjectLink, SubplanMode
from stepwell.domain.replies import ReadyStarted
from stepwell.errors import InvalidArgument

_ACCEPTED = {"ours": Resolution.ACCEPT_OURS, "theirs": Resolution.ACCEPT_THEIRS}


class SubplanCalls(LeasedPlanCalls):
    """The calls on the children of a plan."""

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
        """Make the children of an executing plan; `subplan()` describes one.

        A child that fails is queued again, of itself, `retries` times; then `fail_fast` cancels its siblings.
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
        self, parent_plan_id: str, *, lease_ms: int = limits.LEASE_MS, straight: bool = False
    ) -> Call[ReadyStarted]:
        """Take the lease on the first child, in declared order, whose turn it is: of all who call, no two get the same.

        Its `plan` is None when nothing is ready now; `is_over` then says whether to go, or to wait for a `PlanMoved` of
        this parent's children. With `straight` a child is brought to execute at once, without a strategy of its own.
        """
        return Call(StartReady(parent_plan_id, lease_ms, straight), self._ready)

    @method
    def proceed(
        self,
        plan_id: str,
        *,
        lease: int | None = None,
        lease_ms: int = limits.LEASE_MS,
        expected_version: int | None = None,
    ) -> Call[Plan]:
        """From strategize, which is done, to execute, under a lease of its own: nobody comes in between."""
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
        """Say that the children that executed, in declared order, are merged into a closed changeset of the plan.

        `conflicts` are paths, each with the id of the child whose change of it does not fit, in declared order.
        """
        found = tuple(ConflictFound(path, child) for path, child in conflicts)
        command = RecordMerge(plan_id, self._lease_token(plan_id, lease), tuple(children), changeset_id, found)
        return Call(command, plan_of)

    @method
    def resolve_conflict(
        self,
        plan_id: str,
        path: str,
        *,
        accept: Literal["ours", "theirs"] | None = None,
        body: bytes | None = None,
        mode: int | None = None,
        alias: str | None = None,
        lease: int | None = None,
    ) -> Call[Plan]:
        """Choose for the first open conflict of a path: what is merged so far, what the child left, or a body."""
        require_instance(body, (bytes, type(None)), "a body is bytes (text.encode())")
        if (accept is None) == (body is None) or (accept is not None and accept not in _ACCEPTED):
            raise InvalidArgument("resolve a conflict by accept='ours', accept='theirs' or body=")
        is_large = body is not None and len(body) > limits.INLINE_BODY_BYTES_MAX
        command = ResolveConflict(
            plan_id=plan_id,
            lease=self._lease_token(plan_id, lease),
            path=path,
            changeset_id=str(ULID()),
            resolution=Resolution.BODY if accept is None else _ACCEPTED[accept],
            body=0 if is_large else body,
            mode=mode,
            alias=alias,
        )
        return Call(command, plan_of, {"body": body} if is_large and body is not None else None)

    def _ready(self, answered: Answered[ReadyStarted]) -> ReadyStarted:
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
) -> SubplanSpec:
    """Describe a child for `declare_subplans`. Without projects, it works on its parent's."""
    return SubplanSpec(
        alias=alias,
        plan_id=str(ULID()),
        action_name=action_name,
        arguments=dict(arguments or {}),
        project_links=project_links(projects),
        depends_on=tuple(depends_on),
    )
