"""The builder of events: it derives events from the changes of rows.

Events are derived and never written by a rule, so that there cannot be a change without its event, or an event without
a change. A change gives at most one event. Some give none, because another change of the same step says it already, or
because no watcher needs to know. `BUILDERS` has a function for each type of row that survives the manager; tasks and
workers have no events here, because their outcomes are pushed to the sessions that wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar, cast

from msgspec import Struct

from stepwell.domain.applies.model import ApplyTicket
from stepwell.domain.changesets.model import Changeset, ContextRow, EntryRow
from stepwell.domain.events import (
    ActionArchived,
    ActionCreated,
    ActionUsed,
    AnyEvent,
    ApplyPlaceChanged,
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
    LogAppended,
    LogCleared,
    LogDeleted,
    LogPopped,
    LogRetentionChanged,
    LogTrimmed,
    PlanCreated,
    PlanForgotten,
    PlanMoved,
    PlanRolledBack,
    PoolChanged,
    PoolDeleted,
    SubplansDeclared,
    SubplansMerged,
)
from stepwell.domain.logs.model import LogEntryRow, LogRow
from stepwell.domain.plans.model import Action, ActionState, Decision, Plan
from stepwell.domain.pools.model import TokenPool
from stepwell.domain.receipts.model import ReceiptRow
from stepwell.domain.replies import Row
from stepwell.domain.tiers.model import FragmentRow, Tier, TierBudget
from stepwell.domain.verdict import AnyChange, RowChanged

ProjectsOf = Callable[[str], tuple[str, ...]]
"""A function from a plan's id to its projects. It must know every plan that existed when the changes were made."""


class _Occasion(Struct, frozen=True, gc=False):
    """The revision and time of a step, and the function that finds the projects of plans."""

    revision: int
    at_ms: int
    projects_of: ProjectsOf


def events_of(changes: Iterable[AnyChange], revision: int, at_ms: int, projects_of: ProjectsOf) -> list[AnyEvent]:
    """Return the events of a step, in the order of its changes. Not every change has one."""
    occasion = _Occasion(revision, at_ms, projects_of)
    events: list[AnyEvent] = []
    for change in changes:
        after = change.after
        event = BUILDERS[type(change.before if after is None else after)](change, occasion)
        if event is not None:
            events.append(event)
    return events


def _fragment(change: RowChanged[FragmentRow], occasion: _Occasion) -> AnyEvent | None:
    """Return the event of a fragment: deleted, moved between tiers, or stored."""
    before, after = change.before, change.after
    if after is None:
        assert before is not None
        return FragmentDeleted(
            occasion.revision,
            occasion.at_ms,
            before.project,
            before.fragment_id,
            before.tier,
            before.tokens,
            before.digest,
        )
    if before is not None and _is_moved(before, after):
        kind = FragmentPromoted if _RANKS[after.tier] > _RANKS[before.tier] else FragmentDemoted
        return kind(
            occasion.revision, occasion.at_ms, after.project, after.fragment_id, before.tier, after.tier, after.tokens
        )
    return FragmentStored(
        occasion.revision,
        occasion.at_ms,
        after.project,
        after.fragment_id,
        after.tier,
        before.tier if before else None,
        after.tokens,
        after.size,
        after.digest,
        after.kind,
        after.writer,
    )


_RANKS: Final = {Tier.COLD: 0, Tier.WARM: 1, Tier.HOT: 2}
"""The order of the tiers, which tells a promotion from a demotion."""


def _is_moved(before: FragmentRow, after: FragmentRow) -> bool:
    """Return True if only the tier of a fragment changed.

    The revision alone does not tell, because two stores in one transaction have the same revision.
    """
    return (
        before.tier is not after.tier
        and before.revision == after.revision
        and (before.digest, before.tokens, before.source, before.kind, before.detail_depth, before.metadata)
        == (after.digest, after.tokens, after.source, after.kind, after.detail_depth, after.metadata)
        and (before.keep, before.expires_at_ms) == (after.keep, after.expires_at_ms)
    )


def _budget(change: RowChanged[TierBudget], occasion: _Occasion) -> AnyEvent | None:
    """Return the event of a budget, unless it was set to what it was."""
    after = change.after
    return BudgetChanged(occasion.revision, occasion.at_ms, after) if after and after != change.before else None


def _action(change: RowChanged[Action], occasion: _Occasion) -> AnyEvent | None:
    """Return the event of an action: created, used or archived."""
    before, after = change.before, change.after
    assert after is not None, "actions are archived, never deleted"
    if before is None:
        return ActionCreated(occasion.revision, occasion.at_ms, after.name, after.reusable)
    if after.uses != before.uses:
        return ActionUsed(occasion.revision, occasion.at_ms, after.name, after.uses)
    if after.state is ActionState.ARCHIVED and before.state is not ActionState.ARCHIVED:
        return ActionArchived(occasion.revision, occasion.at_ms, after.name)
    return None


def _plan(change: RowChanged[Plan], occasion: _Occasion) -> AnyEvent | None:
    """Return the event of a plan. The cases exclude each other, because a command does one of them to a plan.

    A move between phases and states always increases the version of a plan.
    """
    before, after = change.before, change.after
    if after is None:
        assert before is not None
        return PlanForgotten(occasion.revision, occasion.at_ms, before.plan_id, before.projects)
    if before is None:
        return PlanCreated(
            occasion.revision,
            occasion.at_ms,
            after.plan_id,
            after.projects,
            after.action_name,
            after.parent_plan_id,
            after.root_plan_id,
            after.phase,
            after.state,
            after.labels,
        )
    if after.rolled_back is not None and before.rolled_back is None:
        paths = after.rolled_back.paths
        return PlanRolledBack(
            occasion.revision, occasion.at_ms, after.plan_id, after.projects, after.action_name, after.version, paths
        )
    if after.version != before.version:
        return _plan_moved(before, after, occasion)
    if after.lease is not None and after.lease != before.lease:
        lease = after.lease
        return LeaseRenewed(
            occasion.revision, occasion.at_ms, after.plan_id, after.projects, lease.session_id, lease.expires_at_ms
        )
    if after.subplans is not None and before.subplans is None:
        mode, children = after.subplans.mode, len(after.subplans.children)
        return SubplansDeclared(occasion.revision, occasion.at_ms, after.plan_id, after.projects, mode, children)
    return _merge(before, after, occasion)


def _merge(before: Plan, after: Plan, occasion: _Occasion) -> AnyEvent | None:
    """Return the event of a merge or of a resolved conflict; None if neither happened."""
    facts = (occasion.revision, occasion.at_ms, after.plan_id, after.projects)
    if after.merged is not None and before.merged is None:
        merged = after.merged
        return SubplansMerged(*facts, len(merged.children), merged.changeset_id, len(after.open_conflicts))
    for was, now in zip(before.conflicts, after.conflicts, strict=True):
        if was.is_open and now.resolution is not None:
            return ConflictResolved(*facts, now.path, now.alias, now.resolution, len(after.open_conflicts))
    return None  # the plan's list of decisions or changesets changed: these rows have events of their own


def _plan_moved(before: Plan, after: Plan, occasion: _Occasion) -> PlanMoved:
    """Return the event of a move. It names both positions, so that a watcher needs no memory of the plan."""
    return PlanMoved(
        occasion.revision,
        occasion.at_ms,
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


def _decision(change: RowChanged[Decision], occasion: _Occasion) -> AnyEvent | None:
    """Return the event of a decision: recorded or superseded."""
    before, after = change.before, change.after
    if after is None:  # deleted with its plan, whose event says so
        return None
    projects = occasion.projects_of(after.plan_id)
    if before is None:
        return DecisionRecorded(
            occasion.revision,
            occasion.at_ms,
            after.plan_id,
            projects,
            after.decision_id,
            after.parent_id,
            after.phase,
            after.attempt,
            after.checkpoint,
        )
    if after.superseded_at_ms is not None and before.superseded_at_ms is None:
        return DecisionSuperseded(occasion.revision, occasion.at_ms, after.plan_id, projects, after.decision_id)
    return None


def _changeset(change: RowChanged[Changeset], occasion: _Occasion) -> AnyEvent | None:
    """Return the event of a changeset: started or ended. A new entry, which it counts, has its own."""
    before, after = change.before, change.after
    if after is None or (before is not None and before.state is after.state):
        return None
    facts = (occasion.revision, occasion.at_ms, after.plan_id, occasion.projects_of(after.plan_id), after.changeset_id)
    if before is None:
        return ChangesetStarted(*facts, after.context_id, after.attempt)
    return ChangesetEnded(*facts, after.state, after.entry_count)


def _entry(change: RowChanged[EntryRow], occasion: _Occasion) -> AnyEvent | None:
    """Return the event of an entry that was recorded. Entries are deleted only with their plan."""
    after = change.after
    if after is None:
        return None
    return ChangeRecorded(
        occasion.revision,
        occasion.at_ms,
        after.plan_id,
        occasion.projects_of(after.plan_id),
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


def _context(_change: RowChanged[ContextRow], _moment: _Occasion) -> AnyEvent | None:
    """Return None: the start and end of changesets say the same."""
    return None


def _receipt(_change: RowChanged[ReceiptRow], _moment: _Occasion) -> AnyEvent | None:
    """Return None: a receipt only documents a question.

    Many of them are stored, and the log of events is bounded: they would push out the events of real changes.
    """
    return None


def _pool(change: RowChanged[TokenPool], occasion: _Occasion) -> AnyEvent | None:
    """Return the event of a token pool: deleted or changed."""
    before, after = change.before, change.after
    if after is None:
        assert before is not None
        return PoolDeleted(occasion.revision, occasion.at_ms, before.name)
    counts = (after.tokens, after.spent, after.leased, len(after.leases))
    return PoolChanged(occasion.revision, occasion.at_ms, after.name, *counts, after.is_low)


def _log(change: RowChanged[LogRow], occasion: _Occasion) -> AnyEvent | None:
    """Return the event of a log. The cases exclude each other, because a command does one of them to a log."""
    before, after = change.before, change.after
    row = after or before
    assert row is not None
    facts = (occasion.revision, occasion.at_ms, row.project, row.name)
    if after is None:
        return LogDeleted(*facts)
    next_position = 1 if before is None else before.next_position
    if after.next_position > next_position:
        return LogAppended(*facts, next_position, after.next_position - 1, after.first_position)
    if before is None or (before.keep_entries, before.keep_ms) != (after.keep_entries, after.keep_ms):
        return LogRetentionChanged(*facts, after.keep_entries, after.keep_ms, after.first_position)
    if after.head == before.head:
        return LogTrimmed(*facts, after.first_position)
    if after.first_position == after.next_position and after.last_position == after.next_position - 1:
        return LogCleared(*facts, after.first_position)
    return LogPopped(*facts, before.last_position)


def _log_entry(_change: RowChanged[LogEntryRow], _moment: _Occasion) -> AnyEvent | None:
    """Return None: the event of the log says it. Rows of dead entries are deleted later, which concerns no watcher."""
    return None


def _ticket(change: RowChanged[ApplyTicket], occasion: _Occasion) -> AnyEvent | None:
    """Return the event of a place: a new one, another one, or the end of the ticket."""
    before, after = change.before, change.after
    ticket = after or before
    assert ticket is not None
    if before is not None and after is not None and before.place == after.place:
        return None
    return ApplyPlaceChanged(
        occasion.revision,
        occasion.at_ms,
        ticket.plan_id,
        occasion.projects_of(ticket.plan_id),
        ticket.ticket_id,
        ticket.tree,
        ticket.priority,
        after.place if after else None,
    )


RowT = TypeVar("RowT", bound=Row)
_Builder = Callable[[RowChanged[Row], _Occasion], AnyEvent | None]


def _builder(builder: Callable[[RowChanged[RowT], _Occasion], AnyEvent | None]) -> _Builder:
    # A builder only ever sees rows of the type under which it stands in `BUILDERS`; the type checker cannot know that.
    return cast(_Builder, builder)


# A new type of row that survives the manager needs an entry here; a test compares the keys with `replies.KeptRow`.
BUILDERS: Final[dict[type, _Builder]] = {
    FragmentRow: _builder(_fragment),
    TierBudget: _builder(_budget),
    Action: _builder(_action),
    Plan: _builder(_plan),
    Decision: _builder(_decision),
    Changeset: _builder(_changeset),
    EntryRow: _builder(_entry),
    ContextRow: _builder(_context),
    ReceiptRow: _builder(_receipt),
    TokenPool: _builder(_pool),
    LogRow: _builder(_log),
    LogEntryRow: _builder(_log_entry),
    ApplyTicket: _builder(_ticket),
}
