"""The net changes of a plan in the form that tree transactions take: deltas, bodies and the proof for the manager.

The module also has the rules for roots: one absolute form for work, one text form for messages and records.
"""

from __future__ import annotations

import os

from stepwell import limits
from stepwell.client.api.changesets import ChangesetApi
from stepwell.domain.changesets.model import Content
from stepwell.domain.changesets.net_changes import NetChange
from stepwell.domain.tiers.body_refs import Digest
from stepwell.errors import InvalidArgument, NotFound
from stepwell.text import plural
from stepwell.trees.entry import EMPTY, Delta, TreeEntry
from stepwell.trees.root import Root

Proof = dict[str, Digest | None]
"""The content at each changed path, by digest; None for no file. The manager compares it with the changesets."""


class PlanDelta:
    """The net changes of a plan, or with `backwards` their reverse; read from the manager when it is made.

    Paths that end as they began are included: nothing is written there, but the transaction checks them, too. For one
    thread.
    """

    def __init__(self, context: ChangesetApi, *, backwards: bool = False) -> None:
        net = context.net_changes().values()
        self._context = context
        self._changes = [each.reverse for each in net] if backwards else [*net]
        self._held = {side.digest for each in net for side in (each.before, each.after) if side and side.held}

    @property
    def deltas(self) -> list[Delta]:
        """The changes as a tree transaction takes them."""
        return [Delta(each.path, tree_entry(each.before), tree_entry(each.after)) for each in self._changes]

    @property
    def proof(self) -> Proof:
        """The content at each path once the deltas are applied."""
        return {each.path: Digest(each.after.digest) if each.after else None for each in self._changes}

    def read_body(self, digest: bytes) -> bytes | memoryview:
        """Return a content that a delta needs, from the manager.

        Raises `NotFound` if a change was recorded without its body; the message names every path of which that is true,
        so that all can be recorded again at once.
        """
        if digest == EMPTY:
            return b""
        if digest in self._held:
            return self._context.body(digest)
        paths = [each.path for each in self._changes if each.after and self._is_missing(each, each.after.digest)]
        shown = ", ".join(map(repr, paths[: limits.TREE_NAMED_MAX]))
        raise NotFound(
            f"{plural(len(paths), 'content was', 'contents were')} recorded by digest only, and the bodies are needed "
            f"now: {shown}; record the changes with their bodies",
            paths=paths,
        )

    def _is_missing(self, change: NetChange, digest: bytes) -> bool:
        return digest != EMPTY and digest not in self._held and not change.is_nothing


def tree_entry(content: Content | None) -> TreeEntry | None:
    """Return a recorded content as an entry of a tree."""
    return TreeEntry(content.mode, content.digest) if content else None


def real_root(root: str | os.PathLike[str]) -> str:
    """Return the absolute path of a root, without links, so that a later `chdir` does not change its meaning.

    Raises `InvalidArgument` for an empty path, and for one that is no directory: also a call that would find nothing
    to do there is refused, because the caller believes that there is a tree.
    """
    if not os.fspath(root):
        raise InvalidArgument("the root is an empty path: give a directory, '.' for this one")
    try:
        found = os.path.realpath(root)
    except ValueError as error:
        raise InvalidArgument(f"the root {os.fspath(root)!r} is no path: {error}") from error
    with Root(found):
        return found


def root_text(root: str) -> str:
    """Return a root as the manager stores it: always valid text, although a directory's name need not be."""
    return os.fsencode(root).decode(errors="replace")[: limits.PATH_CHARS_MAX]


def is_same_root(recorded: str, root: str) -> bool | None:
    """Return True if a recorded root is this one, False if it is another one.

    Returns None if the recorded one does not exist any more: the tree may have been moved here, or be another one.
    """
    if recorded in {"", root_text(root)}:
        return True
    try:
        return os.path.samefile(recorded, root)  # noqa: PTH121 - names, not Paths
    except OSError:
        return None
