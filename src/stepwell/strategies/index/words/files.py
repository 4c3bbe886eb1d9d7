"""The files of a project as an index ranks them: columns by file, and how much each kind of file counts.

A fragment with a source belongs to the file of that name. A turn of a conversation, and a fragment without a source,
is a file of its own: nothing is known about it from the others. So code, prose and conversations are ranked by one
rule, which for a conversation is the score of the turn itself.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from stepwell.domain.tiers.model import FragmentRow
from stepwell.strategies.index.references import DottedReference, parse_reference
from stepwell.strategies.index.words.fields import CODE_KIND, TURN_KIND

ORDINARY, TEST, DOCUMENT = 0, 1, 2
"""The classes of fragments."""
CLASS_WEIGHTS: Final = {ORDINARY: 1.0, TEST: 0.5, DOCUMENT: 0.7}
"""The weight of a fragment unless the query asks for its class."""

STEM_TERM: Final = "\0stem:"
IMPORT_TERM: Final = "\0import:"
"""The beginnings of terms that no text has: the stem of a fragment's file, and a module that it refers to."""

_SOURCE: Final = "\n"
"""The beginning of a key that is a source. No reference has it, because references are separated by it."""

_TEST_PATH: Final = re.compile(
    r"(?:^|/)(?:tests?|specs?|__tests__|testdata|fixtures|e2e|cypress)/|^testing/"
    r"|(?:^|/)(?:test_[^/]*|[^/]*[._-](?:test|tests|spec)|conftest)\.\w+$|(?:^|/)[A-Z]\w*Tests?\.(?:java|cs|kt|php)$",
    re.IGNORECASE,
)
_DOCUMENT_PATH: Final = re.compile(
    r"(?:^|/)(?:docs?|documentation|examples?|samples?|demos?|tutorials?|vendor(?:ed)?|_vendor|third[_-]?party"
    r"|node_modules|benchmarks?|locales?|dist)/|\.min\.(?:js|css)$",
    re.IGNORECASE,
)
_SEPARATORS: Final = re.compile(r"[./\\:]+")
_PACKAGE_STEMS: Final = frozenset({"__init__", "index", "mod", "__main__", "lib"})
"""Names of files that stand for their directory."""


class FileTable:
    """The files of an index, each with a number. The index owns it.

    Numbers are given in the order of arrival and not used again before `clear`.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.sources: list[str] = []
        """The source of each file; empty for a fragment that is a file of its own."""

    def __len__(self) -> int:
        return len(self.sources)

    def number(self, row: FragmentRow) -> int:
        """Return the number of a fragment's file; a new one if the fragment stands for itself."""
        if row.kind == TURN_KIND or not row.source:
            return self._add("")
        number = self._numbers.get(row.source)
        if number is None:
            number = self._numbers[row.source] = self._add(row.source)
        return number

    def find(self, source: str) -> int | None:
        """Return the number of the file of a source, or None."""
        return self._numbers.get(source)

    def _add(self, source: str) -> int:
        self.sources.append(source)
        return len(self.sources) - 1

    def clear(self) -> None:
        """Forget all files, before the fragments are numbered anew."""
        self._numbers = {}
        self.sources = []

    def restore(self, sources: list[str]) -> None:
        """Take over the files of another table, by number. The table must be empty."""
        self.sources = sources
        self._numbers = {source: number for number, source in enumerate(sources) if source}


def class_of(row: FragmentRow) -> int:
    """Return the class of a fragment, by its path and kind."""
    if row.kind == TURN_KIND or not row.source:
        return ORDINARY
    by_path = _path_class(row.source)
    return DOCUMENT if by_path == ORDINARY and row.kind != CODE_KIND else by_path


@lru_cache(maxsize=1_024)
def _path_class(source: str) -> int:
    """Return the class of a path. The cache helps because many fragments have the same source."""
    if _TEST_PATH.search(source):
        return TEST
    return DOCUMENT if _DOCUMENT_PATH.search(source) else ORDINARY


def place_keys(row: FragmentRow) -> list[str]:
    """Return the texts that stand for the terms by which the file of a fragment is found: see `place_term`."""
    if row.kind == TURN_KIND or not row.source:
        return []
    keys = [_SOURCE + row.source]
    if row.kind == CODE_KIND and (refs := row.metadata.get("refs")):
        keys += filter(None, refs.split("\n"))
    return keys


def place_term(key: str) -> tuple[str]:
    """Return the term of a key: of a source, its stem; of a reference, the module that it refers to."""
    if key.startswith(_SOURCE):
        return (STEM_TERM + stem_of(key.removeprefix(_SOURCE)),)
    return (IMPORT_TERM + module_key(key),)


@lru_cache(maxsize=1_024)
def stem_of(source: str) -> str:
    """Return the name of a file without its ending; of a file that stands for its directory, that of the directory."""
    *directories, name = source.lower().split("/")
    stem = name.partition(".")[0] or name
    return directories[-1] if stem in _PACKAGE_STEMS and directories else stem


@lru_cache(maxsize=1_024)
def module_of(source: str) -> str:
    """Return the key by which the imports of a file are counted: its directory and its stem."""
    path = source.lower().rpartition(".")[0] or source.lower()
    parts = [part for part in path.split("/") if part not in {"src", "lib"}]
    if len(parts) > 1 and parts[-1] in _PACKAGE_STEMS:
        parts.pop()
    return "/".join(parts[-2:])


def module_key(ref: str) -> str:
    """Return the key of the module that a reference names: its last two parts."""
    match parse_reference(ref):
        case DottedReference(parts=parts):
            return "/".join(parts[-2:]).lower()
        case path:
            return module_of(path.path)
