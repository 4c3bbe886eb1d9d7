"""Doubly linked lists in order of use: the least recently used node first, O(1) to touch, and exact to undo.

A node that is removed keeps its links. Putting it back is then one step, provided that everything that was done since
has been undone in reverse order: these are Knuth's dancing links. They are why a transaction that fails half-way leaves
even the order of eviction as it was, which an `OrderedDict` could not do.

The lists are circular: a sentinel node stands before the first and behind the last node, so that no operation has a
special case for an end. The links are attributes of the nodes themselves. Each node is in two lists at once, that of
its tier over all projects (`LruList`) and that of its tier in its project (`InnerLruList`). The two classes are the
same but for the names of the links. The names cannot be a parameter, because `getattr` would make every step slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, Self, TypeVar, cast

from msgspec import Struct


class LruNode(Struct, kw_only=True, eq=False, gc=False):
    """A node with links for one place in a `LruList` and one in an `InnerLruList`.

    A list's sentinel is a plain `LruNode`; members are of a subclass that adds data. A node that was never in a list
    has no links yet. The garbage collector does not visit nodes, because there may be millions: a list unlinks its
    nodes when it ends, so that no cycle is left. A node that was removed for good is `cut`, so that it holds no other.
    """

    after: Self = cast("Self", None)
    before: Self = cast("Self", None)
    inner_after: Self = cast("Self", None)
    inner_before: Self = cast("Self", None)

    def __repr__(self) -> str:
        return object.__repr__(self)  # without the links, which lead to all other nodes

    def cut(self) -> None:
        """Drop the links of a node that is in no list and will not be put back."""
        self.after = self.before = self.inner_after = self.inner_before = cast("Self", None)


M = TypeVar("M", bound=LruNode)


class LruList(Generic[M]):
    """Nodes from the least to the most recently used, along the links `before` and `after`."""

    __slots__ = ("_sentinel",)

    def __init__(self) -> None:
        self._sentinel = sentinel = cast("M", LruNode())
        sentinel.before = sentinel.after = sentinel

    def extend(self, nodes: Iterable[M]) -> None:
        """Append nodes that are in no list of this kind. The last one becomes the most recently used."""
        sentinel = self._sentinel
        last = sentinel.before
        for node in nodes:
            node.before = last
            last.after = node
            last = node
        last.after = sentinel
        sentinel.before = last

    def touch(self, node: M) -> None:
        """Make a node of this list the most recently used."""
        before, after = node.before, node.after
        before.after = after
        after.before = before
        sentinel = self._sentinel
        last = node.before = sentinel.before
        node.after = sentinel
        last.after = sentinel.before = node

    def touch_all(self, nodes: Iterable[M]) -> None:
        """Touch nodes of this list one after the other."""
        sentinel = self._sentinel
        for node in nodes:
            before, after = node.before, node.after
            before.after = after
            after.before = before
            last = node.before = sentinel.before
            node.after = sentinel
            last.after = sentinel.before = node

    def unlink(self, node: M) -> None:
        """Remove a node, which keeps its links for `relink`."""
        node.before.after = node.after
        node.after.before = node.before

    def relink(self, node: M) -> None:
        """Undo `unlink`, after everything that happened since was undone in reverse order."""
        node.before.after = node.after.before = node

    def __iter__(self) -> Iterator[M]:
        sentinel = self._sentinel
        node = sentinel.after
        while node is not sentinel:
            yield node
            node = node.after

    def __del__(self) -> None:
        sentinel = self._sentinel
        for node in [*self]:
            node.before = node.after = sentinel
        sentinel.before = sentinel.after = cast("M", LruNode())


class InnerLruList(Generic[M]):
    """The same list along the links `inner_before` and `inner_after`."""

    __slots__ = ("_sentinel",)

    def __init__(self) -> None:
        self._sentinel = sentinel = cast("M", LruNode())
        sentinel.inner_before = sentinel.inner_after = sentinel

    def extend(self, nodes: Iterable[M]) -> None:
        """Append nodes that are in no list of this kind. The last one becomes the most recently used."""
        sentinel = self._sentinel
        last = sentinel.inner_before
        for node in nodes:
            node.inner_before = last
            last.inner_after = node
            last = node
        last.inner_after = sentinel
        sentinel.inner_before = last

    def touch(self, node: M) -> None:
        """Make a node of this list the most recently used."""
        before, after = node.inner_before, node.inner_after
        before.inner_after = after
        after.inner_before = before
        sentinel = self._sentinel
        last = node.inner_before = sentinel.inner_before
        node.inner_after = sentinel
        last.inner_after = sentinel.inner_before = node

    def touch_all(self, nodes: Iterable[M]) -> None:
        """Touch nodes of this list one after the other."""
        sentinel = self._sentinel
        for node in nodes:
            before, after = node.inner_before, node.inner_after
            before.inner_after = after
            after.inner_before = before
            last = node.inner_before = sentinel.inner_before
            node.inner_after = sentinel
            last.inner_after = sentinel.inner_before = node

    def unlink(self, node: M) -> None:
        """Remove a node, which keeps its links for `relink`."""
        node.inner_before.inner_after = node.inner_after
        node.inner_after.inner_before = node.inner_before

    def relink(self, node: M) -> None:
        """Undo `unlink`, after everything that happened since was undone in reverse order."""
        node.inner_before.inner_after = node.inner_after.inner_before = node

    def __iter__(self) -> Iterator[M]:
        sentinel = self._sentinel
        node = sentinel.inner_after
        while node is not sentinel:
            yield node
            node = node.inner_after

    def __del__(self) -> None:
        sentinel = self._sentinel
        for node in [*self]:
            node.inner_before = node.inner_after = sentinel
        sentinel.inner_before = sentinel.inner_after = cast("M", LruNode())
