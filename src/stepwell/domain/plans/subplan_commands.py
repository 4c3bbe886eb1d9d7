"""Commands on the children of a plan: working on those whose turn it is, and merging what they changed."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from stepwell import limits
from stepwell.domain import replies
from stepwell.domain.bounded_types import Body, Identifier, Label, Positive, UploadNumber
from stepwell.domain.changesets.commands import PathText
from stepwell.domain.changesets.mode import Mode
from stepwell.domain.command_roots import Write
from stepwell.domain.plans.commands import LeaseMs
from stepwell.domain.plans.conflicts import Resolution


class StartReady(Write[replies.ReadyStarted], frozen=True):
    """Take the lease on the first child, in declared order, that somebody can work on now."""

    plan_id: Identifier  # of the parent
    lease_ms: LeaseMs = limits.LEASE_MS
    straight: bool = False  # to execute, for children that need no strategy of their own


class ProceedPlan(Write[replies.PlanFound], frozen=True):
    """Strategize is done, and whoever did it executes: three steps in one, between which nobody comes."""

    plan_id: Identifier
    lease: Positive | None
    lease_ms: LeaseMs = limits.LEASE_MS
    expected_version: Positive | None = None


class ConflictFound(Struct, frozen=True, array_like=True):
    """What a merge could not decide: a path, and the child that changed it. The contents are in their entries."""

    path: PathText
    plan_id: Identifier  # of the child


class RecordMerge(Write[replies.PlanFound], frozen=True):
    """What finished children changed is merged: in a closed changeset of the parent, and in conflicts."""

    plan_id: Identifier
    lease: Positive | None
    children: Annotated[
        tuple[Identifier, ...],
        Meta(max_length=limits.SUBPLANS_MAX, description="name the children that executed, in declared order"),
    ]
    changeset_id: Identifier | None = None  # None: nothing came of it
    conflicts: Annotated[
        tuple[ConflictFound, ...],
        Meta(max_length=limits.CONFLICTS_MAX, description="a merge has at most 500 conflicts: merge fewer children"),
    ] = ()


class ResolveConflict(Write[replies.PlanFound], frozen=True):
    """Choose what a path has where children disagreed."""

    plan_id: Identifier
    lease: Positive | None
    path: PathText
    changeset_id: Identifier  # of a new one, that has what the choice changes
    resolution: Resolution
    body: Body | UploadNumber | None = None
    mode: Mode | None = None  # of the body; None: that of what is there
    alias: Label | None = None  # of the child, to be sure

    @property
    def inline(self) -> tuple[int, ...]:
        return (len(self.body),) if isinstance(self.body, bytes) else ()


SubplanWrite = StartReady | ProceedPlan | RecordMerge | ResolveConflict
