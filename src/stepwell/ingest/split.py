"""Splitting of one file into parts: their bytes, lines, names and references.

The name of the file chooses the splitter: conversations, prose with headings, programs by their syntax trees, rarer
languages by patterns, and plain text by size alone. A splitter returns borders; `windows` then merges tiny parts and
cuts large ones.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.domain.tiers.source_outline import Outline
from stepwell.ingest.splitters import definitions, headings, python, references, syntax_tree, turns
from stepwell.ingest.splitters.grammars import grammar_of
from stepwell.ingest.splitters.languages import ending, language_of
from stepwell.ingest.splitters.lines import Border, Lines, stretches
from stepwell.ingest.splitters.windows import Window, windows

VERSION: Final = "2"
"""The version of the rules.

It is raised when the same file comes to other parts than before; then all files are split anew.
"""


class Part(Struct, frozen=True):
    """A part of a file: its bytes from `start` to before `end`, and its description.

    `label` is the end of its id: the first name that is defined in it, or empty.
    """

    start: int
    end: int
    kind: str
    label: str
    outline: Outline


def split(source: str, data: bytes) -> list[Part]:
    """Return the parts of a text in UTF-8, in order, without gaps and overlaps."""
    lines = Lines(data)
    kind, borders = _borders(source, lines)
    found = windows(lines, stretches(lines, borders))
    return [_part(each, place, source, data[each.start : each.end].decode(), kind) for place, each in enumerate(found)]


def _borders(source: str, lines: Lines) -> tuple[str, list[Border]]:
    """Return the kind of the parts, and the borders that the splitter of the file finds; none for plain text."""
    suffix = ending(source)
    if suffix in turns.ENDINGS and (found := turns.borders(lines)) is not None:
        return "turn", found
    if suffix in headings.HEADINGS:
        return "markdown", headings.borders(lines, headings.HEADINGS[suffix])
    language = language_of(source)
    if language is None:
        return "text", []
    found = python.borders(lines) if language.name == "python" else None
    grammar = grammar_of(suffix)
    if found is None:
        found = syntax_tree.borders(lines, grammar, language) if grammar else definitions.borders(lines, language)
    return language.kind, found or []


def _part(piece: Window, place: int, source: str, text: str, kind: str) -> Part:
    """Return the part of a window, with its outline."""
    outline = Outline(
        lines=(piece.first + 1, piece.last + 1),
        name=_joined(piece.names),
        order=place,
        speaker=piece.speaker,
        refs=_refs(piece, source, text, kind),
    )
    return Part(piece.start, piece.end, kind, piece.names[0] if piece.names else "", outline)


def _refs(piece: Window, source: str, text: str, kind: str) -> tuple[str, ...]:
    """Return the references of a part, by the rules for its kind."""
    if kind == "markdown":
        return references.of_prose(text, source)
    language = language_of(source) if kind == "code" else None
    return references.of_code(text, source, language, piece.names) if language else ()


def _joined(names: tuple[str, ...]) -> str:
    """Return all names of a part in one text, as many as fit; of nested headings, only the outer ones."""
    shown = [name for name in names if not any(name.startswith(each + headings.SEPARATOR) for each in names)]
    text = ", ".join(shown)
    if len(text) <= limits.OUTLINE_NAME_CHARS_MAX:
        return text
    return text[: limits.OUTLINE_NAME_CHARS_MAX].rpartition(", ")[0] or text[: limits.OUTLINE_NAME_CHARS_MAX]
