"""Doubly linked rings in order of use: oldest first, O(1) to touch, and exact to undo.

A member that is taken out keeps its neighbours. Putting it back is then one step, provided that whatever was
done since has been undone in reverse order: Knuth's dancing links. It is why a transaction that fails half-way
leaves even the order of eviction as it was, which an `OrderedDict` could not.

The links are in the members themselves, each of which is in two rings at once. The two kinds of ring are the same but
for the links that they follow: these cannot be a parameter without every step paying for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, Self, TypeVar, cast


class LruNode:
    """Has a place in a `LruList`, and one in an `InnerLruList`. A ring's own member, its hinge, is nothing else."""

    __slots__ = ("after", "before", "inner_after", "inner_before")

    after: Self
    before: Self
    inner_after: Self
    inner_before: Self


M = TypeVar("M", bound=LruNode)


class LruList(Generic[M]):
    """Members from the least to the most recently used."""

    __slots__ = ("_hinge",)

    def __init__(self) -> None:
        self._hinge = hinge = cast("M", LruNode())
        hinge.before = hinge.after = hinge

    def extend(self, members: Iterable[M]) -> None:
        """Make those who are in no ring the most recently used of this one, the last of them the most."""
        hinge = self._hinge
        last = hinge.before
        for member in members:
            member.before = last
            last.after = member
            last = member
        last.after = hinge
        hinge.before = last

    def touch(self, member: M) -> None:
        """Make a member of this ring the most recently used."""
        before, after = member.before, member.after
        before.after = after
        after.before = before
        hinge = self._hinge
        last = member.before = hinge.before
        member.after = hinge
        last.after = hinge.before = member

    def take_out(self, member: M) -> None:
        """Have a member leave, remembering its place."""
        member.before.after = member.after
        member.after.before = member.before

    def put_back(self, member: M) -> None:
        """Have it return to the remembered place. Only in reverse order of what happened since."""
        member.before.after = member.after.before = member

    def __iter__(self) -> Iterator[M]:
        hinge = self._hinge
        member = hinge.after
        while member is not hinge:
            yield member
            member = member.after


class InnerLruList(Generic[M]):
    """The same, along the other links."""

    __slots__ = ("_hinge",)

    def __init__(self) -> None:
        self._hinge = hinge = cast("M", LruNode())
        hinge.inner_before = hinge.inner_after = hinge

    def extend(self, members: Iterable[M]) -> None:
        """Make those who are in no ring the most recently used of this one, the last of them the most."""
        hinge = self._hinge
        last = hinge.inner_before
        for member in members:
            member.inner_before = last
            last.inner_after = member
            last = member
        last.inner_after = hinge
        hinge.inner_before = last

    def touch(self, member: M) -> None:
        """Make a member of this ring the most recently used."""
        before, after = member.inner_before, member.inner_after
        before.inner_after = after
        after.inner_before = before
        hinge = self._hinge
        last = member.inner_before = hinge.inner_before
        member.inner_after = hinge
        last.inner_after = hinge.inner_before = member

    def take_out(self, member: M) -> None:
        """Have a member leave, remembering its place."""
        member.inner_before.inner_after = member.inner_after
        member.inner_after.inner_before = member.inner_before

    def put_back(self, member: M) -> None:
        """Have it return to the remembered place. Only in reverse order of what happened since."""
        member.inner_before.inner_after = member.inner_after.inner_before = member

    def __iter__(self) -> Iterator[M]:
        hinge = self._hinge
        member = hinge.inner_after
        while member is not hinge:
            yield member
            member = member.inner_after
