"""Parents and children for the tests of merging: a test gives the changes of each, and its own client records them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import stepwell as sw
from stepwell import limits
from tests.support.client.sessions import executing

Given = bytes | tuple[bytes, int] | None
"""A content, with its mode if that is known; None for no file."""

Work = Mapping[str, tuple[Given, Given]]
"""The changes of a child by path: the content that it found, and the content that it left."""


def content(given: Given) -> tuple[bytes | None, int | None]:
    """The bytes and the mode."""
    return given if isinstance(given, tuple) else (given, None)


def record(context: sw.PlanExecutionContext, work: Work, tool: str = "test") -> None:
    """Record the changes in a changeset of their own."""
    changeset_id = context.start_changeset()
    for path, (before, after) in work.items():
        (old, old_mode), (new, new_mode) = content(before), content(after)
        change = sw.Change(path=path, before=old, after=new, before_mode=old_mode, after_mode=new_mode, tool=tool)
        context.record_change(change, changeset_id=changeset_id)
    context.close_changeset(changeset_id)


def parent_of(
    client: sw.Client,
    works: Mapping[str, Work],
    *,
    merge: sw.MergeStrategy = sw.MergeStrategy.GIT_THREE_WAY,
    own: Work | None = None,
    lease_ms: int = limits.LEASE_MS,
) -> sw.PlanExecutionContext:
    """The context of a parent whose children, in declared order, have done their work."""
    parent = declared(client, [*works], merge=merge, lease_ms=lease_ms)
    context = client.execution(parent.plan_id)
    if own:
        record(context, own, "parent")
    assert parent.subplans is not None
    for child in parent.subplans.children:
        found = client.plans.start_ready(parent.plan_id, straight=True)
        assert found.plan is not None
        assert found.plan.plan_id == child.plan_id
        if works[child.alias]:
            record(client.execution(child.plan_id), works[child.alias], child.alias)
        client.plans.complete_execute(child.plan_id)
    return context


def declared(
    client: sw.Client,
    aliases: Sequence[str],
    *,
    merge: sw.MergeStrategy = sw.MergeStrategy.GIT_THREE_WAY,
    mode: sw.SubplanMode = sw.SubplanMode.PARALLEL,
    max_parallel: int = 50,
    fail_fast: bool = False,
    retries: int = 0,
    needs: Mapping[str, Sequence[str]] | None = None,
    lease_ms: int = limits.LEASE_MS,
) -> sw.Plan:
    """A plan that this client executes, and its children."""
    project = (client.projects or ("p",))[0]
    parent = executing(client, f"act-{client.status().revision}", project, lease_ms)
    children = [
        sw.subplan(parent.action_name, alias=alias, depends_on=(needs or {}).get(alias, ())) for alias in aliases
    ]
    return client.plans.declare_subplans(
        parent.plan_id,
        children,
        merge=merge,
        mode=mode,
        max_parallel=max_parallel,
        fail_fast=fail_fast,
        retries=retries,
    )


def tree(context: sw.PlanExecutionContext) -> dict[str, tuple[bytes, int | None] | None]:
    """Return the content that the plan leaves at each changed path; None where no file is left."""
    return {
        path: None if each.after is None else (bytes(context.body(each.after.digest)), each.after.mode)
        for path, each in sorted(context.net_changes().items())
        if not each.is_nothing
    }
