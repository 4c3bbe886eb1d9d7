"""What a project has of a directory's files, and which of them have to be looked at again.

There is no list beside the rows: whoever deletes a part, or lets it expire, has thereby said that its file is to be
stored again.
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
from stepwell.ingest.discovery import DiscoveredFiles, Tree
from stepwell.ingest.files import FileRequest
from stepwell.ingest.split import VERSION

_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")


class KnownFile(Struct):
    """The rows that a project has of one file."""

    row: FragmentRow | None = None  # the one that stands for the file
    parts: dict[str, FragmentRow] = field(default_factory=dict[str, FragmentRow])

    @property
    def outline(self) -> FileOutline:
        return FileOutline.of(self.row.metadata if self.row else {})

    def is_intact(self, outline: FileOutline) -> bool:
        """Whether its parts are what was stored, all of them and no others, split as we would split them."""
        if self.row is None or outline.version != VERSION:
            return False
        return outline.parts == fingerprint((row.fragment_id, row.digest) for row in self.parts.values())


Inventory = Mapping[str, KnownFile]
"""By source."""


class IngestPlan(Struct, frozen=True):
    """What is to be done about a directory."""

    unchanged: tuple[str, ...]
    asked: tuple[tuple[FileRequest, int], ...]  # to be read, with their sizes
    gone: tuple[str, ...]


def take_inventory(rows: Iterable[FragmentRow], of: frozenset[str] | None = None) -> Inventory:
    """The files that rows belong to, of all sources or of some; rows that belong to none are left out."""
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


def plan(tree: Tree, inventory: Inventory) -> IngestPlan:
    """Which files are as they were, which have to be read, and which are stored but not there any more."""
    root = root_name(tree.root)
    unchanged: list[str] = []
    asked: list[tuple[FileRequest, int]] = []
    for found in tree.files:
        known = inventory.get(found.source)
        outline = known.outline if known else None
        is_intact = known is not None and outline is not None and known.is_intact(outline)
        if is_intact and outline is not None and _is_same(found, outline, root):
            unchanged.append(found.source)
        else:
            asked.append((FileRequest(found.source, outline.digest if is_intact and outline else ""), found.size))
    gone = _gone(tree, inventory, root) if tree.is_whole else ()
    return IngestPlan(tuple(unchanged), tuple(asked), tuple(gone))


def _is_same(found: DiscoveredFiles, outline: FileOutline, root: str) -> bool:
    """By what a look at the directory says."""
    return (outline.size, outline.mtime_ns, outline.root) == (found.size, found.mtime_ns, root)


def _gone(tree: Tree, inventory: Inventory, root: str) -> Iterable[str]:
    """What was stored from this root, or from one that is not there any more: a directory may have been moved.

    Parts of a file that has no row, because somebody has deleted that, are of nobody's, and go as well.
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
    """A root as a text: a path need not be one."""
    return bytes(root).decode(errors="backslashreplace")[: limits.PATH_CHARS_MAX]


def project_name(root: Path) -> str:
    """The project that a directory is, if nobody gives it another name."""
    name = _UNFIT.sub("-", root.name).strip("-._")[: limits.PROJECT_CHARS_MAX]
    return name or "project"
