"""The references of a part: modules and names that it imports, names that it calls, files that it links to.

A relative path is resolved to a path from the root, as sources are written. Nothing is looked up: whether the target
exists is found out at query time (`stepwell.strategies.index.references`).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import Final

from stepwell import limits
from stepwell.ingest.splitters.languages import Language

_REVERSED_CALL: Final = re.compile(
    r"\([ \t]*([\w$]*[A-Za-z_$](?:(?:\.|::|>-)[\w$]*[A-Za-z_$])*)(?![\w.$])(?! fed| nf| cnuf| noitcnuf)"
)
"""A call in a text that is read from its end. A bracket is found faster than every word that it may stand behind."""
_BASES: Final = re.compile(r"^\s*class\s+\w+\s*\(([^)]*)\)", re.MULTILINE)
_LINK: Final = re.compile(r"\]\(\s*<?([^\s)>]+)|^\s*\[[^\]]+\]:\s*<?(\S+?)>?\s*$|`[^`<]*<([^>`\s]+)>`_", re.MULTILINE)
_MENTION: Final = re.compile(r"(?<!`)`{1,2}([A-Za-z_./][\w./:-]*)(?:\(\))?`{1,2}(?!`)")
_EXTERNAL: Final = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
_PYTHON_NAME: Final = re.compile(r"[A-Za-z_*][\w.]*")

_COMMON: Final = """
    and any all append assert await bool catch class const def defer dict do echo elif else enumerate except exit fn
    float for func function getattr go hasattr if import in int int32 is isinstance lambda len let list make match max
    min new not open or panic print printf println range repr require return self set setattr sizeof sorted static str
    sum super switch test then this tuple type typeof uint unless until void when while with yield zip
"""
_COMMON_CALLS: Final = frozenset(_COMMON.split())
"""Names that every program calls, and keywords that only look like calls."""


def of_code(text: str, source: str, language: Language, own: Iterable[str]) -> tuple[str, ...]:
    """Return the references of code.

    Imports come first, because they say most; names that are defined here are left out.
    """
    own_names = {name.rpartition(language.separator)[2] for name in own}
    has_imports = any(map(text.__contains__, language.import_words))
    found = dict.fromkeys(_imported(text, source, language)) if has_imports else dict[str, None]()
    if "class" in text:
        for bases in _BASES.finditer(text):
            found.update(dict.fromkeys(_PYTHON_NAME.findall(bases[1])))
    for called in reversed(_REVERSED_CALL.findall(text[::-1])):
        name = called[::-1].removeprefix("self.").removeprefix("this.")
        if name not in _COMMON_CALLS and name not in own_names and len(name) > 1:
            found.setdefault(name)
    return _bounded(found)


def of_prose(text: str, source: str) -> tuple[str, ...]:
    """Return the references of prose: links to other files, and names in backticks."""
    found: dict[str, None] = {}
    for match in _LINK.finditer(text):
        target = match[match.lastindex or 0]
        if target and not target.startswith("#") and not _EXTERNAL.match(target):
            found.setdefault(_resolved(target, source))
    found.update((name[1], None) for name in _MENTION.finditer(text))
    return _bounded(found)


def _bounded(found: Iterable[str]) -> tuple[str, ...]:
    """Return the first references that are not too long."""
    return tuple(each for each in found if each and len(each) <= limits.INGEST_REFERENCE_CHARS_MAX)[
        : limits.OUTLINE_REFS_MAX
    ]


def _imported(text: str, source: str, language: Language) -> Iterator[str]:
    """Yield the modules and names that a text imports, by the patterns of its language."""
    for pattern in language.imports:
        for match in re.finditer(pattern, text, re.MULTILINE):
            groups = match.groupdict()
            module, names = groups.get("module") or "", groups.get("names") or ""
            if language.name == "python":
                yield from _python(module, names, source)
            elif language.is_relative and (module.startswith(".") or language.name == "c"):
                yield _resolved(module, source)
            else:
                yield module


def _python(module: str, names: str, source: str) -> Iterator[str]:
    """Yield the references of a Python import: `from a.b import c` refers to `a.b` and to `a.b.c`."""
    if module.startswith("."):
        levels = len(module) - len(module.lstrip("."))
        package = source.split("/")[:-levels]
        module = ".".join([*package, *filter(None, [module.lstrip(".")])])
    if module:
        yield module
    for each in names.strip("()").split(","):
        name = _PYTHON_NAME.match(each.strip())
        if name and name[0] != "*":
            yield f"{module}.{name[0]}" if module else name[0]


def _resolved(target: str, source: str) -> str:
    """Return a path relative to a file as a path from the root. A path that leads out of the root stays as it is."""
    if target.startswith("/"):
        return target.lstrip("/")
    path, mark, fragment = target.partition("#")
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) + mark + fragment
