"""The tiers against lists: the same fragments in the same tiers in the same order, whatever is done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from stepwell.domain.commands import Command, Write
from stepwell.domain.replies import (
    FragmentFound,
    FragmentPage,
    FragmentPlaced,
    FragmentsMoved,
    Note,
    Reply,
    TierMetrics,
    TierUsage,
)
from stepwell.domain.state import State
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.commands import (
    DeleteFragment,
    DemoteFragment,
    EvictLru,
    GetFragment,
    GetMetrics,
    ListFragments,
    PromoteFragment,
    RelieveArena,
    SetBudget,
    StoreFragment,
    SweepIdle,
    SweepStale,
)
from stepwell.domain.tiers.model import Tier, TierBudget
from stepwell.domain.verdict import Origin
from tests.support.model_check import AgainstModel, Refusal, content

HOT, WARM, COLD = Tier
UP = {COLD: WARM, WARM: HOT}
DOWN: dict[Tier, Tier | None] = {HOT: WARM, WARM: COLD, COLD: None}


@dataclass
class Item:
    """A fragment, as somebody would write it down who had only paper."""

    project: str
    name: str
    body: bytes
    tokens: int
    revision: int
    born: int
    touched_ms: int
    reads: int = 0
    reads_here: int = 0


@dataclass
class Lists:
    """Three lists, the least recently used first."""

    budget: TierBudget
    tiers: dict[Tier, list[Item]] = field(default_factory=lambda: {tier: [] for tier in Tier})
    packed: dict[bytes, int] = field(default_factory=dict)
    births: int = 0
    moved: list[tuple[str, str, Tier, Tier | None]] = field(default_factory=list)

    def items(self) -> Iterable[Item]:
        return (item for tier in Tier for item in self.tiers[tier])

    def arena_bytes(self) -> int:
        """What is hot is raw, what is warm as small as anybody has made it; equal bodies are one."""
        hot, warm = ({item.body for item in self.tiers[tier]} for tier in (HOT, WARM))
        return size(hot) + sum(self.packed.get(body, len(body)) for body in warm - hot)

    @property
    def live_bytes(self) -> int:
        return self.budget.arena_bytes * 70 // 100

    def forget(self) -> None:
        """Between steps: how small a body was that nobody refers to any more."""
        bodies = {item.body for item in self.items()}
        self.packed = {body: packed for body, packed in self.packed.items() if body in bodies}

    def find(self, project: str, name: str, origin: Origin) -> tuple[Tier, Item]:
        if origin.projects is not None and project not in origin.projects:
            raise Refusal("OutOfScope")
        for tier in Tier:
            for item in self.tiers[tier]:
                if (item.project, item.name) == (project, name):
                    return tier, item
        raise Refusal("NotFound")

    def apply(self, command: Command[Reply], origin: Origin, revision: int) -> bool:
        now_ms = origin.now_ms
        self.moved = []
        match command:
            case StoreFragment():
                self.store(command, origin, revision)
            case GetFragment(project, name):
                return self.get(*self.find(project, name, origin), now_ms)
            case PromoteFragment(project, name):
                tier, item = self.find(project, name, origin)
                if tier is not HOT and self.fitting(item, UP[tier]) is UP[tier]:
                    self.move(item, tier, UP[tier], now_ms)
                    self.enforce(now_ms, item)
            case DemoteFragment(project, name):
                tier, item = self.find(project, name, origin)
                if (below := DOWN[tier]) is not None:
                    self.move(item, tier, below, now_ms)
                    self.enforce(now_ms, item)
            case DeleteFragment(project, name, expected):
                tier, item = self.find(project, name, origin)
                if expected not in {None, item.revision}:
                    raise Refusal("Conflict")
                self.tiers[tier].remove(item)
            case EvictLru(tier, count):
                for item in self.visible(tier, origin)[:count]:
                    self.move(item, tier, DOWN[tier], now_ms)
                self.enforce(now_ms, scope=origin.projects)
            case SweepStale() | SweepIdle():
                self.sweep(origin)
            case RelieveArena(wanted):
                self.relieve(wanted, now_ms)
            case SetBudget(budget):
                self.set_budget(budget, origin)
            case _:
                return False
        return bool(self.moved) or isinstance(command, Write)

    def visible(self, tier: Tier, origin: Origin) -> list[Item]:
        return [item for item in self.tiers[tier] if origin.projects is None or item.project in origin.projects]

    def store(self, command: StoreFragment, origin: Origin, revision: int) -> None:
        try:
            tier, old = self.find(command.project, command.fragment_id, origin)
        except Refusal as refusal:
            if str(refusal) != "NotFound":
                raise
            tier, old = None, None
        if command.expected_revision not in {None, old.revision if old else 0}:
            raise Refusal("Conflict")
        body = content(command.body)
        bodies = {item.body for item in self.items()}
        if body not in bodies and size(bodies | {body}) > self.budget.bodies_bytes:
            raise Refusal("TierFull")
        if tier is not None and old is not None:
            self.tiers[tier].remove(old)
        else:
            self.births += 1
        item = Item(
            project=command.project,
            name=command.fragment_id,
            body=body,
            tokens=command.tokens,
            revision=revision,
            born=old.born if old else self.births,
            touched_ms=origin.now_ms,
            reads=old.reads if old else 0,
        )
        self.tiers[self.fitting(item, command.tier)].append(item)
        self.enforce(origin.now_ms, item)

    def fitting(self, item: Item, tier: Tier) -> Tier:
        if len(item.body) > self.live_bytes:
            return COLD
        return WARM if tier is HOT and item.tokens > self.budget.hot_tokens else tier

    def get(self, tier: Tier, item: Item, now_ms: int) -> bool:
        self.tiers[tier].remove(item)
        self.tiers[tier].append(item)
        item.touched_ms = now_ms
        item.reads += 1
        item.reads_here += 1
        often = item.reads_here >= self.budget.promotion_threshold
        if tier is HOT or not often or self.fitting(item, UP[tier]) is not UP[tier]:
            return False
        # With cold full, a climb from warm to hot may have nowhere to put whom it displaces.
        lists = {each: list(items) for each, items in self.tiers.items()}
        values = {id(each): (each.touched_ms, each.reads_here) for each in self.items()}
        try:
            self.move(item, tier, UP[tier], now_ms)
            self.enforce(now_ms, item)
        except Refusal:
            self.tiers = lists
            for each in self.items():
                each.touched_ms, each.reads_here = values[id(each)]
            return False
        return True

    def move(self, item: Item, source: Tier, target: Tier | None, now_ms: int) -> None:
        self.tiers[source].remove(item)
        self.moved.append((item.project, item.name, source, target))
        if target is not None:
            self.tiers[target].append(item)
            item.touched_ms = now_ms
            item.reads_here = 0

    def enforce(self, now_ms: int, spared: Item | None = None, scope: frozenset[str] | None = None) -> None:
        while sum(item.tokens for item in self.tiers[HOT]) > self.budget.hot_tokens:
            self.move(next(item for item in self.tiers[HOT] if item is not spared), HOT, WARM, now_ms)
        while len(self.tiers[WARM]) > self.budget.warm_entries:
            movable = (item for item in self.tiers[WARM] if scope is None or item.project in scope)
            self.move(next(item for item in movable if item is not spared), WARM, COLD, now_ms)
        while self.arena_bytes() > self.live_bytes or len(self.tiers[WARM]) > self.budget.warm_entries:
            self.make_way(now_ms, spared)
        for items in self.tiers.values():
            items.sort(key=lambda item: item is spared)  # stable: whoever the step is about is the latest of its tier
        if len(self.tiers[COLD]) > self.budget.cold_entries:
            raise Refusal("TierFull")

    def make_way(self, now_ms: int, spared: Item | None = None) -> None:
        """One goes down: of warm, and if there is none, of hot."""
        tier, item = next((tier, item) for tier in (WARM, HOT) for item in self.tiers[tier] if item is not spared)
        self.move(item, tier, DOWN[tier], now_ms)

    def relieve(self, wanted: int, now_ms: int) -> None:
        while (
            self.arena_bytes() > max(0, self.live_bytes - wanted) and len(self.tiers[COLD]) < self.budget.cold_entries
        ):
            self.make_way(now_ms)

    def sweep(self, origin: Origin) -> None:
        for tier, age_ms, room_below in (
            (COLD, self.budget.cold_retention_ms, 10**9),
            (WARM, self.budget.warm_ttl_ms, self.budget.cold_entries),
            (HOT, self.budget.hot_ttl_ms, self.budget.warm_entries),
        ):
            below = DOWN[tier]
            for item in self.visible(tier, origin):
                stale = origin.now_ms - item.touched_ms >= age_ms
                if stale and (below is None or len(self.tiers[below]) < room_below):
                    self.move(item, tier, below, origin.now_ms)

    def set_budget(self, budget: TierBudget, origin: Origin) -> None:
        if origin.projects is not None:
            raise Refusal("OutOfScope")
        if size({item.body for item in self.items()}) > budget.bodies_bytes:
            raise Refusal("TierFull")
        self.budget = budget
        self.enforce(origin.now_ms)

    def view(self) -> object:
        return (
            self.budget,
            self.arena_bytes(),
            {
                tier: [
                    (i.project, i.name, i.tokens, len(i.body), i.revision, i.touched_ms, i.reads, i.reads_here)
                    for i in items
                ]
                for tier, items in self.tiers.items()
            },
        )

    def seen_in(self, state: State) -> object:
        return (
            state.budget,
            state.bodies.arena_bytes,
            {
                tier: [
                    (
                        entry.row.project,
                        entry.row.fragment_id,
                        entry.row.tokens,
                        entry.row.size,
                        entry.row.revision,
                        entry.touched_at_ms,
                        entry.access_count,
                        entry.accesses_since_move,
                    )
                    for entry in state.fragments.oldest(tier)
                ]
                for tier in Tier
            },
        )


def size(bodies: Iterable[bytes]) -> int:
    return sum(map(len, bodies))


PROJECTS = st.sampled_from(["p", "q"])
NAMES = st.sampled_from("abcd")
BUDGETS = st.builds(
    TierBudget,
    hot_tokens=st.integers(1, 12),
    warm_entries=st.integers(1, 4),
    cold_entries=st.integers(1, 8),
    bodies_bytes=st.sampled_from([4, 12, 20, 40, 40]),
    arena_bytes=st.sampled_from([1, 5, 9, 12, 15, 18, 22, 26, 30, 1_000]),
    hot_ttl_ms=st.just(10),
    warm_ttl_ms=st.just(20),
    cold_retention_ms=st.just(40),
    promotion_threshold=st.integers(1, 3),
)
BODIES = st.sampled_from([b"", b"x", b"yy", b"zzz", b"wwwwwww"])
STORES = st.builds(
    StoreFragment,
    PROJECTS,
    NAMES,
    BODIES | st.sampled_from([1, 2, 3]),
    st.integers(1, 14),
    st.sampled_from(Tier),
    expected_revision=st.sampled_from([*[None] * 6, 0, 1, 3]),
)
WRITES: st.SearchStrategy[Write[Reply]] = st.one_of(
    STORES,
    STORES,
    st.builds(PromoteFragment, PROJECTS, NAMES),
    st.builds(DemoteFragment, PROJECTS, NAMES),
    st.builds(DeleteFragment, PROJECTS, NAMES, st.none() | st.integers(1, 20)),
    st.builds(EvictLru, st.sampled_from(Tier), st.integers(1, 4)),
    st.builds(SweepStale),
    st.builds(SetBudget, BUDGETS),
)
SCOPES = st.none() | st.none() | st.frozensets(PROJECTS, min_size=1)


class TierMachine(AgainstModel):
    """Random writes, reads, sweeps and transactions, from unrestricted and scoped sessions."""

    model: Lists

    @initialize(budget=BUDGETS, commands=st.lists(STORES, min_size=4, max_size=12))
    def start(self, budget: TierBudget, commands: list[StoreFragment]) -> None:
        self.begin(Lists(budget), budget)
        self.store(commands)

    def both(self, command: Command[Reply], origin: Origin) -> Reply | None:
        reply = super().both(command, origin)
        self.model.forget()
        return reply

    def both_at_once(self, commands: Sequence[Write[Reply]], origin: Origin) -> None:
        super().both_at_once(commands, origin)
        self.model.forget()

    @rule(milliseconds=st.sampled_from([1, 5, 10, 20]))
    def time_passes(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule(commands=st.lists(STORES, min_size=1, max_size=6))
    def store(self, commands: list[StoreFragment]) -> None:
        for command in commands:
            reply = self.both(command, self.origin())
            if reply is None:
                continue
            assert isinstance(reply, FragmentPlaced)
            tier, item = self.model.find(command.project, command.fragment_id, self.origin())
            too_large = command.tier is not COLD and len(item.body) > self.model.live_bytes
            assert (reply.tier, reply.note is Note.LARGER_THAN_ARENA) == (tier, too_large)

    @rule(data=st.data())
    def pack(self, data: st.DataObject) -> None:
        """The physical layer has compressed a body, or found that it cannot, or was too late."""
        body = data.draw(st.sampled_from([*(item.body for item in self.model.items()), b"gone"]))
        packed = data.draw(st.integers(0, len(body) + 1))
        before = self.state.bodies.arena_bytes
        self.state.bodies.note_packed(digest_of(body), packed)
        assert self.state.bodies.arena_bytes <= before
        self.model.packed[body] = min(packed, self.model.packed.get(body, len(body)))
        self.model.forget()

    @rule(wanted=st.integers(1, 8))
    def relieve(self, wanted: int) -> None:
        """There is room for so much, or none that could be made."""
        reply = self.both(RelieveArena(wanted), self.origin())
        assert isinstance(reply, FragmentsMoved)
        assert not reply.more
        arena_bytes = self.state.bodies.arena_bytes
        cold_is_full = self.state.fragments.usage(COLD).entries == self.state.budget.cold_entries
        assert arena_bytes + wanted <= self.state.budget.live_bytes or arena_bytes == 0 or cold_is_full

    @rule(command=WRITES, scope=SCOPES)
    def write(self, command: Write[Reply], scope: frozenset[str] | None) -> None:
        reply = self.both(command, self.origin(projects=scope))
        if isinstance(reply, FragmentsMoved):
            final = {(project, name): target for project, name, _, target in self.model.moved}
            assert {(move.project, move.fragment_id): move.target for move in reply.moves} == {
                key: target for key, target in final.items() if scope is None or key[0] in scope
            }

    @rule(milliseconds=st.sampled_from([1, 5, 10, 20]))
    def sweep_idle(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.both(SweepIdle(), self.origin())

    @rule(data=st.data(), times=st.integers(1, 4), scope=SCOPES)
    def read(self, data: st.DataObject, times: int, scope: frozenset[str] | None) -> None:
        there = [(item.project, item.name) for item in self.model.items()]
        project, name = data.draw(st.sampled_from([*there, ("p", "a")]))
        for _ in range(times):
            reply = self.both(GetFragment(project, name), self.origin(projects=scope))
            if reply is not None:
                assert isinstance(reply, FragmentFound)
                tier, item = self.model.find(project, name, self.origin())
                assert (reply.row.tier, reply.access_count, reply.row.tokens) == (tier, item.reads, item.tokens)
                assert reply.last_accessed_ms == self.now_ms

    @rule(commands=st.lists(WRITES, max_size=6))
    def transact(self, commands: list[Write[Reply]]) -> None:
        self.both_at_once(commands, self.origin())

    @rule(commands=st.lists(WRITES, max_size=6))
    def abort(self, commands: list[Write[Reply]]) -> None:
        self.both_at_once([*commands, DeleteFragment("nobody", "nothing")], self.origin())

    @rule(scope=SCOPES)
    def measure(self, scope: frozenset[str] | None) -> None:
        origin = self.origin(projects=scope)
        reply = self.both(GetMetrics(), origin)
        assert isinstance(reply, TierMetrics)
        for tier, usage in ((HOT, reply.hot), (WARM, reply.warm), (COLD, reply.cold)):
            items = self.model.visible(tier, origin)
            size = sum(len(item.body) for item in items)
            assert usage == TierUsage(len(items), sum(item.tokens for item in items), size)
        own = reply.hot.bytes + reply.warm.bytes
        assert reply.arena_bytes == (self.model.arena_bytes() if scope is None else own)

    @rule(project=PROJECTS, limit=st.integers(1, 3))
    def page(self, project: str, limit: int) -> None:
        names: list[str] = []
        cursor: str | None = None
        while True:
            reply = self.both(ListFragments(project, limit=limit, cursor=cursor), self.origin())
            assert isinstance(reply, FragmentPage)
            names += [row.fragment_id for row in reply.rows]
            if (cursor := reply.cursor) is None:
                break
        born = sorted((item.born, item.name) for item in self.model.items() if item.project == project)
        assert names == [name for _, name in born]


TestTiers = TierMachine.TestCase
TestTiers.settings = settings(max_examples=2 * settings().max_examples)
