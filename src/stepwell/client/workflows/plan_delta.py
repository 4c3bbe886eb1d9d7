"""What a plan does to a tree: the changes, the bodies they need, and the proof that they were made or taken back."""

from __future__ import annotations

import os

from stepwell import limits
from stepwell.client.api.changesets import ChangesetApi
from stepwell.domain.changesets.model import Content
from stepwell.domain.changesets.net_changes import NetChange
from stepwell.domain.tiers.body_refs import Digest
from stepwell.errors import InvalidArgument, NotFound
from stepwell.trees.entry import EMPTY, Delta, TreeEntry

Proof = dict[str, Digest | None]


class PlanDelta:
    """The net changes of a plan. What ends as it began is among them: nothing is written, but it is looked at."""

    def __init__(self, context: ChangesetApi, *, backwards: bool = False) -> None:
        net = context.net_changes().values()
        self._context = context
        self._changes = [each.reverse for each in net] if backwards else [*net]
        self._held = {side.digest for each in net for side in (each.before, each.after) if side and side.held}

    @property
    def deltas(self) -> list[Delta]:
        return [Delta(each.path, _leaf(each.before), _leaf(each.after)) for each in self._changes]

    @property
    def proof(self) -> Proof:
        """What is at each path once the deltas are made."""
        return {each.path: Digest(each.after.digest) if each.after else None for each in self._changes}

    def read_body(self, digest: bytes) -> bytes | memoryview:
        """A content that is needed. If it was never given, the refusal names every path of which that is so."""
        if digest == EMPTY:
            return b""
        if digest in self._held:
            return self._context.body(digest)
        paths = [each.path for each in self._changes if each.after and self._is_missing(each, each.after.digest)]
        shown = ", ".join(map(repr, paths[: limits.TREE_NAMED_MAX]))
        raise NotFound(
            f"only the digests of {len(paths)} contents were recorded, and their bodies are needed now: {shown}; "
            "record the changes with their bodies",
            paths=paths,
        )

    def _is_missing(self, change: NetChange, digest: bytes) -> bool:
        return digest != EMPTY and digest not in self._held and not change.is_nothing


def _leaf(content: Content | None) -> TreeEntry | None:
    return TreeEntry(content.mode, content.digest) if content else None


def real_root(root: str | os.PathLike[str]) -> str:
    """Where a root really is, whatever becomes of the working directory meanwhile."""
    if not os.fspath(root):
        raise InvalidArgument("the root is an empty path: give a directory, '.' for this one")
    try:
        return os.path.realpath(root)
    except ValueError as error:
        raise InvalidArgument(f"the root {os.fspath(root)!r} is no path: {error}") from error


def text_of(root: str) -> str:
    """A root as it is told and kept: a text, whatever its name is."""
    return os.fsencode(root).decode(errors="replace")[: limits.PATH_CHARS_MAX]


def is_same_root(there: str, root: str) -> bool | None:
    """Whether a root that was kept is this one; None if it is not there any more, and nobody can tell."""
    if there in {"", text_of(root)}:
        return True
    try:
        return os.path.samefile(there, root)  # noqa: PTH121 - names, not Paths
    except OSError:
        return None
