"""The syntax of references: a name, a module, or a path, and the last word by which a reference is looked up.

References are texts such as `Index.catch_up`, `stepwell.strategies.ranking` and `docs/design.md#layout`; a splitter
wrote them down and nothing resolved them. Each has a last word, and so has each thing that it could mean. An index
stores things by that word and compares the whole reference at query time. The functions here are pure: they do not
depend on which fragments exist.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from msgspec import Struct

_SEPARATORS: Final = re.compile(r"::|->|\\")
_DIRECTORY_FILES: Final = frozenset(
    {"__init__.py", "index.html", "index.js", "index.jsx", "index.md", "index.ts", "index.tsx", "mod.rs", "README.md"}
)
"""Files that the name of their directory means, too."""
_KNOWN_ENDINGS: Final = """
    c cc cfg cpp cs css go h hpp html ini java js json jsonl jsx kt markdown md php proto py pyi rb rs rst sh sql swift
    toml ts tsx txt xml yaml yml
"""
_ENDINGS: Final = frozenset(_KNOWN_ENDINGS.split())
_REMEMBERED_MAX: Final = 16_384  # references whose last words are known: a project repeats most of them
HEADINGS: Final = " > "
_NAMES: Final = ", "


class PathReference(Struct, frozen=True):
    """A reference to a file by its path from the root, and perhaps to an anchor in it."""

    path: str
    anchor: str


class DottedReference(Struct, frozen=True):
    """A reference to a name, a module, or a name in a module."""

    parts: tuple[str, ...]


Reference = PathReference | DottedReference


def parse_reference(ref: str) -> Reference:
    """Return the reference that a text looks like: a path, if it has a slash or a known file ending."""
    text = ref.strip()
    path, _, anchor = text.partition("#")
    if "/" in path or path.rpartition(".")[2].lower() in _ENDINGS:
        return PathReference(path.removeprefix("./").strip("/"), anchor)
    return DottedReference(tuple(part for part in _SEPARATORS.sub(".", path).split(".") if part))


@lru_cache(maxsize=_REMEMBERED_MAX)
def last_word(ref: str) -> str:
    """Return the word by which a reference is looked up; empty if it has none."""
    match parse_reference(ref):
        case PathReference(path=path):
            return stems(path)[0]
        case DottedReference(parts=parts):
            return parts[-1] if parts else ""


def stems(source: str) -> list[str]:
    """Return the last words of a path: its file name without the ending, and its directory if the
    file stands for that.
    """
    *directories, name = source.split("/")
    return [_without_ending(name), *(directories[-1:] if name in _DIRECTORY_FILES else [])]


def names(text: str) -> list[tuple[str, ...]]:
    """Return the names of a part: `Index.catch_up, helper` are two; of nested headings, only the innermost counts."""
    if HEADINGS in text:
        return [(text.rpartition(HEADINGS)[2],)]
    found: list[tuple[str, ...]] = []
    for each in text.split(_NAMES) if text else ():
        if each.isidentifier() and each.lower() not in _ENDINGS:  # the usual case, for which the next one is slow
            found.append((each,))
            continue
        match parse_reference(each):
            case DottedReference(parts=parts):
                found += [parts] if parts else []
            case PathReference(path=path):
                found.append((path,))
    return found


def is_module(source: str, parts: tuple[str, ...]) -> bool:
    """Return True if a path ends in a dotted name: `stepwell.limits` is `src/stepwell/limits.py`."""
    *directories, name = source.split("/")
    paths = [[*directories, _without_ending(name)], *([directories] if name in _DIRECTORY_FILES else [])]
    return any(tuple(path[-len(parts) :]) == parts for path in paths)


def slug(title: str) -> str:
    """Return a heading as links to it are written."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def _without_ending(name: str) -> str:
    own, dot, ending = name.rpartition(".")
    return own if dot and own and ending.isalnum() else name
