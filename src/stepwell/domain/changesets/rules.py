"""The rules of changesets: start, record, end, read; and the functions by which plans use changesets.

Every write needs the lease of an executing plan that is not read-only. The target of a change is found in the same step
that records it: a client that names no changeset gets the one that its context opened last, and no other request can
close it in between.
"""

from __future__ import annotations

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.changesets.commands import (
    EndChangeset,
    GetChangeset,
    ListChangesets,
    ListEntries,
    RecordChange,
    StartChangeset,
)
from stepwell.domain.changesets.model import (
    Changeset,
    ChangesetOwner,
    ChangesetState,
    Content,
    ContextRow,
    EntryRow,
    check_path,
    derive_operation,
)
from stepwell.domain.changesets.net_changes import NetChange, in_recording_order, net_changes
from stepwell.domain.changesets.paths import check_mode
from stepwell.domain.leases import find_plan, require_executing
from stepwell.domain.paging import build_page, cursor_number
from stepwell.domain.replies import ChangesetFound, ChangesetPage, EntryFound, EntryPage
from stepwell.domain.state import State
from stepwell.domain.verdict import AnyChange, Origin, RowChanged, Verdict, decides
from stepwell.errors import (
    AlreadyExists,
    Busy,
    ChangesetClosed,
    InvalidArgument,
    NoActiveChangeset,
    NotFound,
    PlanNotReady,
)
from stepwell.text import plural


@decides(StartChangeset)
def start_changeset(state: State, command: StartChangeset, origin: Origin) -> Verdict:
    """Open a changeset and push it on the stack of its context.

    The number of changesets of a plan and of open ones in a context is bounded; past either bound the command is
    `Busy`.
    """
    plan = require_executing(state, command.plan_id, command.lease, origin)
    changeset = new_changeset(state, plan, command.changeset_id, command.context_id, origin)
    context = _context(state, command.context_id, plan)
    active = context.active if context else ()
    if len(active) >= limits.ACTIVE_PER_CONTEXT_MAX:
        raise Busy(f"this context has {plural(len(active), 'open changeset')} already: close some")
    grown = replace(plan, changeset_ids=(*plan.changeset_ids, command.changeset_id))
    pushed = ContextRow(command.context_id, plan.plan_id, (*active, command.changeset_id))
    changes = (RowChanged(None, changeset), RowChanged(plan, grown), RowChanged(context, pushed))
    return Verdict(ChangesetFound(changeset), changes)


@decides(RecordChange)
def record_change(state: State, command: RecordChange, origin: Origin) -> Verdict:
    """Record a change into the named changeset, or into the context's latest open one.

    The order of the checks is: right to write, target, paths, contents, room. A refusal at any of them changes nothing.
    Bodies that came inside the frame are handed to the caller of the decider, which stores them with the commit.
    """
    plan = require_executing(state, command.plan_id, command.lease, origin)
    changeset = _target_changeset(state, command, plan)
    check_path(command.path)
    if command.source_path is not None:
        check_path(command.source_path)
    before = _given_content(command.before, command.before_digest, command.before_mode, "before", origin)
    after = _given_content(command.after, command.after_digest, command.after_mode, "after", origin)
    entry = new_entry(
        state,
        changeset,
        origin,
        path=command.path,
        source_path=command.source_path,
        before=before,
        after=after,
        tool=command.tool,
    )
    counted = replace(changeset, entry_count=entry.seq)
    bodies = {
        side.digest: body
        for side, body in ((before, command.before), (after, command.after))
        if side is not None and isinstance(body, bytes)
    }
    changes = (RowChanged(None, entry), RowChanged(changeset, counted))
    return Verdict(EntryFound(entry), changes, bodies=bodies)


@decides(EndChangeset)
def end_changeset(state: State, command: EndChangeset, origin: Origin) -> Verdict:
    """Close or abort a changeset and remove it from its context's stack, wherever it is there."""
    plan = require_executing(state, command.plan_id, command.lease, origin)
    changeset = _open_changeset(state, command.changeset_id, plan, command.context_id)
    how = ChangesetState.ABORTED if command.abort else ChangesetState.CLOSED
    done = replace(changeset, state=how, ended_at_ms=origin.now_ms)
    return Verdict(ChangesetFound(done), (RowChanged(changeset, done), _remove_from_context(state, changeset)))


@decides(GetChangeset)
def get_changeset(state: State, command: GetChangeset, origin: Origin) -> Verdict:
    """Return one changeset."""
    return Verdict(ChangesetFound(_find_changeset(state, command.changeset_id, origin)))


@decides(ListChangesets)
def list_changesets(state: State, command: ListChangesets, origin: Origin) -> Verdict:
    """Return a page of a plan's changesets in the order of starting."""
    plan = find_plan(state, command.plan_id, origin)
    start = cursor_number(command.cursor)
    numbered = list(enumerate(plan.changeset_ids, 1))[start:]
    page, cursor = build_page(numbered, command.limit, lambda pair: str(pair[0]))
    return Verdict(ChangesetPage(tuple(state.changesets.rows[each] for _, each in page), cursor))


@decides(ListEntries)
def list_entries(state: State, command: ListEntries, origin: Origin) -> Verdict:
    """Return a page of a changeset's entries in the order of recording."""
    changeset = _find_changeset(state, command.changeset_id, origin)
    start = cursor_number(command.cursor)
    entries = state.entries.of(changeset.changeset_id)[start : start + command.limit + 1]
    # An entry has at most two paths of 4,096 characters, so its weight is a constant upper bound.
    page, cursor = build_page(entries, command.limit, lambda entry: str(entry.seq), size_of=lambda _: 8 * limits.KIB)
    return Verdict(EntryPage(page, cursor, command.with_bodies))


def end_open_changesets(state: State, plan: ChangesetOwner, how: ChangesetState, now_ms: int) -> list[AnyChange]:
    """Return the changes that close or abort every open changeset of a plan and delete its contexts.

    A context belongs to one plan alone, so no open changeset of another plan is lost with it.
    """
    still_open = _open_changesets(state, plan)
    owners = dict.fromkeys(changeset.context_id for changeset in still_open)
    return [
        *(RowChanged(each, replace(each, state=how, ended_at_ms=now_ms)) for each in still_open),
        *(RowChanged(state.contexts.rows[context_id], None) for context_id in owners),
    ]


def require_no_open_changeset(state: State, plan: ChangesetOwner) -> None:
    """Raise `PlanNotReady` if the plan has an open changeset: its entries would neither count nor be discarded."""
    if still_open := _open_changesets(state, plan):
        raise PlanNotReady(
            f"plan {plan.plan_id!r} has {plural(len(still_open), 'open changeset')}, the first is "
            f"{still_open[0].changeset_id!r}: close or abort it",
            changeset_id=still_open[0].changeset_id,
        )


def closed_changesets(state: State, plan: ChangesetOwner, attempt: int | None) -> list[Changeset]:
    """Return the changesets of an attempt that count: closed and not empty, in the order of starting."""
    changesets = (state.changesets.rows[changeset_id] for changeset_id in plan.changeset_ids)
    return [
        each
        for each in changesets
        if each.state is ChangesetState.CLOSED and each.attempt == attempt and each.entry_count
    ]


def net_changes_of(
    state: State, plan: ChangesetOwner, attempt: int | None, *, only: str | None = None
) -> dict[str, NetChange]:
    """Return the net changes of the changesets of an attempt, for every path or for `only` one."""
    counted = [state.entries.of(each.changeset_id) for each in closed_changesets(state, plan, attempt)]
    return net_changes(in_recording_order(counted), only=only)


def new_changeset(state: State, plan: ChangesetOwner, changeset_id: str, context_id: str, origin: Origin) -> Changeset:
    """Return an open changeset of the plan's present attempt. Raise if the id exists, or the plan has too many."""
    if state.changesets.get(changeset_id):
        raise AlreadyExists(f"changeset {changeset_id!r} exists already")
    if len(plan.changeset_ids) >= limits.CHANGESETS_PER_PLAN_MAX:
        raise Busy(f"plan {plan.plan_id!r} has {limits.CHANGESETS_PER_PLAN_MAX} changesets already")
    return Changeset(
        changeset_id=changeset_id,
        plan_id=plan.plan_id,
        context_id=context_id,
        attempt=plan.attempt,
        state=ChangesetState.OPEN,
        entry_count=0,
        started_at_ms=origin.now_ms,
    )


def new_entry(
    state: State,
    changeset: Changeset,
    origin: Origin,
    *,
    path: str,
    source_path: str | None,
    before: Content | None,
    after: Content | None,
    tool: str,
) -> EntryRow:
    """Return the next entry of a changeset. Raise if the plan has too many entries or there is no room for the bodies.

    `ordinal` is taken from the number of entries that the plan has. Entries of one plan are only deleted together with
    the plan, from the newest on, so the number never repeats while the plan can record.
    """
    recorded = state.entries.by_plan.get(changeset.plan_id, 0)
    if recorded >= limits.ENTRIES_PER_PLAN_MAX:
        raise Busy(f"plan {changeset.plan_id!r} has {limits.ENTRIES_PER_PLAN_MAX} entries already")
    entry = EntryRow(
        plan_id=changeset.plan_id,
        changeset_id=changeset.changeset_id,
        seq=changeset.entry_count + 1,
        operation=derive_operation(before, after, path, source_path),
        path=path,
        source_path=source_path,
        before=before,
        after=after,
        tool=tool,
        recorded_at_ms=origin.now_ms,
        ordinal=recorded + 1,
    )
    state.bodies.require_room(entry.held, state.budget.bodies_bytes)
    return entry


def _open_changesets(state: State, plan: ChangesetOwner) -> list[Changeset]:
    """Return the plan's open changesets in the order of starting."""
    changesets = (state.changesets.rows[changeset_id] for changeset_id in plan.changeset_ids)
    return [each for each in changesets if each.state is ChangesetState.OPEN]


def _remove_from_context(state: State, changeset: Changeset) -> AnyChange:
    """Return the change that removes a changeset from its context's stack. The context is deleted with its last
    changeset.
    """
    context = state.contexts.rows[changeset.context_id]
    active = tuple(each for each in context.active if each != changeset.changeset_id)
    return RowChanged(context, replace(context, active=active) if active else None)


def _context(state: State, context_id: str, plan: ChangesetOwner) -> ContextRow | None:
    """Return the context, or None if it has no open changeset. Raise if it belongs to another plan."""
    context = state.contexts.get(context_id)
    if context is not None and context.plan_id != plan.plan_id:
        raise InvalidArgument(f"context {context_id!r} belongs to another plan")
    return context


def _target_changeset(state: State, command: RecordChange, plan: ChangesetOwner) -> Changeset:
    """Return the open changeset that the change goes to. Raise `NoActiveChangeset` if none is named and none is open.

    A named changeset has to belong to the caller's context. A caller therefore cannot write into another's changeset by
    mistake, even though both hold the same lease.
    """
    if command.changeset_id is not None:
        return _open_changeset(state, command.changeset_id, plan, command.context_id)
    context = _context(state, command.context_id, plan)
    if context is None:
        raise NoActiveChangeset("this context has no active changeset: call start_changeset() first")
    return _open_changeset(state, context.active[-1], plan, command.context_id)


def _open_changeset(state: State, changeset_id: str, plan: ChangesetOwner, context_id: str) -> Changeset:
    """Return the changeset if it is open and belongs to this plan and context; raise otherwise."""
    changeset = state.changesets.get(changeset_id)
    if changeset is None or (changeset.plan_id, changeset.context_id) != (plan.plan_id, context_id):
        raise NotFound(
            f"this context of plan {plan.plan_id!r} has no changeset {changeset_id!r}", changeset_id=changeset_id
        )
    if changeset.state is not ChangesetState.OPEN:
        raise ChangesetClosed(f"changeset {changeset_id!r} is {changeset.state}: start another one")
    return changeset


def _find_changeset(state: State, changeset_id: str, origin: Origin) -> Changeset:
    """Return the changeset if the session may see its plan's projects. Raise `NotFound` otherwise."""
    changeset = state.changesets.get(changeset_id)
    if changeset is None or not origin.sees(state.plans.rows[changeset.plan_id].projects):
        raise NotFound(f"there is no changeset {changeset_id!r} in this session's projects", changeset_id=changeset_id)
    return changeset


def _given_content(
    body: bytes | int | None, digest: bytes | None, mode: int | None, what: str, origin: Origin
) -> Content | None:
    """Return one side of a change: bytes that the manager stores, inline or uploaded, or their digest alone."""
    if body is not None and digest is not None:
        raise InvalidArgument(f"{what} is given both as bytes and as a digest: give one")
    content = held_content(body, mode, origin) if body is not None else None
    if digest is not None:
        content = Content(digest, None, held=False, mode=mode)
    check_mode(mode, content.digest if content else None, what)
    return content


def held_content(body: bytes | int, mode: int | None, origin: Origin) -> Content:
    """Return the content of bytes that the manager stores, inline or uploaded."""
    return Content(*origin.resolve_body(body), held=True, mode=mode)
