"""Splitting of one file into parts: their bytes, lines, names and references.

The name of the file chooses the splitter: conversations, prose with headings, programs by their syntax trees, rarer
languages by patterns, and plain text by size alone. A splitter returns borders; `windows` then merges tiny parts and
cuts large ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.domain.tiers.source_outline import Outline
from stepwell.ingest.splitters import definitions, headings, python, references, syntax_tree, turns
from stepwell.ingest.splitters.grammars import grammar_of
from stepwell.ingest.splitters.languages import Language, ending, language_of
from stepwell.ingest.splitters.lines import Border, Lines, stretches
from stepwell.ingest.splitters.windows import Window, windows

VERSION: Final = "2"
"""The version of the rules.

It is raised when the same file comes to other parts than before; then all files are split anew.
"""


_ReferenceFinder = Callable[[bytes, tuple[str, ...]], tuple[str, ...]]
"""A function that returns the references of a part, given its bytes and the names that are defined in it."""


class Part(Struct, frozen=True, gc=False):
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
    language = language_of(source)
    kind, borders = _borders(source, lines, language)
    refs_of = _reference_finder(source, kind, language)
    found = windows(lines, stretches(lines, borders))
    return [
        _part(each, place, refs_of(data[each.start : each.end], each.names), kind) for place, each in enumerate(found)
    ]


def _borders(source: str, lines: Lines, language: Language | None) -> tuple[str, list[Border]]:
    """Return the kind of the parts, and the borders that the splitter of the file finds; none for plain text."""
    suffix = ending(source)
    if suffix in turns.ENDINGS and (found := turns.borders(lines)) is not None:
        return "turn", found
    if suffix in headings.HEADINGS:
        return "markdown", headings.borders(lines, headings.HEADINGS[suffix])
    if language is None:
        return "text", []
    found = python.borders(lines) if language.name == "python" else None
    grammar = grammar_of(suffix)
    if found is None:
        found = syntax_tree.borders(lines, grammar, language) if grammar else definitions.borders(lines, language)
    return language.kind, found or []


def _part(piece: Window, place: int, refs: tuple[str, ...], kind: str) -> Part:
    """Return the part of a window, with its outline."""
    outline = Outline(
        lines=(piece.first + 1, piece.last + 1),
        name=_joined(piece.names),
        order=place,
        speaker=piece.speaker,
        refs=refs,
    )
    return Part(piece.start, piece.end, kind, piece.names[0] if piece.names else "", outline)


def _reference_finder(source: str, kind: str, language: Language | None) -> _ReferenceFinder:
    """Return the function that finds the references of a part, by the rules for its kind."""
    if kind == "markdown":
        return lambda body, _: references.of_prose(body.decode(), source)
    if kind == "code" and language is not None:
        return lambda body, names: references.of_code(body.decode(), source, language, names)
    return lambda _body, _names: ()


def _joined(names: tuple[str, ...]) -> str:
    """Return all names of a part in one text, as many as fit; of nested headings, only the outer ones."""
    if len(names) == 1 and len(names[0]) <= limits.OUTLINE_NAME_CHARS_MAX:
        return names[0]
    shown = [name for name in names if not any(name.startswith(each + headings.SEPARATOR) for each in names)]
    text = ", ".join(shown)
    if len(text) <= limits.OUTLINE_NAME_CHARS_MAX:
        return text
    return text[: limits.OUTLINE_NAME_CHARS_MAX].rpartition(", ")[0] or text[: limits.OUTLINE_NAME_CHARS_MAX]
