"""A doubly linked ring in order of use: oldest first, O(1) to touch, and exact to undo.

A link that is taken out keeps its neighbours. Putting it back is then one step, provided that whatever was
done since has been undone in reverse order: Knuth's dancing links. It is why a transaction that fails half-way
leaves even the order of eviction as it was, which an `OrderedDict` could not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class Link(Generic[T]):
    """A place in a ring. The ring's own link, its hinge, is the only one without a value."""

    __slots__ = ("after", "before", "value")

    def __init__(self, value: T | None, before: Link[T], after: Link[T]) -> None:
        self.value = value
        self.before = before
        self.after = after

    def take_out(self) -> None:
        """Leave the ring, remembering the place."""
        self.before.after = self.after
        self.after.before = self.before

    def put_back(self) -> None:
        """Return to the remembered place. Only in reverse order of what happened since."""
        self.before.after = self
        self.after.before = self


class Ring(Generic[T]):
    """Links from the least to the most recently used."""

    __slots__ = ("_hinge",)

    def __init__(self) -> None:
        nowhere = cast("Link[T]", None)
        self._hinge: Link[T] = Link(None, nowhere, nowhere)
        self._hinge.before = self._hinge.after = self._hinge

    def append(self, value: T) -> Link[T]:
        """Make `value` the most recently used; its place."""
        hinge = self._hinge
        last = hinge.before
        link = Link(value, last, hinge)
        last.after = hinge.before = link
        return link

    def touch(self, link: Link[T]) -> None:
        """Make a link of this ring the most recently used."""
        before, after = link.before, link.after
        before.after = after
        after.before = before
        hinge = self._hinge
        last = hinge.before
        link.before = last
        link.after = hinge
        last.after = hinge.before = link

    def __iter__(self) -> Iterator[T]:
        link = self._hinge.after
        while link.value is not None:
            yield link.value
            link = link.after
