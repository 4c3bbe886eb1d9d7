"""Borders of programs in any language of the table: at lines that look like definitions.

The indentation says what is inside what. A definition inside a class, a module or the like is a part of its own; one
inside a function belongs to that function.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.ingest.splitters.languages import Language
from stepwell.ingest.splitters.lines import Border, Lines, Role, indent

_WHOLE_BYTES_MAX: Final = 1_000  # of a class that stays one part with its members


class _Enclosing(Struct, frozen=True):
    """A definition that contains the following lines, as long as they are indented more.

    `holds` says that it has members.
    """

    column: int
    name: str
    holds: bool


class _DefinitionLine(Struct, frozen=True):
    """A definition that was found. `begin` is the first line of the comments above it."""

    begin: int
    column: int
    name: str
    scope: str
    holds: bool


def borders(lines: Lines, language: Language) -> list[Border] | None:
    """Return the borders of definitions and of members of large classes.

    None means that the language has no pattern for definitions, or that the text has no definitions.
    """
    if not language.definition:
        return None
    found = [*_definition_lines(lines, language, re.compile(language.definition))]
    undivided = {each.name for place, each in enumerate(found) if each.holds and _is_small(lines, found, place)}
    parts = [each for each in found if each.scope not in undivided]
    return [Border(each.begin, each.name, each.scope, role=Role.DEFINITION) for each in parts] or None


def _definition_lines(lines: Lines, language: Language, pattern: re.Pattern[str]) -> Iterator[_DefinitionLine]:
    """Yield all definitions that are not inside a function, in order."""
    inside: list[_Enclosing] = []
    above = 0
    for number, line in enumerate(lines.texts):
        if len(line) > limits.INGEST_LINE_CHARS_MAX or (match := pattern.match(line)) is None:
            continue
        column = indent(line)
        while inside and inside[-1].column >= column:
            inside.pop()
        # Inside a function: the definition belongs to it, and is not remembered as enclosing anything.
        if inside and not inside[-1].holds:
            continue
        scope = inside[-1].name if inside else match.groupdict().get("owner") or ""
        own = _name(match)
        name = f"{scope}{language.separator}{own}" if scope else own
        holds = bool(match.groupdict().get("holds"))
        inside.append(_Enclosing(column, name, holds))
        begin = number
        while begin > above and lines.texts[begin - 1].lstrip().startswith(language.comments):
            begin -= 1
        above = number + 1
        yield _DefinitionLine(begin, column, name, scope, holds)


def _is_small(lines: Lines, found: list[_DefinitionLine], place: int) -> bool:
    """Return True if a class, up to the next definition outside of it, is small enough to be one part."""
    one = found[place]
    after = (each.begin for each in found[place + 1 :] if each.column <= one.column)
    return lines.size(one.begin, next(after, len(lines))) <= _WHOLE_BYTES_MAX


def _name(match: re.Match[str]) -> str:
    """Return the name that a definition's pattern has matched, in one of several groups."""
    found = (text for key, text in match.groupdict().items() if key.startswith("name") and text)
    return " ".join(next(found, "").replace('"', " ").split())
