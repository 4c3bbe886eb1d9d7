"""What a reference may mean: a name, a module, a path; and the one word by which it is looked up.

References are texts that nobody has resolved: `Index.catch_up`, `stepwell.strategies.ranking`, `docs/design.md#layout`.
Each has a last word, and so has whatever it could mean. Things are kept by that word, and compared whole when somebody
asks. Nothing here depends on what else there is.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

_SEPARATORS: Final = re.compile(r"::|->|\\")
_DIRECTORY_FILES: Final = frozenset(
    {"__init__.py", "index.html", "index.js", "index.jsx", "index.md", "index.ts", "index.tsx", "mod.rs", "README.md"}
)
"""What the name of its directory means, too."""
_KNOWN_ENDINGS: Final = """
    c cc cfg cpp cs css go h hpp html ini java js json jsonl jsx kt markdown md php proto py pyi rb rs rst sh sql swift
    toml ts tsx txt xml yaml yml
"""
_ENDINGS: Final = frozenset(_KNOWN_ENDINGS.split())
HEADINGS: Final = " > "
_NAMES: Final = ", "


class PathReference(Struct, frozen=True):
    """A file from the root, and perhaps a place in it."""

    path: str
    anchor: str


class DottedReference(Struct, frozen=True):
    """A name, a module, or a name in a module."""

    parts: tuple[str, ...]


Reference = PathReference | DottedReference


def parse_reference(ref: str) -> Reference:
    """What a reference looks like."""
    text = ref.strip()
    path, _, anchor = text.partition("#")
    if "/" in path or path.rpartition(".")[2].lower() in _ENDINGS:
        return PathReference(path.removeprefix("./").strip("/"), anchor)
    return DottedReference(tuple(part for part in _SEPARATORS.sub(".", path).split(".") if part))


def last_word(ref: str) -> str:
    """By which a reference is looked up; nothing if it has none."""
    match parse_reference(ref):
        case PathReference(path=path):
            return stems(path)[0]
        case DottedReference(parts=parts):
            return parts[-1] if parts else ""


def stems(source: str) -> list[str]:
    """The last words of a path: its name without its ending, and its directory's if it stands for that."""
    *directories, name = source.split("/")
    return [_without_ending(name), *(directories[-1:] if name in _DIRECTORY_FILES else [])]


def names(text: str) -> list[tuple[str, ...]]:
    """What a part is called: `Index.catch_up, helper` are two names; of headings, the last is its own."""
    if HEADINGS in text:
        return [(text.rpartition(HEADINGS)[2],)]
    found: list[tuple[str, ...]] = []
    for each in text.split(_NAMES) if text else ():
        match parse_reference(each):
            case DottedReference(parts=parts):
                found += [parts] if parts else []
            case PathReference(path=path):
                found.append((path,))
    return found


def is_module(source: str, parts: tuple[str, ...]) -> bool:
    """Whether a path ends in a dotted name: `stepwell.limits` is `src/stepwell/limits.py`."""
    *directories, name = source.split("/")
    paths = [[*directories, _without_ending(name)], *([directories] if name in _DIRECTORY_FILES else [])]
    return any(tuple(path[-len(parts) :]) == parts for path in paths)


def slug(title: str) -> str:
    """A heading as links write it."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def _without_ending(name: str) -> str:
    own, dot, ending = name.rpartition(".")
    return own if dot and own and ending.isalnum() else name
