"""The rules of the tiers. Each function decides one command; insert plus enforcement is one step."""

from __future__ import annotations

from itertools import chain, islice

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.bounded_types import known_label
from stepwell.domain.checks import check, check_metadata
from stepwell.domain.paging import cursor_number, take
from stepwell.domain.patterns import glob_matcher
from stepwell.domain.replies import (
    BodiesLocated,
    BudgetSet,
    FragmentFound,
    FragmentPage,
    FragmentPlaced,
    FragmentRemoved,
    FragmentsMoved,
    Move,
    Note,
    ProjectPage,
    TierMetrics,
)
from stepwell.domain.state import State
from stepwell.domain.tiers.budget import FragmentChanged, Moves, place, relieve, settle
from stepwell.domain.tiers.commands import (
    DeleteFragment,
    DemoteFragment,
    EvictLru,
    GetFragment,
    GetMetrics,
    ListFragments,
    ListProjects,
    LocateBodies,
    PromoteFragment,
    RelieveArena,
    SetBudget,
    StoreFragment,
    SweepIdle,
    SweepStale,
)
from stepwell.domain.tiers.model import ABOVE, BELOW, COLD, HOT, NO_METADATA, WARM, FragmentRow, Names, Tier, TierBudget
from stepwell.domain.tiers.table import FragmentEntry, Key
from stepwell.domain.verdict import Origin, RowChanged, Verdict, decides
from stepwell.errors import Conflict, NotFound, OutOfScope, StepTooLarge, TierFull


@decides(StoreFragment)
def store(state: State, command: StoreFragment, origin: Origin) -> Verdict:
    """Insert or replace, and keep every budget, in one step."""
    check(Names(command.project, command.fragment_id, command.kind))
    origin.require((command.project,))
    if command.metadata:
        check_metadata(command.metadata)
    key = (command.project, command.fragment_id)
    current = state.fragments.get(key)
    _expect(key, current, command.expected_revision)
    digest, size = origin.held(command.body)
    budget = state.budget
    if state.bodies.bytes + size > budget.bodies_bytes:
        state.bodies.require_room(((digest, size),), budget.bodies_bytes)
    tier, note = _fitting(budget, command.tier, command.tokens, size)
    row = FragmentRow(
        project=state.fragments.project_named(command.project) or command.project,
        fragment_id=current.fragment_id if current else command.fragment_id,
        source=command.source,
        kind=known_label(command.kind) or command.kind,
        detail_depth=command.detail_depth,
        tokens=command.tokens,
        size=size,
        digest=digest,
        tier=tier,
        placed_at_ms=origin.now_ms,
        created_at_ms=current.created_at_ms if current else origin.now_ms,
        revision=state.revision + 1,
        serial=current.serial if current else state.fragments.next_serial,
        metadata=command.metadata or NO_METADATA,
    )
    inline = {digest: command.body} if isinstance(command.body, bytes) else {}
    return Verdict(_placed(row, note), place(state, current, row, origin), bodies=inline)


@decides(GetFragment)
def get(state: State, command: GetFragment, origin: Origin) -> Verdict:
    """A read and an access. It is a write only when it is the access that lifts the fragment."""
    if (command.project, command.fragment_id) not in state.fragments.entries:
        check(Names(command.project, command.fragment_id))
    entry = _entry(state, command.project, command.fragment_id, origin)
    changes = _climb(state, entry, origin)
    # The climbing fragment is protected, so that it is the last to move.
    row = (changes[-1].after if changes else None) or entry.row
    return Verdict(FragmentFound(row, origin.now_ms, entry.access_count + 1), changes, accessed=row.key)


def _climb(state: State, entry: FragmentEntry, origin: Origin) -> tuple[FragmentChanged, ...]:
    """Lift a fragment that was read often enough. A reader is never refused for lack of room above."""
    row = entry.row
    if row.tier is HOT or entry.accesses_since_move + 1 < state.budget.promotion_threshold:
        return ()
    if _fitting(state.budget, ABOVE[row.tier], row.tokens, row.size)[1] is not Note.PLACED:
        return ()
    try:
        return _move(state, row, ABOVE[row.tier], origin)
    except (TierFull, StepTooLarge):
        return ()


@decides(PromoteFragment)
def promote(state: State, command: PromoteFragment, origin: Origin) -> Verdict:
    """Lift one tier; a fragment that the tier above could not hold stays, and the reply says so."""
    row = _entry(state, command.project, command.fragment_id, origin).row
    if row.tier is HOT:
        return Verdict(_placed(row, Note.ALREADY_THERE))
    tier, note = _fitting(state.budget, ABOVE[row.tier], row.tokens, row.size)
    if note is not Note.PLACED:
        return Verdict(_placed(row, note))
    return Verdict(_placed(replace(row, tier=tier), note), _move(state, row, tier, origin))


@decides(DemoteFragment)
def demote(state: State, command: DemoteFragment, origin: Origin) -> Verdict:
    """Lower one tier, with the whole body and its token count."""
    row = _entry(state, command.project, command.fragment_id, origin).row
    if row.tier is COLD:
        return Verdict(_placed(row, Note.ALREADY_THERE))
    below = BELOW[row.tier]
    return Verdict(_placed(replace(row, tier=below), Note.PLACED), _move(state, row, below, origin))


@decides(DeleteFragment)
def delete(state: State, command: DeleteFragment, origin: Origin) -> Verdict:
    """Remove for good: the only way, besides cold's retention, in which a body goes."""
    row = _entry(state, command.project, command.fragment_id, origin).row
    _expect(row.key, row, command.expected_revision)
    return Verdict(FragmentRemoved(row.project, row.fragment_id, row.tier), (RowChanged(row, None),))


@decides(EvictLru)
def evict_lru(state: State, command: EvictLru, origin: Origin) -> Verdict:
    """Lower the least recently used of the session's projects; from cold they are deleted."""
    victims = islice(state.fragments.oldest(command.tier, origin.projects), command.count)
    below = BELOW.get(command.tier)
    moves: Moves = {entry.row.key: _down(entry.row, below, origin) for entry in victims}
    changes = settle(state, state.budget, moves, origin, within=origin.projects)
    return Verdict(_moved(changes, origin), changes)


@decides(SweepStale)
def sweep_stale(state: State, _command: SweepStale, origin: Origin) -> Verdict:
    """By request: the session's projects only."""
    return _sweep(state, origin)


@decides(SweepIdle)
def sweep_idle(state: State, _command: SweepIdle, origin: Origin) -> Verdict:
    """By the manager itself."""
    return _sweep(state, origin)


def _sweep(state: State, origin: Origin) -> Verdict:
    """Lower what was idle for too long, from the bottom up, so that what leaves makes room for what comes."""
    budget, table = state.budget, state.fragments
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
        below = BELOW.get(tier)
        for entry in table.oldest(tier, origin.projects):
            idle = entry.touched_at_ms + ttl_ms <= origin.now_ms
            if not idle or room[below] <= 0 or len(moves) == limits.SWEEP_MOVES_MAX:
                break
            moves[entry.row.key] = _down(entry.row, below, origin)
            room[below] -= 1
            if tier in room:
                room[tier] += 1
    changes = tuple(moves.values())
    return Verdict(_moved(changes, origin, more=len(moves) == limits.SWEEP_MOVES_MAX), changes)


@decides(RelieveArena)
def relieve_arena(state: State, command: RelieveArena, origin: Origin) -> Verdict:
    """As far as cold has room: the manager is never refused, and makes do with what it gets."""
    changes, more = relieve(state, command.bytes, origin)
    return Verdict(_moved(changes, origin, more=more), changes)


@decides(ListFragments)
def list_fragments(state: State, command: ListFragments, origin: Origin) -> Verdict:
    """A page in order of creation. A page over globs examines a bounded number of rows."""
    origin.require((command.project,))
    matches = glob_matcher(command.globs)
    entries, cursor = take(
        state.fragments.created_after(command.project, cursor_number(command.cursor)),
        command.limit,
        lambda entry: str(entry.row.serial),
        keep=lambda entry: (
            command.tier in {None, entry.row.tier}
            and command.kind in {None, entry.row.kind}
            and matches(entry.row.source)
        ),
        weigh=lambda entry: sum(map(len, chain(*entry.row.metadata.items()))) + 4 * len(entry.row.source) + 4096,
    )
    return Verdict(FragmentPage(tuple(entry.row for entry in entries), cursor))


@decides(ListProjects)
def list_projects(state: State, command: ListProjects, origin: Origin) -> Verdict:
    """The projects that hold fragments, as far as the session may see."""
    projects, cursor = take(state.fragments.projects_after(command.cursor or "", origin.projects), command.limit, str)
    return Verdict(ProjectPage(projects, cursor))


@decides(GetMetrics)
def metrics(state: State, _command: GetMetrics, origin: Origin) -> Verdict:
    """Sums of the session's projects, from counters."""
    hot, warm, cold = (state.fragments.usage(tier, origin.projects) for tier in Tier)
    if origin.projects is None:
        held, arena = state.bodies.bytes, state.bodies.arena_bytes
    else:
        held, arena = hot.bytes + warm.bytes + cold.bytes, hot.bytes + warm.bytes
    return Verdict(TierMetrics(hot, warm, cold, state.budget, held, arena))


@decides(LocateBodies)
def locate_bodies(state: State, command: LocateBodies, _origin: Origin) -> Verdict:
    """Those that are still referred to; the envelope says where they are."""
    return Verdict(BodiesLocated(tuple(digest for digest in command.digests if digest in state.bodies)))


@decides(SetBudget)
def set_budget(state: State, command: SetBudget, origin: Origin) -> Verdict:
    """Budgets are global, so that only an unrestricted session may set them."""
    if origin.projects is not None:
        raise OutOfScope("budgets are global to the runtime: set them from a session connected without projects=")
    leaving = state.receipts.surplus(limits.RECEIPTS_MAX, command.budget.receipts_bytes)
    staying_bytes = state.bodies.bytes - state.bodies.freed([held for row in leaving for held in row.held])
    if command.budget.bodies_bytes < staying_bytes:
        raise TierFull(f"{staying_bytes} bytes are held already: delete some before lowering bodies_bytes")
    changes = settle(state, command.budget, {}, origin)
    receipts = (RowChanged(row, None) for row in leaving)
    return Verdict(BudgetSet(command.budget), (*receipts, *changes, RowChanged(state.budget, command.budget)))


def _move(state: State, row: FragmentRow, tier: Tier, origin: Origin) -> tuple[FragmentChanged, ...]:
    return place(state, row, replace(row, tier=tier, placed_at_ms=origin.now_ms), origin)


def _down(row: FragmentRow, below: Tier | None, origin: Origin) -> FragmentChanged:
    return RowChanged(row, replace(row, tier=below, placed_at_ms=origin.now_ms) if below else None)


def _fitting(budget: TierBudget, tier: Tier, tokens: int, size: int) -> tuple[Tier, Note]:
    """What is larger than all of hot belongs in warm, than the arena in cold: no tier is emptied for it."""
    if tier is not COLD and size > budget.live_bytes:
        return COLD, Note.LARGER_THAN_ARENA
    if tier is HOT and tokens > budget.hot_tokens:
        return WARM, Note.LARGER_THAN_HOT
    return tier, Note.PLACED


def _entry(state: State, project: str, fragment_id: str, origin: Origin) -> FragmentEntry:
    origin.require((project,))
    entry = state.fragments.entries.get((project, fragment_id))
    if entry is None:
        raise NotFound(f"project {project!r} has no fragment {fragment_id!r}", project=project, fragment_id=fragment_id)
    return entry


def _expect(key: Key, row: FragmentRow | None, expected: int | None) -> None:
    actual = row.revision if row else 0
    if expected is not None and expected != actual:
        raise Conflict(
            f"fragment {key[1]!r} is at revision {actual}, not {expected}: read it again and decide anew",
            expected=expected,
            actual=actual,
        )


def _placed(row: FragmentRow, note: Note) -> FragmentPlaced:
    return FragmentPlaced(row.project, row.fragment_id, row.tier, row.tokens, row.revision, row.digest, note)


def _moved(changes: tuple[FragmentChanged, ...], origin: Origin, *, more: bool = False) -> FragmentsMoved:
    """What moved, as far as the session may see."""
    moves = (
        Move(row.project, row.fragment_id, row.tier, change.after.tier if change.after else None)
        for change in changes
        if (row := change.before) and origin.sees((row.project,))
    )
    return FragmentsMoved(tuple(moves), more)
