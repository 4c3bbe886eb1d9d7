"""Keeping the budgets: who goes down, in the very step that would go past one. Overflow demotes and never deletes.

Hot is bounded by tokens, warm and cold by entries, and hot and warm together by the bytes that their bodies need
of the arena. Past that, the least recently used of warm go to cold; when warm has none left, those of hot to warm,
and on, because a body that nobody has compressed yet needs as much there.
"""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.state import State
from stepwell.domain.tiers.body_refs import ArenaForecast, BodyTable
from stepwell.domain.tiers.model import BELOW, COLD, HOT, WARM, FragmentRow, Tier, TierBudget
from stepwell.domain.tiers.table import Key
from stepwell.domain.verdict import Origin, RowChanged
from stepwell.errors import StepTooLarge, TierFull

FragmentChanged = RowChanged[FragmentRow]
Moves = dict[Key, FragmentChanged]
"""What a step is going to do to fragments, in order."""


def place(state: State, before: FragmentRow | None, row: FragmentRow, origin: Origin) -> tuple[FragmentChanged, ...]:
    """Put a row in its tier, and make room for it if need be."""
    change = RowChanged(before, row)
    budget = state.budget
    if state.fragments.has_room(row, before, budget) and (
        row.tier is COLD or state.bodies.arena_bytes + row.size <= budget.live_bytes
    ):
        return (change,)
    return settle(state, budget, {row.key: change}, origin, protected=row.key)


def settle(
    state: State,
    budget: TierBudget,
    moves: Moves,
    origin: Origin,
    *,
    protected: Key | None = None,
    within: frozenset[str] | None = None,
) -> tuple[FragmentChanged, ...]:
    """Add the demotions that keep every budget, or refuse. `protected` is never a victim, and moves last."""
    arriving = moves[protected].after if protected else None
    step = _Step(state, moves, origin, protected, within)
    usage = step.usage
    while usage[HOT].tokens > budget.hot_tokens:
        step.lower(HOT)
    while usage[WARM].entries > budget.warm_entries:
        step.lower(WARM)
    # Whatever else moves, moves down, and needs no more than before.
    if state.bodies.arena_bytes + (arriving.size if arriving else 0) > budget.live_bytes:
        arena = step.foresee(state.bodies)
        while arena.arena_bytes > budget.live_bytes or usage[WARM].entries > budget.warm_entries:
            step.lower(WARM, HOT)
    if usage[COLD].entries > budget.cold_entries:
        raise TierFull(
            f"cold already holds its {budget.cold_entries} fragments: delete some, or raise cold_entries",
            cold_entries=budget.cold_entries,
        )
    if protected is not None:
        moves[protected] = moves.pop(protected)
    return tuple(moves.values())


def relieve(state: State, wanted_bytes: int, origin: Origin) -> tuple[tuple[FragmentChanged, ...], bool]:
    """As much room in the arena as one sweep can make, and whether another one is needed and would help."""
    budget = state.budget
    target_bytes = max(0, budget.live_bytes - wanted_bytes)
    step = _Step(state, {}, origin)
    arena, cold = step.foresee(state.bodies), step.usage[COLD]
    while needed := arena.arena_bytes > target_bytes and cold.entries < budget.cold_entries:
        if len(step.moves) == limits.SWEEP_MOVES_MAX:
            break
        step.lower(WARM, HOT)
    return tuple(step.moves.values()), needed


class _Step:
    """A step in the making: its moves, and what the tiers and, once asked for, the arena would hold after them."""

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
        self._staying = {tier: state.fragments.oldest(tier, within) for tier in BELOW}
        self._arrived: dict[Tier, deque[FragmentRow]] = {tier: deque() for tier in Tier}
        self._arena: ArenaForecast | None = None
        for key, change in moves.items():
            if change.before:
                self.usage[change.before.tier].remove(change.before)
            if change.after:
                self.usage[change.after.tier].add(change.after)
                if key != protected:
                    self._arrived[change.after.tier].append(change.after)

    def foresee(self, bodies: BodyTable) -> ArenaForecast:
        """The arena after these moves, and after those that follow."""
        self._arena = ArenaForecast(bodies)
        for change in self.moves.values():
            _count(self._arena, change.before, change.after)
        return self._arena

    def lower(self, *tiers: Tier) -> None:
        """The least recently used goes down, of the first of these tiers that has one to give."""
        victim = next(filter(None, map(self._victim, tiers)))
        lowered = replace(victim, tier=BELOW[victim.tier], placed_at_ms=self._now_ms)
        # One that falls through two tiers moves again, behind those that left the lower one before it.
        before = self.moves.pop(victim.key).before if victim.key in self.moves else victim
        self.moves[victim.key] = RowChanged(before, lowered)
        self.usage[victim.tier].remove(victim)
        self.usage[lowered.tier].add(lowered)
        self._arrived[lowered.tier].append(lowered)
        if self._arena:
            _count(self._arena, victim, lowered)
        if len(self.moves) > limits.MOVES_PER_STEP_MAX:
            raise StepTooLarge(
                f"this would move more than {limits.MOVES_PER_STEP_MAX} fragments in one step: "
                "make room with evict_lru() first, or lower the budget in parts"
            )

    def _victim(self, tier: Tier) -> FragmentRow | None:
        """Who leaves a tier next: those that were in it, then those that this very step brings."""
        for entry in self._staying[tier]:
            if entry.row.key not in self.moves:
                return entry.row
        return self._arrived[tier].popleft() if self._arrived[tier] else None


def _count(arena: ArenaForecast, before: FragmentRow | None, after: FragmentRow | None) -> None:
    for row, count in ((after, arena.retain), (before, arena.release)):
        if row:
            for held in row.held:
                count(held, row.tier)
