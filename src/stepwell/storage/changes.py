"""The changes of a turn as statements on the tables, in the form in which the redo log has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

import msgspec
from msgspec.structs import replace

from stepwell.domain.applies.model import ApplyTicket
from stepwell.domain.changesets.model import Changeset, ContextRow, EntryRow
from stepwell.domain.events import AnyEvent
from stepwell.domain.logs.model import LogEntryRow, LogRow
from stepwell.domain.plans.model import Action, Decision, Plan
from stepwell.domain.pools.model import TokenPool
from stepwell.domain.receipts.model import ReceiptRow
from stepwell.domain.replies import Row
from stepwell.domain.tiers.model import TierBudget
from stepwell.storage import rows
from stepwell.storage.redo_log import Change
from stepwell.storage.store import CommitBatch, SessionRow
from stepwell.storage.table import Values

_TABLES: Final[dict[type, object]] = {
    Action: rows.ACTIONS,
    Plan: rows.PLANS,
    Decision: rows.DECISIONS,
    ContextRow: rows.CONTEXTS,
    Changeset: rows.CHANGESETS,
    EntryRow: rows.ENTRIES,
    ReceiptRow: rows.RECEIPTS,
    TokenPool: rows.POOLS,
    LogRow: rows.LOGS,
    LogEntryRow: rows.LOG_ENTRIES,
    ApplyTicket: rows.TICKETS,
}
_json = msgspec.json.Encoder(order="deterministic")


def changes_of(batch: CommitBatch, sessions: dict[str, SessionRow]) -> list[Change]:
    """Return the changes of a batch but those of bodies, and bring `sessions`, the stored sessions by id, up to date.

    Access times come first, because a touched fragment may also have moved, and is then replaced behind them. Deleted
    fragments go before new ones.
    """
    changes: list[Change] = []
    if batch.touched:
        changes.append(("fragments.put", [rows.fragment_values(each) for each in batch.touched]))
    if batch.removed:
        changes.append(("fragments.delete", [(serial,) for serial in batch.removed]))
    if batch.fragments:
        fragments = [rows.fragment_values(entry) for entry in batch.fragments.values() if entry]
        changes.append(("fragments.put", fragments))
    for kind, changed in batch.rows.items():
        changes += _changed_rows(kind, changed)
    if batch.events:
        changes.append(("events.put", _event_values(batch.events)))
    return changes + _changed_sessions(batch, sessions)


def _changed_rows(kind: type, changed: dict[object, Row | None]) -> Iterator[Change]:
    """Yield the changes of the rows of one type.

    The lease of a plan has a table of its own, so that it can be queried. It is deleted and inserted again whenever its
    plan changes.
    """
    if kind is TierBudget:
        budget = cast(TierBudget, changed["budget"])
        yield "budget.put", rows.budget_values(budget)
        return
    table = cast("rows.RowTable[msgspec.Struct]", _TABLES[kind])
    gone = [_key(key) for key, row in changed.items() if row is None]
    present = [cast(msgspec.Struct, row) for row in changed.values() if row is not None]
    if gone:
        yield f"{table.name}.delete", gone
    yield f"{table.name}.put", [table.values(row) for row in present]
    if kind is Plan:
        yield "leases.delete", [(cast(str, key),) for key in changed]
        leased = [(plan.plan_id, plan.lease) for plan in cast("list[Plan]", present)]
        yield "leases.put", [(plan_id, *msgspec.structs.astuple(lease)) for plan_id, lease in leased if lease]


def _changed_sessions(batch: CommitBatch, sessions: dict[str, SessionRow]) -> list[Change]:
    """Return the changes of sessions, replies and parts of replies. Replies that have arrived are deleted.

    A new session deletes the replies of an earlier one with the same id, so that it cannot get another session's
    reply.
    """
    changes: list[Change] = []
    present = dict[str, SessionRow]()
    for session_id, session in batch.sessions.items():
        sessions.pop(session_id, None)
        if session is not None:
            present[session_id] = session
    if batch.sessions:
        keys: list[Values] = [(session_id,) for session_id in batch.sessions]
        changes += (("replies.end", keys), ("reply_parts.end", keys), ("sessions.delete", keys))
    if batch.replies:
        changes.append(("replies.put", batch.replies))
    if batch.reply_parts:
        changes.append(("reply_parts.put", batch.reply_parts))
    if batch.completed:
        changes.append(("reply_parts.complete", batch.completed))
    if batch.answered:
        cuts = [*batch.answered.items()]
        changes += (("replies.cut", cuts), ("reply_parts.cut", cuts))
        for session_id, answered in cuts:
            if (found := present.get(session_id) or sessions.get(session_id)) is not None:
                present[session_id] = replace(found, answered=answered)
    if present:
        sessions |= present
        changes.append(("sessions.put", [rows.SESSIONS.values(each) for each in present.values()]))
    return changes


def _event_values(events: list[AnyEvent]) -> list[Values]:
    """Return the rows of events, numbered within their revision."""
    values: list[Values] = []
    revision = ordinal = 0
    for event in events:
        ordinal = ordinal + 1 if event.revision == revision else 0
        revision = event.revision
        kind = type(event).__name__
        values.append((revision, ordinal, event.at_ms, kind, _json.encode(event).decode()))
    return values


def _key(key: object) -> Values:
    """Return the key of a row as a tuple of columns."""
    return cast("Values", key if isinstance(key, tuple) else (key,))
