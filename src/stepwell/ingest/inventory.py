"""The files that a project has rows of, and which of them have to be read again.

There is no list of files beside the rows. If a part is deleted, or expires, the rows show that the file is incomplete,
and the next ingest stores it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from stepwell import limits
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import FILE_KIND, FileOutline, file_id, fingerprint, is_part
from stepwell.ingest.discovery import DiscoveredFile, DiscoveredTree
from stepwell.ingest.files import FileRequest
from stepwell.ingest.secret_policy import SecretPolicy

# Characters that a project's name cannot have.
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")


class KnownFile(Struct):
    """The rows that a project has of one file: the one that stands for the file, if it exists, and its parts by id."""

    row: FragmentRow | None = None
    parts: dict[str, FragmentRow] = field(default_factory=dict[str, FragmentRow])

    @property
    def outline(self) -> FileOutline:
        """The facts by which the file is recognised; empty ones if no row stands for it."""
        return FileOutline.of(self.row.metadata if self.row else {})

    def is_intact(self, outline: FileOutline, rules_version: str) -> bool:
        """Return True if exactly the stored parts are there, split by the rules of that version."""
        if self.row is None or outline.version != rules_version:
            return False
        return outline.parts == fingerprint((row.fragment_id, row.digest) for row in self.parts.values())


Inventory = Mapping[str, KnownFile]
"""The known files, by source."""


class IngestPlan(Struct, frozen=True):
    """The files of a directory that are unchanged, that have to be read (with their sizes), and that are gone."""

    unchanged: tuple[str, ...]
    asked: tuple[tuple[FileRequest, int], ...]
    gone: tuple[str, ...]


def build_inventory(rows: Iterable[FragmentRow], of: frozenset[str] | None = None) -> Inventory:
    """Return the files that rows belong to, of all sources or of some. Rows that belong to no file are left out."""
    found: dict[str, KnownFile] = {}
    for row in rows:
        source = row.source
        if of is not None and source not in of:
            continue
        if row.kind == FILE_KIND:
            if row.fragment_id == file_id(source):
                found.setdefault(source, KnownFile()).row = row
        elif is_part(row):
            found.setdefault(source, KnownFile()).parts[row.fragment_id] = row
    return found


def plan(tree: DiscoveredTree, inventory: Inventory, policy: SecretPolicy) -> IngestPlan:
    """Compare a tree with the rows of a project, and return what has to be done.

    A file is unchanged if size, time and root are the same and its parts are intact. If only its parts are intact, it
    is read, but split only if its digest differs. A file that was stored under another policy is split anew.
    """
    root, rules_version = root_name(tree.root), policy.rules_version
    unchanged: list[str] = []
    asked: list[tuple[FileRequest, int]] = []
    for found in tree.files:
        known = inventory.get(found.source)
        outline = known.outline if known else None
        is_intact = known is not None and outline is not None and known.is_intact(outline, rules_version)
        if is_intact and outline is not None and _is_same(found, outline, root):
            unchanged.append(found.source)
        else:
            asked.append((FileRequest(found.source, outline.digest if is_intact and outline else ""), found.size))
    missing = inventory if tree.is_whole else {each: inventory[each] for each in tree.secrets if each in inventory}
    gone = _gone(tree, missing, root)
    return IngestPlan(tuple(unchanged), tuple(asked), tuple(gone))


def _is_same(found: DiscoveredFile, outline: FileOutline, root: str) -> bool:
    """Return True if size, time and root are the ones that were stored."""
    return (outline.size, outline.mtime_ns, outline.root) == (found.size, found.mtime_ns, root)


def _gone(tree: DiscoveredTree, inventory: Inventory, root: str) -> Iterable[str]:
    """Yield the stored sources that do not exist any more, or are left out.

    They were stored from this root, or from a root that does not exist any more, because a directory may have been
    moved. Parts without a row for their file belong to no root, and go as well.
    """
    there = {found.source for found in tree.files}
    is_ours = {root: True, "": True}
    for source, known in inventory.items():
        if source in there:
            continue
        other = known.outline.root
        if other not in is_ours:
            is_ours[other] = not Path(other).is_dir()
        if is_ours[other]:
            yield source


def root_name(root: Path) -> str:
    """Return a root as a text: a path need not be UTF-8, and metadata are."""
    return bytes(root).decode(errors="backslashreplace")[: limits.PATH_CHARS_MAX]


def project_name(root: Path) -> str:
    """Return the default name of the project of a directory."""
    name = _NOT_IN_NAMES.sub("-", root.name).strip("-._")[: limits.PROJECT_CHARS_MAX]
    return name or "project"
