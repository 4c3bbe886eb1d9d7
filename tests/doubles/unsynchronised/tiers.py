"""The hot, warm and cold tiers as three dicts that all callers change."""

from __future__ import annotations

import time

from stepwell.client.api.fragments import StoredFragment, body_bytes
from stepwell.client.session.tokens import counter
from stepwell.domain.replies import FragmentPlaced, FragmentsMoved, Move, Note, TierMetrics, TierUsage
from stepwell.domain.tiers.body_refs import Digest
from stepwell.domain.tiers.model import ABOVE, BELOW, Fragment, FragmentRow, Tier, TierBudget
from stepwell.errors import InvalidArgument, NotFound
from stepwell.protocol.handles import Handle
from tests.doubles.unsynchronised.seam import Seam, no_seam

Key = tuple[str, str]


class _Item:
    """A fragment as all callers hold it: the same mutable object."""

    def __init__(self, fragment: Fragment, used: int) -> None:
        self.fragment = fragment
        self.body = bytes(body_bytes(fragment))
        self.tokens = counter().count(self.body) if fragment.tokens is None else fragment.tokens
        self.digest = Digest.of(self.body)
        self.created_at_ms = self.last_accessed_ms = time.time_ns() // 1_000_000
        self.access_count = 0
        self.revision = self.used = used


class ContextTierService:
    """A service for single-threaded use, which nothing enforces."""

    def __init__(self, *, budget: TierBudget | None = None, seam: Seam = no_seam) -> None:
        self._budget = budget or TierBudget()
        self._seam = seam
        self._hot: dict[Key, _Item] = {}
        self._warm: dict[Key, _Item] = {}
        self._cold: dict[Key, _Item] = {}
        self._uses = 0

    def store(self, fragment: Fragment, *, tier: Tier = Tier.HOT, unique: bool = False) -> FragmentPlaced:
        """Insert or replace, and then, in a second step, enforce the budget. With `unique`, look for an equal first."""
        key = _key(fragment.project, fragment.fragment_id)
        item = _Item(fragment, self._use())
        if unique:
            for other_tier in Tier:
                for name, each in self._dict(other_tier).items():
                    if (name[0], each.digest) == (key[0], item.digest) and name != key:
                        return _placed(name, each, other_tier, Note.EQUAL_BODY)
            self._seam("store: no equal body, not stored")
        for other in Tier:
            self._dict(other).pop(key, None)
        self._seam("store: taken out, not put in")
        self._dict(tier)[key] = item
        self._seam("store: inserted, not enforced")
        self._enforce_hot_budget()
        return _placed(key, item, tier)

    def get(self, fragment_id: str, *, project: str | None = None) -> StoredFragment:
        key = _key(project, fragment_id)
        tier = self._find(key)
        self._seam("get: found, not read")
        item = self._dict(tier)[key]
        item.used = self._use()
        item.access_count += 1
        item.last_accessed_ms = time.time_ns() // 1_000_000
        return _stored(key, item, tier)

    def promote(self, fragment_id: str, *, project: str | None = None) -> FragmentPlaced:
        """Remove the fragment from one dict, and later put it into another."""
        return self._move("promote", _key(project, fragment_id), ABOVE)

    def demote(self, fragment_id: str, *, project: str | None = None) -> FragmentPlaced:
        return self._move("demote", _key(project, fragment_id), BELOW)

    def evict_lru(self, tier: Tier = Tier.HOT, count: int = 1) -> FragmentsMoved:
        victims = sorted(self._dict(tier).items(), key=_last_used)[:count]
        self._seam("evict_lru: chosen, not moved")
        target = BELOW.get(tier)
        for key, item in victims:
            del self._dict(tier)[key]
            self._seam("evict_lru: taken out, not put in")
            if target is not None:
                self._dict(target)[key] = item
        return FragmentsMoved(tuple(Move(*key, tier, target) for key, _ in victims))

    def metrics(self) -> TierMetrics:
        """Count one dict after the other: a fragment that moves meanwhile is counted twice, or not at all."""
        hot, warm, cold = (_usage([*self._dict(tier).values()]) for tier in Tier)
        return TierMetrics(hot, warm, cold, self._budget, hot.bytes + warm.bytes + cold.bytes, hot.bytes + warm.bytes)

    def _enforce_hot_budget(self) -> None:
        """Read hot, decide what stays, and write that back: a fragment that was stored in between is lost."""
        kept: dict[Key, _Item] = {}
        overflow: dict[Key, _Item] = {}
        room = self._budget.hot_tokens
        for key, item in sorted(self._hot.items(), key=_last_used, reverse=True):
            if item.tokens <= room:
                room -= item.tokens
                kept[key] = item
            else:
                overflow[key] = item
        if not overflow:
            return
        self._seam("enforce_hot_budget: read, not written")
        self._hot = kept
        self._warm.update(overflow)

    def _move(self, operation: str, key: Key, direction: dict[Tier, Tier]) -> FragmentPlaced:
        source = self._find(key)
        target = direction.get(source)
        if target is None:
            return _placed(key, self._dict(source)[key], source, Note.ALREADY_THERE)
        self._seam(f"{operation}: found, not taken out")
        item = self._dict(source).pop(key)
        self._seam(f"{operation}: taken out, not put in")
        self._dict(target)[key] = item
        item.used = self._use()
        self._enforce_hot_budget()
        return _placed(key, item, target)

    def _find(self, key: Key) -> Tier:
        for tier in Tier:
            if key in self._dict(tier):
                return tier
        raise NotFound(f"project {key[0]!r} has no fragment {key[1]!r}", project=key[0], fragment_id=key[1])

    def _dict(self, tier: Tier) -> dict[Key, _Item]:
        match tier:
            case Tier.HOT:
                return self._hot
            case Tier.WARM:
                return self._warm
            case Tier.COLD:
                return self._cold

    def _use(self) -> int:
        self._uses += 1
        return self._uses


def _key(project: str | None, fragment_id: str) -> Key:
    if project is None:
        raise InvalidArgument("name a project")
    return project, fragment_id


def _last_used(pair: tuple[Key, _Item]) -> int:
    return pair[1].used


def _usage(items: list[_Item]) -> TierUsage:
    return TierUsage(len(items), sum(item.tokens for item in items), sum(len(item.body) for item in items))


def _placed(key: Key, item: _Item, tier: Tier, note: Note = Note.PLACED) -> FragmentPlaced:
    return FragmentPlaced(*key, tier, item.tokens, item.revision, item.digest.value, note)


def _stored(key: Key, item: _Item, tier: Tier) -> StoredFragment:
    project, fragment_id = key
    row = FragmentRow(
        project=project,
        fragment_id=fragment_id,
        source=item.fragment.source,
        kind=item.fragment.kind,
        detail_depth=item.fragment.detail_depth,
        tokens=item.tokens,
        size=len(item.body),
        digest=item.digest.value,
        tier=tier,
        placed_at_ms=item.created_at_ms,
        created_at_ms=item.created_at_ms,
        revision=item.revision,
        serial=item.revision,
        metadata=item.fragment.metadata,
    )
    handle = Handle(segment=0, offset=0, size=row.size)
    return StoredFragment(row, handle, memoryview(item.body), item.last_accessed_ms, item.access_count)
