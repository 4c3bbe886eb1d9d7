"""What is near to what in a project: the parts of a source in their order, and what refers to what.

Kept are the order of each source, and who is called or says which word. What a reference means is found out when
somebody follows it, so that a fragment that comes or goes changes its own entries and nobody else's.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from math import exp2
from typing import Final, TypeVar

from msgspec import Struct

from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import Outline, is_content
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
from stepwell.strategies.protocol import SeenFragment

HALF_TOKENS: Final = 200
"""From middle to middle of two parts: then one is worth half as much to the other. Their own size counts no more than
that, because the next one is the next one, however long."""
CLOSENESS_BY_KIND: Final = {"turn": 1.0}
CLOSENESS: Final = 0.3
"""What stands beside something is worth to it, by its kind: a turn is nothing without those before and after it, a
definition is made to be read alone."""
FAR_TOKENS: Final = 6 * HALF_TOKENS  # in between: then they have nothing to do with each other
PLACES_PER_BREADTH: Final = 4  # to each side: what stands beside it is nearer than what it refers to
REFERENCE_WEIGHT: Final = 0.5  # what a fragment refers to is worth half of it, if it is clear what that is
REFERRER_WEIGHT: Final = 0.3  # who refers to it: there may be many, and it does not need them
TARGETS_MAX: Final = 4  # a name that more have means none of them
REFERRERS_MAX: Final = 32  # a word that more say is no reference to anything in particular

K = TypeVar("K", str, tuple[str, ...])
M = TypeVar("M", int, str)

Place = tuple[int, int, int]
"""The order in its source, the serial, the slot."""
_UNORDERED: Final = 1 << 40  # behind those that have an order


class Neighbour(Struct, frozen=True, gc=False):
    """A fragment that is near to another one, what that is worth, and why."""

    slot: int
    weight: float
    to: int  # the slot of the other one
    reason: str = ""
    places: int = 0  # how many after it; before it, if negative


class ProximityIndex(SlotIndex):
    """Of one project's fragments. It takes about 0.8 kB for each that has ten references."""

    def __init__(self, project: str) -> None:
        super().__init__(project)
        self._by_source: dict[str, list[Place]] = {}
        """By source."""
        self._by_stem: dict[str, set[str]] = {}
        """Sources by their last word."""
        self._by_name: dict[tuple[str, ...], set[int]] = {}
        """Slots by their names, and by the last words of these, whatever they are in."""
        self._by_reference_word: dict[str, set[int]] = {}
        """Slots by the last words of their references."""
        self._linked_count = 0
        """How many have others in their source, and how many refer to anything."""
        self._content_count = 0
        """How many do not stand for a file."""

    @property
    def linked_share(self) -> float:
        """About which share of the fragments is near to anything."""
        return min(1.0, self._linked_count / self._content_count) if self._content_count else 0.0

    def slot(self, fragment_id: str) -> int | None:
        """Where a fragment is, unless it stands for a file."""
        slot = self._slots.get(fragment_id)
        return slot if slot is not None and is_content(self.at(slot)) else None

    def parts(self, source: str) -> list[int]:
        """The slots of a source, in its order."""
        return [slot for *_, slot in self._by_source.get(source, ())]

    def files(self, name: str) -> list[str]:
        """The source of that name or, if there is none, those whose path ends in it."""
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
        """What is near: beside it, and the `breadth` best that it refers to or that refer to it."""
        found: dict[int, Neighbour] = {}
        related = sorted(self._related(slot), key=lambda each: (-each.weight, self.at(each.slot).fragment_id))
        for each in (*self._adjacent(slot, PLACES_PER_BREADTH * breadth), *related[:breadth]):
            known = found.get(each.slot)
            if each.slot != slot and (known is None or each.weight > known.weight):
                found[each.slot] = each
        return list(found.values())

    def reason(self, neighbour: Neighbour) -> str:
        """Why it is one, in a few words."""
        other = self.at(neighbour.to)
        if neighbour.reason:
            return f"{neighbour.reason} {other.fragment_id}"
        count = abs(neighbour.places)
        what = "turn" if other.kind == "turn" else "part"
        where = "after" if neighbour.places > 0 else "before"
        return f"{count} {what}{'s' if count > 1 else ''} {where} {other.fragment_id}"

    def _adjacent(self, slot: int, places_max: int) -> Iterator[Neighbour]:
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
        row = self.at(slot)
        for ref in Outline.of(row.metadata).refs:
            targets = self.targets_of(ref)
            for target in targets:
                yield Neighbour(target, REFERENCE_WEIGHT / len(targets), slot, "referred to by")
        for referrer, ref in self._referrers(slot):
            targets = self.targets_of(ref)
            if slot in targets:
                yield Neighbour(referrer, REFERRER_WEIGHT / len(targets), slot, "refers to")

    def _referrers(self, slot: int) -> Iterator[tuple[int, str]]:
        """Who says a word that this one is called by, and in which reference."""
        row = self.at(slot)
        words = {name[-1] for name in names(Outline.of(row.metadata).name)}
        if row.source and self._beginning(row.source) == [slot]:
            words.update(stems(row.source))
        for word in sorted(words):
            saying = self._by_reference_word.get(word, ())
            for referrer in saying if len(saying) <= REFERRERS_MAX else ():
                for ref in Outline.of(self.at(referrer).metadata).refs:
                    if last_word(ref) == word:
                        yield referrer, ref

    def targets_of(self, ref: str) -> list[int]:
        """The fragments that a reference means, in any order; none if that is not clear.

        A file is meant by its beginning.
        """
        found: list[int]
        match parse_reference(ref):
            case PathReference(path=path, anchor=anchor):
                found = self._in_file(path, anchor)
            case DottedReference(parts=parts):
                found = self._in_module(parts) or self._parts_anywhere(parts) or self._modules(parts)
        return found if len(found) <= TARGETS_MAX else []

    def _in_file(self, path: str, anchor: str) -> list[int]:
        files = self.files(path)
        parts = [slot for source in files for slot in self.parts(source)] if anchor else []
        titled = [slot for slot in parts if _is_titled(self.at(slot), anchor)]
        return titled or [slot for source in files for slot in self._beginning(source)]

    def _in_module(self, parts: tuple[str, ...]) -> list[int]:
        """A name in a module: the longest module that there is, and in it the name, or else its last word."""
        for length in range(len(parts) - 1, 0, -1):
            for name in (parts[length:], _last_word_key(parts)):
                found = [slot for source in self._sources(parts[:length]) for slot in self._parts_named(source, name)]
                if found:
                    return found
        return []

    def _parts_named(self, source: str, name: tuple[str, ...]) -> list[int]:
        """The parts of a source that are called so; looked for among whichever are fewer."""
        called, places = self._by_name.get(name, set[int]()), self._by_source[source]
        if len(called) <= len(places):
            return [slot for slot in called if self.at(slot).source == source]
        return [slot for *_, slot in places if slot in called]

    def _parts_anywhere(self, parts: tuple[str, ...]) -> list[int]:
        """By all of the name, or else by its last word."""
        called = self._by_name.get(parts) or self._by_name.get(_last_word_key(parts), set[int]())
        return [*called] if len(called) <= TARGETS_MAX else []

    def _modules(self, parts: tuple[str, ...]) -> list[int]:
        return [slot for source in self._sources(parts) for slot in self._beginning(source)]

    def _sources(self, parts: tuple[str, ...]) -> set[str]:
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
        outline = Outline.of(row.metadata)
        self._content_count += 1
        if row.source or outline.order is not None:
            places = self._by_source.setdefault(row.source, [])
            for word in () if places else stems(row.source):
                self._by_stem.setdefault(word, set()).add(row.source)
            insort(places, _place(row, slot))
            self._linked_count += _newly_linked(len(places))
        self._linked_count += bool(outline.refs)
        for name in names(outline.name):
            for known_as in (name, _last_word_key(name)):
                self._by_name.setdefault(known_as, set()).add(slot)
        for ref in outline.refs:
            self._by_reference_word.setdefault(last_word(ref), set()).add(slot)

    def _clear_slot(self, slot: int) -> None:
        row = self.at(slot)
        if not is_content(row):
            return
        outline = Outline.of(row.metadata)
        self._content_count -= 1
        if row.source or outline.order is not None:
            places = self._by_source[row.source]
            self._linked_count -= _newly_linked(len(places))
            del places[bisect_left(places, _place(row, slot))]
            if not places:
                del self._by_source[row.source]
                for word in stems(row.source):
                    _discard(self._by_stem, word, row.source)
        self._linked_count -= bool(outline.refs)
        for name in names(outline.name):
            for known_as in (name, _last_word_key(name)):
                _discard(self._by_name, known_as, slot)
        for ref in outline.refs:
            _discard(self._by_reference_word, last_word(ref), slot)


def _place(row: FragmentRow, slot: int) -> Place:
    order = Outline.of(row.metadata).order
    return _UNORDERED if order is None else order, row.serial, slot


def _names(row: FragmentRow) -> list[tuple[str, ...]]:
    return names(Outline.of(row.metadata).name)


def _last_word_key(name: tuple[str, ...]) -> tuple[str, ...]:
    """Its last word, told apart from a name that is no longer than that."""
    return ("", *name[-1:])


def _is_titled(row: FragmentRow, anchor: str) -> bool:
    return any(slug(name[-1]) == anchor.lower() for name in _names(row))


def _newly_linked(parts: int) -> int:
    """How many more are beside another one, if a source has so many parts now and had one less."""
    return {1: 0, 2: 2}.get(parts, 1)


def _discard(members: dict[K, set[M]], key: K, member: M) -> None:
    """A set that becomes empty goes with it."""
    found = members.get(key)
    if found is not None:
        found.discard(member)
        if not found:
            del members[key]
