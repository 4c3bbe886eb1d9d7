"""Enforcement of the tier budgets: which fragments are demoted, in the same step that would exceed a budget.

Hot is bounded by tokens, warm and cold by entries. Hot and warm together are bounded by the bytes that their bodies
need of the arena. A tier that is over its bound demotes its least recently used fragments. If the arena is over its
bound, the least recently used fragments of warm go to cold; when warm is empty, those of hot go to warm and on to cold,
because a body that was not compressed yet needs as many bytes in warm as in hot. When hot is empty as well, the least
recently used bodies of fragments with `keep` go to disk, as cold ones; these fragments are bounded by their number.

Overflow demotes and never deletes. When cold has no room left, the step is refused with `TierFull`. A step that would
move more than `MOVES_PER_STEP_MAX` fragments is refused with `StepTooLarge`, because it would stop the manager's loop
for too long.
"""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.state import State
from stepwell.domain.tiers.body_refs import ArenaForecast, BodyTable
from stepwell.domain.tiers.model import BELOW, COLD, HOT, WARM, FragmentRow, Tier, TierBudget, below
from stepwell.domain.tiers.table import Key
from stepwell.domain.verdict import Origin, RowChanged
from stepwell.errors import StepTooLarge, TierFull
from stepwell.text import plural

FragmentChanged = RowChanged[FragmentRow]
Moves = dict[Key, FragmentChanged]
"""The changes of fragments that a step will make, by key, in the order in which they are made."""


def place(state: State, before: FragmentRow | None, row: FragmentRow, origin: Origin) -> tuple[FragmentChanged, ...]:
    """Return the changes that put a row into its tier in place of `before`, with the demotions that make room."""
    # Most rows fit, and then no step has to be put together. The arena is compared with the raw size, which is the
    # most that the row can add; an exact forecast follows only if that does not fit.
    change = RowChanged(before, row)
    budget = state.budget
    if state.fragments.has_room(row, before, budget) and (
        row.tier is COLD or state.bodies.arena_bytes + row.size <= budget.live_bytes
    ):
        return (change,)
    return enforce(state, budget, {row.key: change}, origin, protected=row.key)


def enforce(
    state: State,
    budget: TierBudget,
    moves: Moves,
    origin: Origin,
    *,
    protected: Key | None = None,
    within: frozenset[str] | None = None,
) -> tuple[FragmentChanged, ...]:
    """Return the moves together with the demotions that keep every budget.

    `protected` is the key of a fragment that is never demoted and that moves last. `within` restricts the demotions to
    some projects. Raises `TierFull` if cold is full, and `StepTooLarge` if too many fragments would move.
    """
    arriving = moves[protected].after if protected else None
    require_kept_entries(state, budget, moves)
    step = _Step(state, moves, origin, protected, within)
    usage = step.usage
    while usage[HOT].tokens > budget.hot_tokens:
        step.demote_lru(HOT)
    while usage[WARM].entries > budget.warm_entries:
        step.demote_lru(WARM)
    # The arriving fragment is the only one that can need more of the arena: all others move down. The forecast copies
    # counts, so that it is made only when the arena could be exceeded.
    if state.bodies.arena_bytes + (arriving.size if arriving else 0) > budget.live_bytes:
        arena = step.forecast_arena(state.bodies)
        while arena.arena_bytes > budget.live_bytes or usage[WARM].entries > budget.warm_entries:
            step.demote_lru(WARM, HOT, with_kept=True)
    if usage[COLD].entries > budget.cold_entries:
        raise TierFull(
            f"cold already holds its {plural(budget.cold_entries, 'entry', 'entries')}: delete some, or raise "
            "cold_entries",
            cold_entries=budget.cold_entries,
        )
    if protected is not None:
        moves[protected] = moves.pop(protected)
    return tuple(moves.values())


def relieve(state: State, wanted_bytes: int, origin: Origin) -> tuple[tuple[FragmentChanged, ...], bool]:
    """Return the demotions that free `wanted_bytes` of the arena, as far as cold has room and one step may go.

    The second value is True if the goal was not reached and another step would get nearer to it.
    """
    budget = state.budget
    target_bytes = max(0, budget.live_bytes - wanted_bytes)
    step = _Step(state, {}, origin)
    arena, cold = step.forecast_arena(state.bodies), step.usage[COLD]
    while needed := arena.arena_bytes > target_bytes and cold.entries < budget.cold_entries:
        if len(step.moves) == limits.SWEEP_MOVES_MAX:
            break
        step.demote_lru(WARM, HOT, with_kept=True)
    return tuple(step.moves.values()), needed


def require_kept_entries(state: State, budget: TierBudget, moves: Moves) -> None:
    """Raise `TierFull` if there would be more fragments with `keep` than the budget allows. They are never moved."""
    added = sum(
        (change.after is not None and change.after.keep) - (change.before is not None and change.before.keep)
        for change in moves.values()
    )
    if state.fragments.kept_entries + added > budget.kept_entries:
        raise TierFull(
            f"at most {plural(budget.kept_entries, 'fragment')} may be stored with keep: delete some, or raise "
            "kept_entries",
            kept_entries=budget.kept_entries,
        )


class _Step:
    """A step that is being put together: its moves so far, and the usage of the tiers and the arena after them.

    The arena is forecast only after `forecast_arena` was called. Nothing in here changes the state.
    """

    def __init__(
        self,
        state: State,
        moves: Moves,
        origin: Origin,
        protected: Key | None = None,
        within: frozenset[str] | None = None,
    ) -> None:
        self.moves = moves
        self.usage = {tier: state.fragments.usage(tier) for tier in Tier}
        self._now_ms = origin.now_ms
        self._present = {tier: state.fragments.oldest(tier, within) for tier in BELOW}
        self._kept = state.fragments.oldest_kept()
        self._arrived: dict[Tier, deque[FragmentRow]] = {tier: deque() for tier in Tier}
        self._arena: ArenaForecast | None = None
        for key, change in moves.items():
            if change.before and not change.before.keep:
                self.usage[change.before.tier].remove(change.before)
            if change.after and not change.after.keep:
                self.usage[change.after.tier].add(change.after)
                if key != protected:
                    self._arrived[change.after.tier].append(change.after)

    def forecast_arena(self, bodies: BodyTable) -> ArenaForecast:
        """Return a forecast of the arena after the moves so far, which `demote_lru` updates from now on."""
        self._arena = ArenaForecast(bodies)
        for change in self.moves.values():
            _count_move(self._arena, change.before, change.after)
        return self._arena

    def demote_lru(self, *tiers: Tier, with_kept: bool = False) -> None:
        """Demote the least recently used fragment of the first of these tiers that has one.

        With `with_kept`, if none has: move the body of the least recently used fragment with `keep` to disk.
        """
        victim = next(filter(None, map(self._victim, tiers)), None)
        if victim is None:
            assert with_kept
            victim = next(entry.row for entry in self._kept if entry.row.key not in self.moves)
        lowered = replace(victim, tier=below(victim), placed_at_ms=self._now_ms)
        # A fragment that falls through two tiers moves once, from the upper to the lowest, but behind the fragments
        # that left the tier between them before it.
        before = self.moves.pop(victim.key).before if victim.key in self.moves else victim
        self.moves[victim.key] = RowChanged(before, lowered)
        if not victim.keep:
            self.usage[victim.tier].remove(victim)
            self.usage[lowered.tier].add(lowered)
            self._arrived[lowered.tier].append(lowered)
        if self._arena:
            _count_move(self._arena, victim, lowered)
        if len(self.moves) > limits.MOVES_PER_STEP_MAX:
            raise StepTooLarge(
                f"this would move more than {limits.MOVES_PER_STEP_MAX} fragments in one step: "
                "make room with evict_lru() first, or lower the budget in parts"
            )

    def _victim(self, tier: Tier) -> FragmentRow | None:
        """Return the row that leaves a tier next.

        First those that were in it, then those that this step moved there.
        """
        for entry in self._present[tier]:
            if entry.row.key not in self.moves:
                return entry.row
        return self._arrived[tier].popleft() if self._arrived[tier] else None


def _count_move(arena: ArenaForecast, before: FragmentRow | None, after: FragmentRow | None) -> None:
    """Add one move to a forecast; the new place first, so that a body does not pass through zero references."""
    for row, count in ((after, arena.retain), (before, arena.release)):
        if row:
            for body in row.held:
                count(body, row.tier)
