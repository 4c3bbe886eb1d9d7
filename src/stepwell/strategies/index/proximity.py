"""Nearness of the fragments of a project: the order of a source's parts, and references between fragments.

The index has the order of each source's parts, and dicts from words to the fragments that are named by them or refer to
them. References are texts, and they are resolved at query time. So a fragment that is stored or deleted changes its own
entries only, although it may change what the references of others mean.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from math import exp2
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import is_content, order_of, refs_of
from stepwell.strategies.index.incremental import SlotIndex
from stepwell.strategies.index.references import (
    DottedReference,
    PathReference,
    is_module,
    last_word,
    names,
    parse_reference,
    slug,
    stems,
)
from stepwell.strategies.index.slot_sets import SlotSets
from stepwell.strategies.index.snapshot import IndexSnapshot, RowPlaces, is_within, require
from stepwell.strategies.protocol import SeenFragment

HALF_TOKENS: Final = 200
"""The distance, in tokens from middle to middle of two parts, at which one is worth half as much to the other.

Their own sizes count at most this much, because the next part is the next part, however long it is.
"""
CLOSENESS_BY_KIND: Final = {"turn": 1.0}
"""The weight of adjacent parts by kind: a turn of a conversation needs the turns before and after it."""
CLOSENESS: Final = 0.3
"""The weight of adjacent parts of any other kind: a definition is written to be read alone."""
FAR_TOKENS: Final = 6 * HALF_TOKENS  # between two parts: beyond it, their weight would be below 2 %
PLACES_PER_BREADTH: Final = 4  # parts to each side: adjacent parts are nearer than references
REFERENCE_WEIGHT: Final = 0.5  # of a fragment that is referred to, if the reference is unambiguous
REFERRER_WEIGHT: Final = 0.3  # of a fragment that refers to this one, which this one can be read without
TARGETS_MAX: Final = 4  # a reference with more targets is ambiguous, and has none
REFERRERS_MAX: Final = 32  # a word in more references is a common word, and says nothing

Place = tuple[int, int, int]
"""The sort key of a part in its source: the declared order, the serial, the slot."""
_UNORDERED: Final = 1 << 40  # the order of a part without one: behind all others


class Neighbour(Struct, frozen=True, gc=False):
    """A fragment near to another one: its slot, its weight, and the reason.

    `to` is the slot of the other one. `places` is how many parts it stands after the other one (before it, if
    negative), and 0 for a reference, whose `reason` is a text.
    """

    slot: int
    weight: float
    to: int
    reason: str = ""
    places: int = 0


class _Entries(Struct, frozen=True, array_like=True):
    """The entries of an index, as a snapshot has them: the attributes of `ProximityIndex`, by name."""

    by_source: dict[str, list[Place]]
    by_stem: dict[str, set[str]]
    linked_count: int
    content_count: int


_encoder: Final = Encoder()
_decoder: Final = Decoder(_Entries)


class ProximityIndex(SlotIndex):
    """The order, names and references of one project's fragments. About 0.8 kB for a fragment with ten references.

    The cache of a worker owns it, and one thread uses it. A fragment changes its own entries only; references are
    resolved by each query, so they are never stale. A listing of a file has a row here but no entries: its parts stand
    for it.
    """

    def __init__(self, project: str) -> None:
        super().__init__(project)
        self._by_source: dict[str, list[Place]] = {}
        """The parts of each source, in order."""
        self._by_stem: dict[str, set[str]] = {}
        """The sources with each last word of a path."""
        self._by_name: Final = SlotSets()
        """The slots of each full name, and of each last word of a name (as `_full_key` and `_last_word_key`)."""
        self._by_reference_word: Final = SlotSets()
        """The slots that refer to something with each last word."""
        self._linked_count = 0
        """The number of fragments with others in their source, plus the number of fragments with references."""
        self._content_count = 0
        """The number of fragments that are no listings of files."""

    @property
    def linked_share(self) -> float:
        """The approximate share of fragments that are near to any other."""
        return min(1.0, self._linked_count / self._content_count) if self._content_count else 0.0

    def slot(self, fragment_id: str) -> int | None:
        """Return the slot of a fragment; None if there is none, or if it is a listing of a file."""
        slot = self._slots.get(fragment_id)
        return slot if slot is not None and is_content(self.at(slot)) else None

    def parts(self, source: str) -> list[int]:
        """Return the slots of a source's parts, in order."""
        return [slot for *_, slot in self._by_source.get(source, ())]

    def files(self, name: str) -> list[str]:
        """Return the source of that name or, if there is none, all sources whose paths end in it."""
        if name in self._by_source:
            return [name]
        match parse_reference(name):
            case PathReference(path=path, anchor=""):
                alike = self._by_stem.get(stems(path)[0], ())
                return sorted(source for source in alike if f"/{source}".endswith(f"/{path}"))
            case _:
                return []

    def _beginning(self, source: str) -> list[int]:
        return [slot for *_, slot in self._by_source.get(source, ())[:1]]

    def neighbours_of(self, slot: int, breadth: int) -> list[Neighbour]:
        """Return the parts beside a fragment, and the `breadth` best of its references and referrers.

        A fragment that is near for several reasons is returned once, with the largest weight.
        """
        found: dict[int, Neighbour] = {}
        related = sorted(self._related(slot), key=lambda each: (-each.weight, self.at(each.slot).fragment_id))
        for each in (*self._adjacent(slot, PLACES_PER_BREADTH * breadth), *related[:breadth]):
            known = found.get(each.slot)
            if each.slot != slot and (known is None or each.weight > known.weight):
                found[each.slot] = each
        return list(found.values())

    def reason(self, neighbour: Neighbour) -> str:
        """Return why a fragment is a neighbour, in a few words."""
        other = self.at(neighbour.to)
        if neighbour.reason:
            return f"{neighbour.reason} {other.fragment_id}"
        count = abs(neighbour.places)
        what = "turn" if other.kind == "turn" else "part"
        where = "after" if neighbour.places > 0 else "before"
        return f"{count} {what}{'s' if count > 1 else ''} {where} {other.fragment_id}"

    def _adjacent(self, slot: int, places_max: int) -> Iterator[Neighbour]:
        """Yield the parts after and before a fragment in its source, with weights that fall with the distance."""
        row = self.at(slot)
        places = self._by_source.get(row.source, [])
        middle = bisect_left(places, _place(row, slot))
        closeness = CLOSENESS_BY_KIND.get(row.kind, CLOSENESS)
        for step in (1, -1):
            between = 0
            for at in range(1, places_max + 1):
                place = middle + step * at
                if not 0 <= place < len(places) or between > FAR_TOKENS:
                    break
                other = places[place][2]
                tokens = self.at(other).tokens
                distance = between + min(HALF_TOKENS, (row.tokens + tokens) / 2)
                weight = closeness * exp2(-distance / HALF_TOKENS)
                yield Neighbour(other, weight, slot, places=step * at)
                between += tokens

    def _related(self, slot: int) -> Iterator[Neighbour]:
        """Yield the targets of a fragment's references, and the fragments that refer to it.

        A reference with several targets is divided among them.
        """
        row = self.at(slot)
        for ref in refs_of(row.metadata):
            targets = self.targets_of(ref)
            for target in targets:
                yield Neighbour(target, REFERENCE_WEIGHT / len(targets), slot, "referred to by")
        for referrer, ref in self._referrers(slot):
            targets = self.targets_of(ref)
            if slot in targets:
                yield Neighbour(referrer, REFERRER_WEIGHT / len(targets), slot, "refers to")

    def _referrers(self, slot: int) -> Iterator[tuple[int, str]]:
        """Yield the fragments that mention a name of this one, each with the reference that does so.

        The beginning of a file is also found by the name of the file.
        """
        row = self.at(slot)
        words = {name[-1] for name in _names(row)}
        if row.source and self._beginning(row.source) == [slot]:
            words.update(stems(row.source))
        for word in sorted(words):
            referrers = self._by_reference_word.get(word)
            for referrer in referrers if len(referrers) <= REFERRERS_MAX else ():
                for ref in refs_of(self.at(referrer).metadata):
                    if last_word(ref) == word:
                        yield referrer, ref

    def targets_of(self, ref: str) -> list[int]:
        """Return the slots that a reference means, in any order; none if it is ambiguous.

        A reference to a file means its first part. A dotted name is looked up as a name in a module, then as a name
        anywhere, then as a module.
        """
        found: list[int]
        match parse_reference(ref):
            case PathReference(path=path, anchor=anchor):
                found = self._in_file(path, anchor)
            case DottedReference(parts=parts):
                found = self._in_module(parts) or self._parts_anywhere(parts) or self._modules(parts)
        return found if len(found) <= TARGETS_MAX else []

    def _in_file(self, path: str, anchor: str) -> list[int]:
        """Return the parts under the heading that the anchor names; without one, the first part of the file."""
        files = self.files(path)
        parts = [slot for source in files for slot in self.parts(source)] if anchor else []
        titled = [slot for slot in parts if _is_titled(self.at(slot), anchor)]
        return titled or [slot for source in files for slot in self._beginning(source)]

    def _in_module(self, parts: tuple[str, ...]) -> list[int]:
        """Return the parts that a dotted name means as a name in a module.

        The longest module that exists wins; in it, the full name is tried before its last word.
        """
        for length in range(len(parts) - 1, 0, -1):
            for key in (_full_key(parts[length:]), _last_word_key(parts)):
                found = [slot for source in self._sources(parts[:length]) for slot in self._parts_named(source, key)]
                if found:
                    return found
        return []

    def _parts_named(self, source: str, key: str) -> list[int]:
        """Return the parts of a source that have a name, by its key. The smaller of both sets is searched."""
        called, places = self._by_name.get(key), self._by_source[source]
        if len(called) <= len(places):
            return [slot for slot in called if self.at(slot).source == source]
        return [slot for *_, slot in places if slot in called]

    def _parts_anywhere(self, parts: tuple[str, ...]) -> list[int]:
        """Return the parts of any source with the full name or, if there are none, with its last word."""
        called = self._by_name.get(_full_key(parts)) or self._by_name.get(_last_word_key(parts))
        return [*called] if len(called) <= TARGETS_MAX else []

    def _modules(self, parts: tuple[str, ...]) -> list[int]:
        """Return the first part of each module that a dotted name means."""
        return [slot for source in self._sources(parts) for slot in self._beginning(source)]

    def _sources(self, parts: tuple[str, ...]) -> set[str]:
        """Return the sources that are modules of a dotted name."""
        candidates = self._by_stem.get(parts[-1], ()) if parts else ()
        return {source for source in candidates if is_module(source, parts)}

    def _is_unaffected_by(self, slot: int, row: FragmentRow) -> bool:
        before = self.at(slot)
        return (before.source, before.kind, before.serial, before.metadata) == (
            row.source,
            row.kind,
            row.serial,
            row.metadata,
        )

    def _fill_slot(self, slot: int, fragment: SeenFragment) -> None:
        row = fragment.row
        if not is_content(row):
            return
        order, refs = order_of(row.metadata), refs_of(row.metadata)
        self._content_count += 1
        if row.source or order is not None:
            places = self._by_source.setdefault(row.source, [])
            for word in () if places else stems(row.source):
                self._by_stem.setdefault(word, set()).add(row.source)
            insort(places, _place(row, slot))
            self._linked_count += _newly_linked(len(places))
        self._linked_count += bool(refs)
        for name in _names(row):
            for known_as in (_full_key(name), _last_word_key(name)):
                self._by_name.add(known_as, slot)
        for ref in refs:
            self._by_reference_word.add(last_word(ref), slot)

    def _clear_slot(self, slot: int) -> None:
        row = self.at(slot)
        if not is_content(row):
            return
        order, refs = order_of(row.metadata), refs_of(row.metadata)
        self._content_count -= 1
        if row.source or order is not None:
            places = self._by_source[row.source]
            self._linked_count -= _newly_linked(len(places))
            del places[bisect_left(places, _place(row, slot))]
            if not places:
                del self._by_source[row.source]
                for word in stems(row.source):
                    _discard(self._by_stem, word, row.source)
        self._linked_count -= bool(refs)
        for name in _names(row):
            for known_as in (_full_key(name), _last_word_key(name)):
                self._by_name.discard(known_as, slot)
        for ref in refs:
            self._by_reference_word.discard(last_word(ref), slot)

    def snapshot(self, places: Mapping[str, int]) -> IndexSnapshot:
        entries = _Entries(self._by_source, self._by_stem, self._linked_count, self._content_count)
        arrays = dict(super().snapshot(places).arrays)
        for name, sets in self._slot_sets().items():
            arrays |= {f"{name}.{part}": array for part, array in sets.arrays().items()}
        return IndexSnapshot(arrays, _encoder.encode(entries))

    def _restore(self, snapshot: IndexSnapshot, places: RowPlaces) -> None:
        super()._restore(snapshot, places)
        entries = _decoder.decode(snapshot.values)
        self._by_source, self._by_stem = entries.by_source, entries.by_stem
        self._linked_count, self._content_count = entries.linked_count, entries.content_count
        for name, sets in self._slot_sets().items():
            prefix = f"{name}."
            found = {key.removeprefix(prefix): each for key, each in snapshot.arrays.items() if key.startswith(prefix)}
            sets.restore(found, len(self._rows))
        placed = [slot for each in self._by_source.values() for *_, slot in each]
        require(is_within(np.array(placed, dtype=np.int64), 0, len(self._rows)), "each part is a fragment")

    def _slot_sets(self) -> dict[str, SlotSets]:
        """Return the sets of slots, by the names that their arrays have in a snapshot."""
        return {"names": self._by_name, "references": self._by_reference_word}


def _place(row: FragmentRow, slot: int) -> Place:
    order = order_of(row.metadata)
    return _UNORDERED if order is None else order, row.serial, slot


def _names(row: FragmentRow) -> list[tuple[str, ...]]:
    return names(row.metadata.get("name", ""))


def _full_key(name: tuple[str, ...]) -> str:
    """Return the key of a full name."""
    return "\0".join(name)


def _last_word_key(name: tuple[str, ...]) -> str:
    """Return the key of a name's last word. It differs from the key of a name that has only that word."""
    return f"\0{name[-1]}" if name else "\0"


def _is_titled(row: FragmentRow, anchor: str) -> bool:
    return any(slug(name[-1]) == anchor.lower() for name in _names(row))


def _newly_linked(parts: int) -> int:
    """Return how many more parts have a neighbour when a source grows to so many parts.

    The first part has none. The second part links both; each further part links itself.
    """
    return {1: 0, 2: 2}.get(parts, 1)


def _discard(members: dict[str, set[str]], key: str, member: str) -> None:
    """Remove a member from the set of a key, and the set if it becomes empty."""
    found = members.get(key)
    if found is not None:
        found.discard(member)
        if not found:
            del members[key]
