"""The rules of the tiers. Insert plus enforcement is one step; overflow demotes and never deletes.

Each function decides one command. Where there is no room, `_settle` makes it: the only place that enforces budgets.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.checks import check_metadata
from stepwell.domain.commands.tiers import (
    DeleteFragment,
    DemoteFragment,
    EvictLru,
    GetFragment,
    GetMetrics,
    ListFragments,
    ListProjects,
    PromoteFragment,
    SetBudget,
    StoreFragment,
    SweepIdle,
    SweepStale,
)
from stepwell.domain.content import digest_of
from stepwell.domain.deciding import Origin, RowChanged, Verdict, decides
from stepwell.domain.fragment import ABOVE, BELOW, FragmentRow, Tier, TierBudget
from stepwell.domain.fragments import Entry, Key
from stepwell.domain.pages import cursor_number, take
from stepwell.domain.patterns import glob_matcher
from stepwell.domain.replies import (
    BudgetSet,
    FragmentDeleted,
    FragmentFound,
    FragmentPage,
    FragmentPlaced,
    FragmentsMoved,
    Move,
    Note,
    ProjectPage,
    TierMetrics,
)
from stepwell.domain.state import State
from stepwell.errors import Conflict, NotFound, OutOfScope, StepTooLarge, TierFull

FragmentChanged = RowChanged[FragmentRow]
Moves = dict[Key, FragmentChanged]
"""What a step is going to do to fragments, in order."""


@decides(StoreFragment)
def store(state: State, command: StoreFragment, origin: Origin) -> Verdict:
    """Insert or replace, and keep every budget, in one step."""
    origin.require((command.project,))
    if command.metadata:
        check_metadata(command.metadata)
    key = (command.project, command.fragment_id)
    current = state.fragments.get(key)
    _expect(key, current, command.expected_revision)
    digest, size = digest_of(command.body), len(command.body)
    budget = state.budget
    if state.bodies.bytes + size > budget.bodies_bytes:
        state.bodies.require_room(((digest, size),), budget.bodies_bytes)
    tier, note = _fitting(budget, command.tier, command.tokens)
    row = FragmentRow(
        project=command.project,
        fragment_id=command.fragment_id,
        source=command.source,
        kind=command.kind,
        detail_depth=command.detail_depth,
        tokens=command.tokens,
        size=size,
        digest=digest,
        tier=tier,
        placed_at_ms=origin.now_ms,
        created_at_ms=current.created_at_ms if current else origin.now_ms,
        revision=state.revision + 1,
        serial=current.serial if current else state.fragments.next_serial,
        metadata=command.metadata,
    )
    return Verdict(_placed(row, note), _place(state, current, row, origin), bodies={digest: command.body})


@decides(GetFragment)
def get(state: State, command: GetFragment, origin: Origin) -> Verdict:
    """A read and an access. It is a write only when it is the access that lifts the fragment."""
    entry = _entry(state, command.project, command.fragment_id, origin)
    changes = _climb(state, entry, origin)
    # The climbing fragment is protected, so that it is the last to move.
    row = (changes[-1].after if changes else None) or entry.row
    return Verdict(FragmentFound(row, origin.now_ms, entry.access_count + 1), changes, accessed=row.key)


def _climb(state: State, entry: Entry, origin: Origin) -> tuple[FragmentChanged, ...]:
    """Lift a fragment that was read often enough. A reader is never refused for lack of room above."""
    row = entry.row
    if row.tier is Tier.HOT or entry.accesses_since_move + 1 < state.budget.promotion_threshold:
        return ()
    if _fitting(state.budget, ABOVE[row.tier], row.tokens)[0] is row.tier:
        return ()
    try:
        return _move(state, row, ABOVE[row.tier], origin)
    except (TierFull, StepTooLarge):
        return ()


@decides(PromoteFragment)
def promote(state: State, command: PromoteFragment, origin: Origin) -> Verdict:
    """Lift one tier; a fragment that hot could not hold stays in warm, and the reply says so."""
    row = _entry(state, command.project, command.fragment_id, origin).row
    if row.tier is Tier.HOT:
        return Verdict(_placed(row, Note.ALREADY_THERE))
    tier, note = _fitting(state.budget, ABOVE[row.tier], row.tokens)
    if tier is row.tier:
        return Verdict(_placed(row, note))
    return Verdict(_placed(replace(row, tier=tier), note), _move(state, row, tier, origin))


@decides(DemoteFragment)
def demote(state: State, command: DemoteFragment, origin: Origin) -> Verdict:
    """Lower one tier, with the whole body and its token count."""
    row = _entry(state, command.project, command.fragment_id, origin).row
    if row.tier is Tier.COLD:
        return Verdict(_placed(row, Note.ALREADY_THERE))
    below = BELOW[row.tier]
    return Verdict(_placed(replace(row, tier=below), Note.PLACED), _move(state, row, below, origin))


@decides(DeleteFragment)
def delete(state: State, command: DeleteFragment, origin: Origin) -> Verdict:
    """Remove for good: the only way, besides cold's retention, in which a body goes."""
    row = _entry(state, command.project, command.fragment_id, origin).row
    _expect(row.key, row, command.expected_revision)
    return Verdict(FragmentDeleted(row.project, row.fragment_id, row.tier), (RowChanged(row, None),))


@decides(EvictLru)
def evict_lru(state: State, command: EvictLru, origin: Origin) -> Verdict:
    """Lower the least recently used of the session's projects; from cold they are deleted."""
    victims = islice(state.fragments.oldest(command.tier, origin.projects), command.count)
    below = BELOW.get(command.tier)
    moves: Moves = {entry.row.key: _down(entry.row, below, origin) for entry in victims}
    changes = _settle(state, state.budget, moves, origin, within=origin.projects)
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
        Tier.COLD: budget.cold_entries - table.usage(Tier.COLD).entries,
        Tier.WARM: budget.warm_entries - table.usage(Tier.WARM).entries,
    }
    moves: Moves = {}
    for tier, ttl_ms in (
        (Tier.COLD, budget.cold_retention_ms),
        (Tier.WARM, budget.warm_ttl_ms),
        (Tier.HOT, budget.hot_ttl_ms),
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
    held = state.bodies.bytes if origin.projects is None else hot.bytes + warm.bytes + cold.bytes
    return Verdict(TierMetrics(hot, warm, cold, state.budget, held))


@decides(SetBudget)
def set_budget(state: State, command: SetBudget, origin: Origin) -> Verdict:
    """Budgets are global, so that only an unrestricted session may set them."""
    if origin.projects is not None:
        raise OutOfScope("budgets are global to the runtime: set them from a session connected without projects=")
    if command.budget.bodies_bytes < state.bodies.bytes:
        raise TierFull(f"{state.bodies.bytes} bytes are held already: delete some before lowering bodies_bytes")
    changes = _settle(state, command.budget, {}, origin)
    return Verdict(BudgetSet(command.budget), (*changes, RowChanged(state.budget, command.budget)))


def _settle(
    state: State,
    budget: TierBudget,
    moves: Moves,
    origin: Origin,
    *,
    protected: Key | None = None,
    within: frozenset[str] | None = None,
) -> tuple[FragmentChanged, ...]:
    """Add the demotions that keep every budget, or refuse. `protected` is never a victim, and moves last."""
    usage = {tier: state.fragments.usage(tier) for tier in Tier}
    for change in moves.values():
        if change.before:
            usage[change.before.tier].remove(change.before)
        if change.after:
            usage[change.after.tier].add(change.after)
    for tier, below in BELOW.items():
        victims: Iterator[FragmentRow] | None = None
        while _is_over(budget, tier, usage[tier].tokens, usage[tier].entries):
            victims = victims or _victims(state, tier, moves, protected, within)
            victim = next(victims)
            # One that falls through two tiers moves again, behind those that left the lower one before it.
            before = moves.pop(victim.key).before if victim.key in moves else victim
            lowered = replace(victim, tier=below, placed_at_ms=origin.now_ms)
            moves[victim.key] = RowChanged(before, lowered)
            usage[tier].remove(victim)
            usage[below].add(lowered)
            if len(moves) > limits.MOVES_PER_STEP_MAX:
                raise StepTooLarge(
                    f"this would move more than {limits.MOVES_PER_STEP_MAX} fragments in one step: "
                    "make room with evict_lru() first, or lower the budget in parts"
                )
    if usage[Tier.COLD].entries > budget.cold_entries:
        raise TierFull(
            f"cold already holds its {budget.cold_entries} fragments: delete some, or raise cold_entries",
            cold_entries=budget.cold_entries,
        )
    if protected is not None:
        moves[protected] = moves.pop(protected)
    return tuple(moves.values())


def _is_over(budget: TierBudget, tier: Tier, tokens: int, entries: int) -> bool:
    return tokens > budget.hot_tokens if tier is Tier.HOT else entries > budget.warm_entries


def _victims(
    state: State, tier: Tier, moves: Moves, protected: Key | None, within: frozenset[str] | None
) -> Iterator[FragmentRow]:
    """Who leaves a tier, in order: those that were in it, then those that this very step brings."""
    arriving = [
        change.after for key, change in moves.items() if key != protected and change.after and change.after.tier is tier
    ]
    staying = (entry.row for entry in state.fragments.oldest(tier, within) if entry.row.key not in moves)
    return chain(staying, arriving)


def _move(state: State, row: FragmentRow, tier: Tier, origin: Origin) -> tuple[FragmentChanged, ...]:
    return _place(state, row, replace(row, tier=tier, placed_at_ms=origin.now_ms), origin)


def _place(state: State, before: FragmentRow | None, row: FragmentRow, origin: Origin) -> tuple[FragmentChanged, ...]:
    """Put a row in its tier, and make room for it if need be."""
    change = RowChanged(before, row)
    if state.fragments.has_room(row, before, state.budget):
        return (change,)
    return _settle(state, state.budget, {row.key: change}, origin, protected=row.key)


def _down(row: FragmentRow, below: Tier | None, origin: Origin) -> FragmentChanged:
    return RowChanged(row, replace(row, tier=below, placed_at_ms=origin.now_ms) if below else None)


def _fitting(budget: TierBudget, tier: Tier, tokens: int) -> tuple[Tier, Note]:
    """A fragment larger than the whole of hot belongs in warm: hot is never emptied for it."""
    if tier is Tier.HOT and tokens > budget.hot_tokens:
        return Tier.WARM, Note.LARGER_THAN_HOT
    return tier, Note.PLACED


def _entry(state: State, project: str, fragment_id: str, origin: Origin) -> Entry:
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
