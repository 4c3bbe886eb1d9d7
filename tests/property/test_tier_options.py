"""Fragments with `keep` or an expiry, unique stores and guards against lists, beside the tiers that they share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from stepwell.domain.commands import Command, Write
from stepwell.domain.replies import (
    FragmentChecked,
    FragmentFound,
    FragmentPage,
    FragmentPlaced,
    FragmentRemoved,
    FragmentsMoved,
    Note,
    Reply,
    TierMetrics,
    TierUsage,
)
from stepwell.domain.state import State
from stepwell.domain.tiers.commands import (
    CheckFragment,
    DeleteFragment,
    DemoteFragment,
    EvictLru,
    ExpireFragments,
    GetMetrics,
    ListFragments,
    PeekFragment,
    PromoteFragment,
    RequireFragment,
    SetBudget,
    StoreFragment,
    StoreOptions,
    SweepStale,
)
from stepwell.domain.tiers.model import Tier, TierBudget
from stepwell.domain.tiers.tier_index import FragmentEntry
from stepwell.domain.verdict import Origin
from tests.property.test_tiers import BODIES, COLD, HOT, NAMES, PROJECTS, SCOPES, WARM, Item, Lists, TierMachine, size
from tests.support.domain.world import NOON_MS
from tests.support.model_check import Refusal, content


@dataclass
class Piece(Item):
    """A fragment with what a caller asks for seldom."""

    keep: bool = False
    until_ms: int | None = None
    slide_ms: int | None = None

    def is_over(self, now_ms: int) -> bool:
        return self.until_ms is not None and self.until_ms <= now_ms


@dataclass
class Shelves(Lists):
    """Two more lists, of what is kept: in memory and on disk. No budget of a tier counts them."""

    kept: dict[Tier, list[Item]] = field(default_factory=lambda: {HOT: [], COLD: []})

    def items(self) -> Iterable[Item]:
        return [*super().items(), *self.kept[HOT], *self.kept[COLD]]

    def shelf(self, item: Item) -> list[Item]:
        return next(each for each in (*self.tiers.values(), *self.kept.values()) if item in each)

    def arena_bytes(self) -> int:
        hot = {item.body for item in (*self.tiers[HOT], *self.kept[HOT])}
        warm = {item.body for item in self.tiers[WARM]} - hot
        return size(hot) + sum(self.packed.get(body, len(body)) for body in warm)

    def there(self, project: str, name: str) -> tuple[Tier, Piece] | None:
        """A fragment that is in a list, over or not."""
        for lists in (self.tiers, self.kept):
            for tier, items in lists.items():
                for item in items:
                    if (item.project, item.name) == (project, name):
                        assert isinstance(item, Piece)
                        return tier, item
        return None

    def find(self, project: str, name: str, origin: Origin) -> tuple[Tier, Piece]:
        if origin.projects is not None and project not in origin.projects:
            raise Refusal("OutOfScope")
        found = self.there(project, name)
        if found is None or found[1].is_over(origin.now_ms):
            raise Refusal("NotFound")
        return found

    def present(self, project: str, name: str, origin: Origin) -> Piece | None:
        try:
            return self.find(project, name, origin)[1]
        except Refusal as refusal:
            if str(refusal) != "NotFound":
                raise
            return None

    def apply(self, command: Command[Reply], origin: Origin, revision: int) -> bool:
        match command:
            case RequireFragment(project, name, expected):
                item = self.present(project, name, origin)
                if expected != (item.revision if item else 0):
                    raise Refusal("Conflict")
            case DeleteFragment():
                self.delete(command, origin)
            case PromoteFragment(project, name) | DemoteFragment(project, name) if self.is_kept(project, name, origin):
                self.carry(command, *self.find(project, name, origin), origin)
            case ExpireFragments():
                over = [item for item in self.items() if isinstance(item, Piece) and item.is_over(origin.now_ms)]
                for item in over:
                    self.shelf(item).remove(item)
                return bool(over)
            case PeekFragment(project, name):
                self.find(project, name, origin)
                return False
            case CheckFragment(project, name):
                self.present(project, name, origin)
                return False
            case _:
                return super().apply(command, origin, revision)
        return True

    def is_kept(self, project: str, name: str, origin: Origin) -> bool:
        item = self.present(project, name, origin)
        return item is not None and item.keep

    def carry(self, command: Command[Reply], tier: Tier, item: Piece, origin: Origin) -> None:
        """From memory to disk, or back."""
        target = HOT if isinstance(command, PromoteFragment) else COLD
        if target is not tier and self.fitting(item, target) is target:
            self.move(item, tier, target, origin.now_ms)
            self.enforce(origin.now_ms, item)

    def delete(self, command: DeleteFragment, origin: Origin) -> None:
        item = self.present(command.project, command.fragment_id, origin)
        if item is None and not command.missing_ok:
            raise Refusal("NotFound")
        if command.expected_revision not in {None, item.revision if item else 0}:
            raise Refusal("Conflict")
        if item is not None:
            self.shelf(item).remove(item)

    def store(self, command: StoreFragment, origin: Origin, revision: int) -> None:
        project, name, options = command.project, command.fragment_id, command.options or StoreOptions()
        old = self.present(project, name, origin)
        if command.expected_revision not in {None, old.revision if old else 0}:
            raise Refusal("Conflict")
        body = content(command.body)
        self.moved = []
        if options.unique and self.equals(command, origin):
            return
        bodies = {item.body for item in self.items()}
        if body not in bodies and size(bodies | {body}) > self.budget.bodies_bytes:
            raise Refusal("TierFull")
        if before := self.there(project, name):
            self.shelf(before[1]).remove(before[1])
        self.births += old is None
        until_ms = options.expires_at_ms
        if options.expires_after_ms:
            until_ms = max(until_ms or 0, origin.now_ms + options.expires_after_ms)
        item = Piece(
            project=project,
            name=name,
            body=body,
            tokens=command.tokens,
            revision=revision,
            born=old.born if old else self.births,
            touched_ms=origin.now_ms,
            reads=old.reads if old else 0,
            keep=options.keep,
            until_ms=until_ms,
            slide_ms=options.expires_after_ms,
        )
        (self.kept if item.keep else self.tiers)[self.fitting(item, command.tier)].append(item)
        self.enforce(origin.now_ms, item)

    def equals(self, command: StoreFragment, origin: Origin) -> dict[str, int]:
        """The other fragments of the project with this body, with their revisions."""
        body = content(command.body)
        return {
            item.name: item.revision
            for item in self.items()
            if isinstance(item, Piece)
            and (item.project, item.body) == (command.project, body)
            and item.name != command.fragment_id
            and not item.is_over(origin.now_ms)
        }

    def fitting(self, item: Item, tier: Tier) -> Tier:
        if isinstance(item, Piece) and item.keep:
            return COLD if tier is COLD or len(item.body) > self.live_bytes else HOT
        return super().fitting(item, tier)

    def get(self, tier: Tier, item: Item, now_ms: int) -> bool:
        assert isinstance(item, Piece)
        if item.slide_ms is not None and item.until_ms is not None:
            item.until_ms = max(item.until_ms, now_ms + item.slide_ms)
        if not item.keep:
            kept = {each: [*items] for each, items in self.kept.items()}
            is_promoted = super().get(tier, item, now_ms)
            self.kept = self.kept if is_promoted else kept
            return is_promoted
        self.kept[tier].remove(item)
        self.kept[tier].append(item)
        item.touched_ms = now_ms
        item.reads += 1
        item.reads_here += 1
        return False

    def move(self, item: Item, source: Tier, target: Tier | None, now_ms: int) -> None:
        if not (isinstance(item, Piece) and item.keep):
            super().move(item, source, target, now_ms)
            return
        assert target is not None
        self.kept[source].remove(item)
        self.kept[target].append(item)
        self.moved.append((item.project, item.name, source, target))
        item.touched_ms, item.reads_here = now_ms, 0

    def enforce(self, now_ms: int, spared: Item | None = None, scope: frozenset[str] | None = None) -> None:
        if len(self.kept[HOT]) + len(self.kept[COLD]) > self.budget.kept_entries:
            raise Refusal("TierFull")
        super().enforce(now_ms, spared, scope)

    def make_way(self, now_ms: int, spared: Item | None = None) -> None:
        """What is kept goes to disk when there is nothing else."""
        if any(item is not spared for tier in (WARM, HOT) for item in self.tiers[tier]):
            super().make_way(now_ms, spared)
        else:
            self.move(next(item for item in self.kept[HOT] if item is not spared), HOT, COLD, now_ms)

    def view(self) -> object:
        return super().view(), {
            (tier, is_kept): [
                (i.project, i.name, i.revision, i.touched_ms, i.reads, i.reads_here, i.until_ms, i.slide_ms)
                for i in items
                if isinstance(i, Piece)
            ]
            for is_kept, lists in ((False, self.tiers), (True, self.kept))
            for tier, items in lists.items()
        }

    def seen_in(self, state: State) -> object:
        fragments = state.fragments
        return super().seen_in(state), {
            **{(tier, False): [*map(seen, fragments.oldest(tier))] for tier in Tier},
            **{(tier, True): [*map(seen, fragments.oldest_kept(tier))] for tier in (HOT, COLD)},
        }


def seen(entry: FragmentEntry) -> object:
    row = entry.row
    return (
        row.project,
        row.fragment_id,
        row.revision,
        entry.touched_at_ms,
        entry.access_count,
        entry.accesses_since_move,
        entry.expires_at_ms,
        row.expires_after_ms,
    )


MISSING = 3
"""An upload that no session has."""
SPANS = st.sampled_from([1, 5, 10, 30])
OPTIONS = st.builds(
    StoreOptions,
    keep=st.booleans(),
    expires_at_ms=st.none() | st.none() | SPANS.map(lambda span: NOON_MS + span),
    expires_after_ms=st.none() | st.none() | SPANS,
    unique=st.booleans(),
)
BUDGETS = st.builds(
    TierBudget,
    hot_tokens=st.integers(1, 12),
    warm_entries=st.integers(1, 4),
    cold_entries=st.integers(1, 6),
    kept_entries=st.integers(1, 4),
    bodies_bytes=st.sampled_from([12, 20, 40, 40]),
    arena_bytes=st.sampled_from([1, 9, 12, 15, 18, 22, 26, 1_000]),
    hot_ttl_ms=st.just(10),
    warm_ttl_ms=st.just(20),
    cold_retention_ms=st.just(40),
    promotion_threshold=st.integers(1, 3),
)
REVISIONS = st.integers(0, 12)
STORES = st.builds(
    StoreFragment,
    PROJECTS,
    NAMES,
    BODIES | st.sampled_from([1, 2, MISSING]),
    st.integers(1, 14),
    st.sampled_from(Tier),
    expected_revision=st.sampled_from([*[None] * 6, 0, 1, 3]),
    options=st.none() | OPTIONS | OPTIONS,
)
WRITES: st.SearchStrategy[Write[Reply]] = st.one_of(
    STORES,
    STORES,
    STORES,
    st.builds(PromoteFragment, PROJECTS, NAMES),
    st.builds(DemoteFragment, PROJECTS, NAMES),
    st.builds(DeleteFragment, PROJECTS, NAMES, st.none() | st.none() | REVISIONS, st.booleans()),
    st.builds(RequireFragment, PROJECTS, NAMES, REVISIONS),
    st.builds(EvictLru, st.sampled_from(Tier), st.integers(1, 4)),
    st.builds(SweepStale),
    st.builds(SetBudget, BUDGETS),
)


class OptionMachine(TierMachine):
    """The machine of the tiers, with all options in its stores and with time that moves beyond expiry."""

    model: Shelves

    @initialize(budget=BUDGETS, commands=st.lists(STORES, min_size=4, max_size=12))
    def start(self, budget: TierBudget, commands: list[StoreFragment]) -> None:
        self.begin(Shelves(budget), budget)
        self.store(commands)

    @rule(milliseconds=st.sampled_from([1, 4, 9]))
    def time_passes(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule(commands=st.lists(STORES, min_size=1, max_size=6))
    def store(self, commands: list[StoreFragment]) -> None:
        for command in commands:
            self.store_one(command)

    def store_one(self, command: StoreFragment) -> None:
        """The reply names what was stored, or a fragment with an equal body."""
        is_unique = command.options is not None and command.options.unique and command.body != MISSING
        equals = self.model.equals(command, self.origin()) if is_unique else {}
        reply = self.both(command, self.origin())
        if reply is None:
            return
        assert isinstance(reply, FragmentPlaced)
        assert (reply.note is Note.EQUAL_BODY) == bool(equals)
        assert equals.get(reply.fragment_id, None if equals else reply.revision) == reply.revision
        found = self.model.there(reply.project, reply.fragment_id)
        assert found is not None
        assert reply.tier is found[0]

    @rule(command=WRITES, scope=SCOPES)
    def write(self, command: Write[Reply], scope: frozenset[str] | None) -> None:
        before = self.model.present(*key, self.origin()) if (key := key_of(command)) else None
        reply = self.both(command, self.origin(projects=scope))
        if isinstance(reply, FragmentRemoved):
            assert (reply.tier is None) == (before is None)
        if isinstance(reply, FragmentChecked):
            assert reply.fragment_revision == (before.revision if before else None)

    @rule()
    def expire(self) -> None:
        """All that is over goes, and nothing else."""
        reply = self.both(ExpireFragments(), self.origin())
        assert isinstance(reply, FragmentsMoved)
        assert not reply.more
        assert all(move.target is None for move in reply.moves)

    @rule(project=PROJECTS, name=NAMES, scope=SCOPES)
    def look(self, project: str, name: str, scope: frozenset[str] | None) -> None:
        """To look is no read: it moves no expiry."""
        origin = self.origin(projects=scope)
        peeked = self.both(PeekFragment(project, name), origin)
        checked = self.both(CheckFragment(project, name), origin)
        if peeked is not None:
            assert isinstance(peeked, FragmentFound)
            assert isinstance(checked, FragmentChecked)
            assert checked.fragment_revision == peeked.row.revision

    @rule(commands=st.lists(WRITES, max_size=6))
    def transact(self, commands: list[Write[Reply]]) -> None:
        self.both_at_once(commands, self.origin())

    @rule(commands=st.lists(WRITES, max_size=6))
    def abort(self, commands: list[Write[Reply]]) -> None:
        self.both_at_once([*commands, RequireFragment("p", "nothing", 1)], self.origin())

    @rule(scope=SCOPES)
    def measure(self, scope: frozenset[str] | None) -> None:
        origin = self.origin(projects=scope)
        reply = self.both(GetMetrics(), origin)
        assert isinstance(reply, TierMetrics)
        for tier, usage in ((HOT, reply.hot), (WARM, reply.warm), (COLD, reply.cold)):
            assert usage == usage_of(self.model.visible(tier, origin))
        kept = [
            [item for item in self.model.kept[tier] if scope is None or item.project in scope] for tier in (HOT, COLD)
        ]
        assert reply.kept == usage_of([*kept[0], *kept[1]])
        own = reply.hot.bytes + reply.warm.bytes + size(item.body for item in kept[0])
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
        items = [item for item in self.model.items() if isinstance(item, Piece) and not item.is_over(self.now_ms)]
        assert names == [
            name for _, name in sorted((item.born, item.name) for item in items if item.project == project)
        ]


def key_of(command: Write[Reply]) -> tuple[str, str] | None:
    match command:
        case DeleteFragment(project, name) | RequireFragment(project, name):
            return project, name
        case _:
            return None


def usage_of(items: list[Item]) -> TierUsage:
    return TierUsage(len(items), sum(item.tokens for item in items), size(item.body for item in items))


TestTierOptions = OptionMachine.TestCase
TestTierOptions.settings = settings(max_examples=2 * settings().max_examples)
