"""The rules of the tiers: one decider for each command on fragments and budgets.

A fragment enters hot unless the caller says otherwise. Reads promote it, and idleness or lack of room demotes it. To
insert or move a fragment and to enforce the budgets is one step, so that no budget is ever exceeded between two
commands. Lack of room never deletes a fragment: only a client's request and the retention of cold do.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from itertools import chain, islice
from typing import Final

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.bounded_types import known_label
from stepwell.domain.checks import check, check_metadata
from stepwell.domain.paging import build_page, cursor_number
from stepwell.domain.patterns import glob_matcher
from stepwell.domain.replies import (
    BodiesLocated,
    BudgetSet,
    FragmentChecked,
    FragmentFound,
    FragmentPage,
    FragmentPlaced,
    FragmentRemoved,
    FragmentsMoved,
    Move,
    Note,
    ProjectPage,
    TierMetrics,
    TierUsage,
)
from stepwell.domain.state import State
from stepwell.domain.tiers.budget import FragmentChanged, Moves, enforce, place, relieve
from stepwell.domain.tiers.commands import (
    CheckFragment,
    DeleteFragment,
    DemoteFragment,
    EvictLru,
    ExpireFragments,
    GetFragment,
    GetMetrics,
    ListFragments,
    ListProjects,
    LocateBodies,
    PeekFragment,
    PromoteFragment,
    RelieveArena,
    RequireFragment,
    SetBudget,
    StoreFragment,
    StoreOptions,
    SweepIdle,
    SweepStale,
)
from stepwell.domain.tiers.model import (
    ABOVE,
    BELOW,
    COLD,
    HOT,
    NO_METADATA,
    WARM,
    FragmentRow,
    Names,
    Tier,
    TierBudget,
    above,
    below,
)
from stepwell.domain.tiers.source_outline import stands_for_file
from stepwell.domain.tiers.table import Key
from stepwell.domain.tiers.tier_index import FragmentEntry, Usage
from stepwell.domain.verdict import Origin, RowChanged, Verdict, decides
from stepwell.errors import Busy, Conflict, NotFound, OutOfScope, StepTooLarge, TierFull

_NO_OPTIONS: Final = StoreOptions()


@decides(StoreFragment)
def store(state: State, command: StoreFragment, origin: Origin) -> Verdict:
    """Insert or replace a fragment, and demote what has to make room for it, in one step."""
    key = (command.project, command.fragment_id)
    entry = state.fragments.find(*key)
    current = entry.row if entry else None
    kind = known_label(command.kind)
    if current is None or kind is None:  # the names of a fragment that exists are valid
        check(Names(command.project, command.fragment_id, command.kind))
    origin.require((command.project,))
    if command.metadata:
        check_metadata(command.metadata)
    expired = current if entry and entry.is_expired(origin.now_ms) else None
    _require_revision(key, None if expired else current, command.expected_revision)
    digest, size = origin.resolve_body(command.body)
    options = command.options or _NO_OPTIONS
    if options.unique and (equal := _find_equal(state, key, digest, origin)):
        return Verdict(_placed_reply(equal, Note.EQUAL_BODY))
    budget = state.budget
    # The sum is checked first, because `require_room` also has to find out if the body is new.
    if state.bodies.bytes + size > budget.bodies_bytes:
        state.bodies.require_room(((digest, size),), budget.bodies_bytes)
    tier, note = _fitting_tier(budget, command.tier, command.tokens, size, keep=options.keep)
    # Names that rows share are one object each. A replaced fragment keeps its time of creation and its serial; one that
    # has expired does not, because it is absent.
    revision = state.revision + 1
    replaced = None if expired else current
    row = FragmentRow(
        project=state.fragments.interned_project(command.project) or command.project,
        fragment_id=current.fragment_id if current else command.fragment_id,
        source=command.source,
        kind=kind or command.kind,
        detail_depth=command.detail_depth,
        tokens=command.tokens,
        size=size,
        digest=digest,
        tier=tier,
        placed_at_ms=origin.now_ms,
        created_at_ms=replaced.created_at_ms if replaced else origin.now_ms,
        revision=revision,
        serial=replaced.serial if replaced else state.fragments.serial_at(revision),
        metadata=command.metadata or NO_METADATA,
        keep=options.keep,
        expires_at_ms=_expiry(options, origin.now_ms),
        expires_after_ms=options.expires_after_ms,
        writer=origin.writer_for(command.work),
    )
    inline = {digest: command.body} if isinstance(command.body, bytes) else {}
    changes = place(state, current, row, origin)
    if expired:
        changes = (*changes[:-1], RowChanged(expired, None), RowChanged(None, row))
    return Verdict(_placed_reply(row, note), changes, bodies=inline)


@decides(GetFragment)
def get(state: State, command: GetFragment, origin: Origin) -> Verdict:
    """Read a fragment and count the access. The command changes a row only if the access promotes the fragment."""
    entry = _find_named_entry(state, command.project, command.fragment_id, origin)
    changes = _promote_if_due(state, entry, origin)
    # The promoted fragment is protected, so that its change is the last one.
    row = (changes[-1].after if changes else None) or entry.row
    return Verdict(FragmentFound(row, origin.now_ms, entry.access_count + 1), changes, accessed=row.key)


def _promote_if_due(state: State, entry: FragmentEntry, origin: Origin) -> tuple[FragmentChanged, ...]:
    """Return the changes that promote a fragment which was read often enough, or none.

    A reader is never refused because the tier above has no room: the fragment stays in its tier then.
    """
    row = entry.row
    if row.tier is HOT or row.keep or entry.accesses_since_move + 1 < state.budget.promotion_threshold:
        return ()
    if _fitting_tier(state.budget, ABOVE[row.tier], row.tokens, row.size)[1] is not Note.PLACED:
        return ()
    try:
        return _move(state, row, ABOVE[row.tier], origin)
    except (TierFull, StepTooLarge):  # of the demotions that would make room
        return ()


@decides(PeekFragment)
def peek(state: State, command: PeekFragment, origin: Origin) -> Verdict:
    """Read a fragment, and change nothing."""
    entry = _find_named_entry(state, command.project, command.fragment_id, origin)
    return Verdict(FragmentFound(entry.row, entry.last_accessed_ms, entry.access_count))


@decides(CheckFragment)
def check_fragment(state: State, command: CheckFragment, origin: Origin) -> Verdict:
    """Return the revision of a fragment, or None, and change nothing. A malformed name is refused."""
    origin.require((command.project,))
    entry = state.fragments.find(command.project, command.fragment_id)
    if entry is None:
        check(Names(command.project, command.fragment_id))
    is_there = entry is not None and not entry.is_expired(origin.now_ms)
    return Verdict(FragmentChecked(entry.row.revision if entry and is_there else None))


@decides(RequireFragment)
def require_fragment(state: State, command: RequireFragment, origin: Origin) -> Verdict:
    """Refuse unless the fragment is at the revision, and change nothing."""
    origin.require((command.project,))
    entry = state.fragments.find(command.project, command.fragment_id)
    row = None if entry is None or entry.is_expired(origin.now_ms) else entry.row
    _require_revision((command.project, command.fragment_id), row, command.revision)
    return Verdict(FragmentChecked(row.revision if row else None))


@decides(PromoteFragment)
def promote(state: State, command: PromoteFragment, origin: Origin) -> Verdict:
    """Promote by one tier. A fragment that is too large for the tier above stays, and the reply says so."""
    row = _find_entry(state, command.project, command.fragment_id, origin).row
    if row.tier is HOT:
        return Verdict(_placed_reply(row, Note.ALREADY_THERE))
    tier, note = _fitting_tier(state.budget, above(row), row.tokens, row.size, keep=row.keep)
    if note is not Note.PLACED:
        return Verdict(_placed_reply(row, note))
    return Verdict(_placed_reply(replace(row, tier=tier), note), _move(state, row, tier, origin))


@decides(DemoteFragment)
def demote(state: State, command: DemoteFragment, origin: Origin) -> Verdict:
    """Demote by one tier, with the whole body and its token count. In cold already, the fragment stays."""
    row = _find_entry(state, command.project, command.fragment_id, origin).row
    if row.tier is COLD:
        return Verdict(_placed_reply(row, Note.ALREADY_THERE))
    target = below(row)
    return Verdict(_placed_reply(replace(row, tier=target), Note.PLACED), _move(state, row, target, origin))


@decides(DeleteFragment)
def delete(state: State, command: DeleteFragment, origin: Origin) -> Verdict:
    """Delete a fragment, if its revision is the expected one. With `missing_ok` it need not exist."""
    if command.missing_ok:
        origin.require((command.project,))
        found = state.fragments.find(command.project, command.fragment_id)
        if found is None or found.is_expired(origin.now_ms):
            _require_revision((command.project, command.fragment_id), None, command.expected_revision)
            return Verdict(FragmentRemoved(command.project, command.fragment_id, None))
    row = _find_entry(state, command.project, command.fragment_id, origin).row
    _require_revision(row.key, row, command.expected_revision)
    return Verdict(FragmentRemoved(row.project, row.fragment_id, row.tier), (RowChanged(row, None),))


@decides(EvictLru)
def evict_lru(state: State, command: EvictLru, origin: Origin) -> Verdict:
    """Demote the least recently used fragments of the session's projects; delete them if the tier is cold."""
    victims = islice(state.fragments.oldest(command.tier, origin.projects), command.count)
    target = BELOW.get(command.tier)
    moves: Moves = {entry.row.key: _demotion(entry.row, target, origin) for entry in victims}
    changes = enforce(state, state.budget, moves, origin, within=origin.projects)
    return Verdict(_moved_reply(changes, origin), changes)


@decides(SweepStale)
def sweep_stale(state: State, _command: SweepStale, origin: Origin) -> Verdict:
    """Sweep the session's projects, at a client's request."""
    return _sweep(state, origin)


@decides(SweepIdle)
def sweep_idle(state: State, _command: SweepIdle, origin: Origin) -> Verdict:
    """Sweep all projects; the manager sends this command without a scope."""
    return _sweep(state, origin)


def _sweep(state: State, origin: Origin) -> Verdict:
    """Demote fragments that were idle for too long.

    The sweep goes from cold upwards, so that fragments that leave a tier make room for those that enter it. It never
    enforces a budget: it stops where the tier below is full.
    """
    budget, table = state.budget, state.fragments
    # The entries that each tier can still take; None stands for deletion from cold, which only the step bounds.
    room: dict[Tier | None, int] = {
        None: limits.SWEEP_MOVES_MAX,
        COLD: budget.cold_entries - table.usage(COLD).entries,
        WARM: budget.warm_entries - table.usage(WARM).entries,
    }
    moves: Moves = {}
    for tier, ttl_ms in (
        (COLD, budget.cold_retention_ms),
        (WARM, budget.warm_ttl_ms),
        (HOT, budget.hot_ttl_ms),
    ):
        target = BELOW.get(tier)
        for entry in table.oldest(tier, origin.projects):
            idle = entry.touched_at_ms + ttl_ms <= origin.now_ms
            if not idle or room[target] <= 0 or len(moves) == limits.SWEEP_MOVES_MAX:
                break
            moves[entry.row.key] = _demotion(entry.row, target, origin)
            room[target] -= 1
            if tier in room:
                room[tier] += 1
    changes = tuple(moves.values())
    return Verdict(_moved_reply(changes, origin, more=len(moves) == limits.SWEEP_MOVES_MAX), changes)


@decides(ExpireFragments)
def expire_fragments(state: State, _command: ExpireFragments, origin: Origin) -> Verdict:
    """Delete fragments that have expired. Until then they are in the table, and absent for every other command."""
    keys = [*islice(state.fragments.expiry.due(origin.now_ms), limits.EXPIRED_PER_STEP_MAX)]
    rows = [entry.row for key in keys if (entry := state.fragments.find(*key))]
    changes = tuple(RowChanged(row, None) for row in rows)
    return Verdict(_moved_reply(changes, origin, more=len(rows) == limits.EXPIRED_PER_STEP_MAX), changes)


@decides(RelieveArena)
def relieve_arena(state: State, command: RelieveArena, origin: Origin) -> Verdict:
    """Free some of the arena, as far as cold has room. The manager is never refused and uses what it gets."""
    changes, more = relieve(state, command.bytes, origin)
    return Verdict(_moved_reply(changes, origin, more=more), changes)


@decides(ListFragments)
def list_fragments(state: State, command: ListFragments, origin: Origin) -> Verdict:
    """Return a page of fragments in order of creation. It examines a bounded number of rows.

    The rows of files are listed only if their kind is asked for.
    """
    origin.require((command.project,))
    matches = glob_matcher(command.globs)
    entries, cursor = build_page(
        state.fragments.created_after(command.project, cursor_number(command.cursor)),
        command.limit,
        lambda entry: str(entry.row.serial),
        accepts=lambda entry: (
            not entry.is_expired(origin.now_ms)
            and command.tier in {None, entry.row.tier}
            and (not stands_for_file(entry.row) if command.kind is None else command.kind == entry.row.kind)
            and matches(entry.row.source)
        ),
        size_of=lambda entry: (
            sum(map(len, chain(*entry.row.metadata.items()))) + 4 * len(entry.row.source) + limits.FRAGMENT_ROW_BYTES
        ),
    )
    return Verdict(FragmentPage(tuple(entry.row for entry in entries), cursor))


@decides(ListProjects)
def list_projects(state: State, command: ListProjects, origin: Origin) -> Verdict:
    """Return a page of the projects in the session's scope that have fragments."""
    projects, cursor = build_page(
        state.fragments.projects_after(command.cursor or "", origin.projects), command.limit, str
    )
    return Verdict(ProjectPage(projects, cursor))


@decides(GetMetrics)
def metrics(state: State, _command: GetMetrics, origin: Origin) -> Verdict:
    """Return the usage of the tiers by the session's projects.

    An unrestricted session sees the exact need of bodies. For a scoped one it is the sum of raw sizes, because counts
    of references are not kept by project.
    """
    hot, warm, cold = (_tier_usage(state, tier, origin.projects) for tier in Tier)
    in_arena, on_disk = (usage.bytes for usage in state.fragments.kept_usage(origin.projects).values())
    if origin.projects is None:
        held, arena = state.bodies.bytes, state.bodies.arena_bytes
    else:
        arena = hot.bytes + warm.bytes + in_arena
        held = arena + cold.bytes + on_disk
    kept = reduce(Usage.plus, state.fragments.kept_usage(origin.projects).values())
    return Verdict(
        TierMetrics(hot, warm, cold, state.budget, held, arena, TierUsage(kept.entries, kept.tokens, kept.bytes))
    )


def _tier_usage(state: State, tier: Tier, projects: Collection[str] | None) -> TierUsage:
    """Return the usage of a tier, with fragments and rows of files apart."""
    usage, files = state.fragments.usage(tier, projects), state.fragments.files(tier, projects)
    return TierUsage(usage.entries - files, usage.tokens, usage.bytes, files)


@decides(LocateBodies)
def locate_bodies(state: State, command: LocateBodies, _origin: Origin) -> Verdict:
    """Return those of the digests that a row still refers to. The response says where these bodies are."""
    return Verdict(BodiesLocated(tuple(digest for digest in command.digests if digest in state.bodies)))


@decides(SetBudget)
def set_budget(state: State, command: SetBudget, origin: Origin) -> Verdict:
    """Set the budget, and move and drop in the same step whatever exceeds it.

    Budgets are global, so that only an unrestricted session may set them. Raises `TierFull` if the bodies that have to
    stay are larger than the new `bodies_bytes`.
    """
    if origin.projects is not None:
        raise OutOfScope("budgets are global to the runtime: set them from a session connected without projects=")
    # Receipts go first: they are bounded by a part of `bodies_bytes`, and are worth less than fragments.
    leaving = state.receipts.surplus(limits.RECEIPTS_MAX, command.budget.receipts_bytes)
    staying_bytes = state.bodies.bytes - state.bodies.freed([body for row in leaving for body in row.held])
    if command.budget.bodies_bytes < staying_bytes:
        raise TierFull(f"{staying_bytes} bytes are held already: delete some before lowering bodies_bytes")
    changes = enforce(state, command.budget, {}, origin)
    receipts = (RowChanged(row, None) for row in leaving)
    return Verdict(BudgetSet(command.budget), (*receipts, *changes, RowChanged(state.budget, command.budget)))


def _move(state: State, row: FragmentRow, tier: Tier, origin: Origin) -> tuple[FragmentChanged, ...]:
    """Return the changes that move a fragment to a tier, with the demotions that make room for it there."""
    return place(state, row, replace(row, tier=tier, placed_at_ms=origin.now_ms), origin)


def _demotion(row: FragmentRow, target: Tier | None, origin: Origin) -> FragmentChanged:
    """Return the change that demotes a fragment to the tier below, or deletes it if there is none."""
    return RowChanged(row, replace(row, tier=target, placed_at_ms=origin.now_ms) if target else None)


def _find_equal(state: State, key: Key, digest: bytes, origin: Origin) -> FragmentRow | None:
    """Return another fragment of the project with a body, or None.

    Raises `Busy` while the bodies of a large project are being indexed for its first store of this kind.
    """
    if digest not in state.bodies:
        return None
    project, fragment_id = key
    index = state.fragments.fill_equal_bodies(project)
    if index is None:
        return None
    if not index.is_complete:
        raise Busy(f"the bodies of project {project!r} are being indexed for unique=True: send the request again")
    entries = map(state.fragments.by_id(project).__getitem__, index.of(digest))
    others = (
        each.row for each in entries if each.row.fragment_id != fragment_id and not each.is_expired(origin.now_ms)
    )
    return next(others, None)


def _expiry(options: StoreOptions, now_ms: int) -> int | None:
    """Return the time at which a fragment that is stored now expires, if no read moves it; None for never.

    It is never earlier than a read at this moment would make it.
    """
    if options.expires_after_ms is None:
        return options.expires_at_ms
    return max(options.expires_at_ms or 0, now_ms + options.expires_after_ms)


def _fitting_tier(budget: TierBudget, tier: Tier, tokens: int, size: int, *, keep: bool = False) -> tuple[Tier, Note]:
    """Return the tier in which a fragment fits, at or below `tier`, and the reason if it is another one.

    A fragment that is larger than all of hot goes to warm, one that is larger than the arena to cold. No tier is
    emptied in vain for it. A fragment with `keep` takes no tokens of hot, and is never warm.
    """
    if tier is not COLD and size > budget.live_bytes:
        return COLD, Note.LARGER_THAN_ARENA
    if keep:
        return (COLD if tier is COLD else HOT), Note.PLACED
    if tier is HOT and tokens > budget.hot_tokens:
        return WARM, Note.LARGER_THAN_HOT
    return tier, Note.PLACED


def _find_entry(state: State, project: str, fragment_id: str, origin: Origin) -> FragmentEntry:
    """Return a fragment's entry. Raises `OutOfScope` or `NotFound`."""
    origin.require((project,))
    entry = state.fragments.find(project, fragment_id)
    if entry is None or entry.is_expired(origin.now_ms):
        raise NotFound(f"project {project!r} has no fragment {fragment_id!r}", project=project, fragment_id=fragment_id)
    return entry


def _find_named_entry(state: State, project: str, fragment_id: str, origin: Origin) -> FragmentEntry:
    """Return the entry of a fragment whose name was not matched with its pattern yet.

    A name that exists is valid. For any other, a malformed name is a better answer than `NotFound`.
    """
    if state.fragments.find(project, fragment_id) is None:
        check(Names(project, fragment_id))
    return _find_entry(state, project, fragment_id, origin)


def _require_revision(key: Key, row: FragmentRow | None, expected: int | None) -> None:
    """Raise `Conflict` if the caller expects another revision; a fragment that does not exist has revision 0."""
    actual = row.revision if row else 0
    if expected is not None and expected != actual:
        raise Conflict(
            f"fragment {key[1]!r} is at revision {actual}, not {expected}: read it again and decide anew",
            expected=expected,
            actual=actual,
        )


def _placed_reply(row: FragmentRow, note: Note) -> FragmentPlaced:
    return FragmentPlaced(row.project, row.fragment_id, row.tier, row.tokens, row.revision, row.digest, note)


def _moved_reply(changes: tuple[FragmentChanged, ...], origin: Origin, *, more: bool = False) -> FragmentsMoved:
    """Return the moves of fragments that are in the session's scope."""
    moves = (
        Move(row.project, row.fragment_id, row.tier, change.after.tier if change.after else None)
        for change in changes
        if (row := change.before) and origin.sees((row.project,))
    )
    return FragmentsMoved(tuple(moves), more)
