"""Telling what happened: events are made of the changes of rows, so that neither can be without the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar, cast

from msgspec import Struct

from stepwell.domain.changesets.model import Changeset, ContextRow, EntryRow
from stepwell.domain.events import (
    ActionArchived,
    ActionCreated,
    ActionUsed,
    AnyEvent,
    BudgetChanged,
    ChangeRecorded,
    ChangesetEnded,
    ChangesetStarted,
    ConflictResolved,
    DecisionRecorded,
    DecisionSuperseded,
    FragmentDeleted,
    FragmentDemoted,
    FragmentPromoted,
    FragmentStored,
    LeaseRenewed,
    PlanCreated,
    PlanForgotten,
    PlanMoved,
    PlanRolledBack,
    SubplansDeclared,
    SubplansMerged,
)
from stepwell.domain.plans.model import Action, ActionState, Decision, Plan
from stepwell.domain.receipts.model import ReceiptRow
from stepwell.domain.replies import Row
from stepwell.domain.tiers.model import FragmentRow, Tier, TierBudget
from stepwell.domain.verdict import AnyChange, RowChanged

ProjectsOf = Callable[[str], tuple[str, ...]]
"""The projects of a plan, by its id. It has to know those that were there when the changes were made."""


class _Moment(Struct, frozen=True, gc=False):
    """When something happened, and how to find out whose it is."""

    revision: int
    at_ms: int
    projects_of: ProjectsOf


def events_of(changes: Iterable[AnyChange], revision: int, at_ms: int, projects_of: ProjectsOf) -> list[AnyEvent]:
    """What changes of rows mean to whoever watches, in their order. Some mean nothing."""
    moment = _Moment(revision, at_ms, projects_of)
    made = (MAKERS[type(change.after or change.before)](change, moment) for change in changes)
    return [event for event in made if event is not None]


def _fragment(change: RowChanged[FragmentRow], moment: _Moment) -> AnyEvent | None:
    before, after = change.before, change.after
    if after is None:
        assert before is not None
        return FragmentDeleted(
            moment.revision, moment.at_ms, before.project, before.fragment_id, before.tier, before.tokens, before.digest
        )
    if before is not None and _is_moved(before, after):
        kind = FragmentPromoted if _RANKS[after.tier] > _RANKS[before.tier] else FragmentDemoted
        return kind(
            moment.revision, moment.at_ms, after.project, after.fragment_id, before.tier, after.tier, after.tokens
        )
    return FragmentStored(
        moment.revision,
        moment.at_ms,
        after.project,
        after.fragment_id,
        after.tier,
        before.tier if before else None,
        after.tokens,
        after.size,
        after.digest,
        after.kind,
    )


_RANKS: Final = {Tier.COLD: 0, Tier.WARM: 1, Tier.HOT: 2}


def _is_moved(before: FragmentRow, after: FragmentRow) -> bool:
    """Whether only its tier is another. Stored twice in one transaction, it has the same revision both times."""
    return (
        before.tier is not after.tier
        and before.revision == after.revision
        and (before.digest, before.tokens, before.source, before.kind, before.detail_depth, before.metadata)
        == (after.digest, after.tokens, after.source, after.kind, after.detail_depth, after.metadata)
    )


def _budget(change: RowChanged[TierBudget], moment: _Moment) -> AnyEvent | None:
    after = change.after
    return BudgetChanged(moment.revision, moment.at_ms, after) if after and after != change.before else None


def _action(change: RowChanged[Action], moment: _Moment) -> AnyEvent | None:
    before, after = change.before, change.after
    assert after is not None, "actions are archived, never deleted"
    if before is None:
        return ActionCreated(moment.revision, moment.at_ms, after.name, after.reusable)
    if after.uses != before.uses:
        return ActionUsed(moment.revision, moment.at_ms, after.name, after.uses)
    if after.state is ActionState.ARCHIVED and before.state is not ActionState.ARCHIVED:
        return ActionArchived(moment.revision, moment.at_ms, after.name)
    return None


def _plan(change: RowChanged[Plan], moment: _Moment) -> AnyEvent | None:
    before, after = change.before, change.after
    if after is None:
        assert before is not None
        return PlanForgotten(moment.revision, moment.at_ms, before.plan_id, before.projects)
    if before is None:
        return PlanCreated(
            moment.revision,
            moment.at_ms,
            after.plan_id,
            after.projects,
            after.action_name,
            after.parent_plan_id,
            after.root_plan_id,
            after.phase,
            after.state,
        )
    if after.rolled_back is not None and before.rolled_back is None:
        paths = after.rolled_back.paths
        return PlanRolledBack(
            moment.revision, moment.at_ms, after.plan_id, after.projects, after.action_name, after.version, paths
        )
    if after.version != before.version:
        return _plan_moved(before, after, moment)
    if after.lease is not None and after.lease != before.lease:
        lease = after.lease
        return LeaseRenewed(
            moment.revision, moment.at_ms, after.plan_id, after.projects, lease.session_id, lease.expires_at_ms
        )
    if after.subplans is not None and after.subplans != before.subplans:
        mode, children = after.subplans.mode, len(after.subplans.children)
        return SubplansDeclared(moment.revision, moment.at_ms, after.plan_id, after.projects, mode, children)
    return _merge(before, after, moment)


def _merge(before: Plan, after: Plan, moment: _Moment) -> AnyEvent | None:
    facts = (moment.revision, moment.at_ms, after.plan_id, after.projects)
    if after.merged is not None and before.merged is None:
        merged = after.merged
        return SubplansMerged(*facts, len(merged.children), merged.changeset_id, len(after.conflicts))
    for was, now in zip(before.conflicts, after.conflicts, strict=True):
        if was.is_open and now.resolution is not None:
            return ConflictResolved(*facts, now.path, now.alias, now.resolution, len(after.open_conflicts))
    return None  # it has more, or less, of what has events of its own


def _plan_moved(before: Plan, after: Plan, moment: _Moment) -> PlanMoved:
    return PlanMoved(
        moment.revision,
        moment.at_ms,
        after.plan_id,
        after.projects,
        after.action_name,
        after.parent_plan_id,
        before.phase,
        before.state,
        after.phase,
        after.state,
        after.attempt,
        after.version,
        after.lease.session_id if after.lease else None,
    )


def _decision(change: RowChanged[Decision], moment: _Moment) -> AnyEvent | None:
    before, after = change.before, change.after
    if after is None:  # forgotten with its plan
        return None
    projects = moment.projects_of(after.plan_id)
    if before is None:
        return DecisionRecorded(
            moment.revision,
            moment.at_ms,
            after.plan_id,
            projects,
            after.decision_id,
            after.parent_id,
            after.phase,
            after.attempt,
            after.checkpoint,
        )
    if after.superseded_at_ms is not None and before.superseded_at_ms is None:
        return DecisionSuperseded(moment.revision, moment.at_ms, after.plan_id, projects, after.decision_id)
    return None


def _changeset(change: RowChanged[Changeset], moment: _Moment) -> AnyEvent | None:
    before, after = change.before, change.after
    if after is None or (before is not None and before.state is after.state):
        return None
    facts = (moment.revision, moment.at_ms, after.plan_id, moment.projects_of(after.plan_id), after.changeset_id)
    if before is None:
        return ChangesetStarted(*facts, after.context_id, after.attempt)
    return ChangesetEnded(*facts, after.state, after.entry_count)


def _entry(change: RowChanged[EntryRow], moment: _Moment) -> AnyEvent | None:
    after = change.after
    if after is None:
        return None
    return ChangeRecorded(
        moment.revision,
        moment.at_ms,
        after.plan_id,
        moment.projects_of(after.plan_id),
        after.changeset_id,
        after.seq,
        after.operation,
        after.path,
        after.source_path,
        after.before.digest if after.before else None,
        after.after.digest if after.after else None,
        after.before.mode if after.before else None,
        after.after.mode if after.after else None,
    )


def _context(_change: RowChanged[ContextRow], _moment: _Moment) -> AnyEvent | None:
    """Which changesets are open has events of its own."""
    return None


def _receipt(_change: RowChanged[ReceiptRow], _moment: _Moment) -> AnyEvent | None:
    """Who asked what is no change of what there is, and must not push what is one out of a log that is bounded."""
    return None


RowT = TypeVar("RowT", bound=Row)
_Maker = Callable[[RowChanged[Row], _Moment], AnyEvent | None]


def _maker(maker: Callable[[RowChanged[RowT], _Moment], AnyEvent | None]) -> _Maker:
    # A maker only ever sees rows of the type under which it stands in the table.
    return cast(_Maker, maker)


MAKERS: Final[dict[type, _Maker]] = {
    FragmentRow: _maker(_fragment),
    TierBudget: _maker(_budget),
    Action: _maker(_action),
    Plan: _maker(_plan),
    Decision: _maker(_decision),
    Changeset: _maker(_changeset),
    EntryRow: _maker(_entry),
    ContextRow: _maker(_context),
    ReceiptRow: _maker(_receipt),
}
