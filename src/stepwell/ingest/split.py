"""A file's text, split into parts: where each begins and ends, on which lines, what it is called and refers to."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.domain.tiers.source_outline import Outline
from stepwell.ingest.splitters import definitions, headings, python, references, turns
from stepwell.ingest.splitters.languages import ending, language_of
from stepwell.ingest.splitters.lines import Border, Lines, stretches
from stepwell.ingest.splitters.windows import Window, pieces

VERSION: Final = "1"
"""To be raised when the same file comes to other parts than before: then all files are split anew."""


class Part(Struct, frozen=True):
    """A piece of a file, in bytes from its beginning."""

    start: int
    end: int
    kind: str
    label: str  # what its id ends with; empty for one without a name
    outline: Outline


def split(source: str, data: bytes) -> list[Part]:
    """The parts of a text in UTF-8, in order, without gaps and overlaps."""
    lines = Lines(data)
    kind, borders = _borders(source, lines)
    found = pieces(lines, stretches(lines, borders))
    return [_part(each, place, source, data[each.start : each.end].decode(), kind) for place, each in enumerate(found)]


def _borders(source: str, lines: Lines) -> tuple[str, list[Border]]:
    """What is known of such a file; of none, where it begins."""
    suffix = ending(source)
    if suffix in turns.ENDINGS and (found := turns.borders(lines)) is not None:
        return "turn", found
    if suffix in headings.HEADINGS:
        return "markdown", headings.borders(lines, headings.HEADINGS[suffix])
    language = language_of(source)
    if language is None:
        return "text", []
    by_syntax = python.borders(lines) if language.name == "python" else None
    return language.kind, by_syntax or definitions.borders(lines, language) or []


def _part(piece: Window, place: int, source: str, text: str, kind: str) -> Part:
    outline = Outline(
        lines=(piece.first + 1, piece.last + 1),
        name=_joined(piece.names),
        order=place,
        speaker=piece.speaker,
        refs=_refs(piece, source, text, kind),
    )
    return Part(piece.start, piece.end, kind, piece.names[0] if piece.names else "", outline)


def _refs(piece: Window, source: str, text: str, kind: str) -> tuple[str, ...]:
    if kind == "markdown":
        return references.of_prose(text, source)
    language = language_of(source) if kind == "code" else None
    return references.of_code(text, source, language, piece.names) if language else ()


def _joined(names: tuple[str, ...]) -> str:
    """All that are defined in a part, as many as fit; of headings, those that are under none of the others."""
    shown = [name for name in names if not any(name.startswith(each + headings.SEPARATOR) for each in names)]
    text = ", ".join(shown)
    if len(text) <= limits.OUTLINE_NAME_CHARS_MAX:
        return text
    return text[: limits.OUTLINE_NAME_CHARS_MAX].rpartition(", ")[0] or text[: limits.OUTLINE_NAME_CHARS_MAX]
