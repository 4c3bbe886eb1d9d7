"""The text of an answer: Markdown with sources and line ranges.

Adjacent parts of a source stand together under one heading. Later runs of the same source begin with an ellipsis, and a
speaker who speaks again is named by initials. All this saves tokens: a heading takes room from the fragments.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from stepwell import limits
from stepwell.assembly.candidate import AnswerPiece
from stepwell.assembly.fences import FENCE, displayed_text, fenced, language_of
from stepwell.assembly.inputs import Key
from stepwell.assembly.stages.dedupe import TURN
from stepwell.assembly.stages.depth import CODE
from stepwell.text import ELLIPSIS

LAYOUT: Final = 2
"""The layout of the text: 1 has no languages behind fences, and a listing of code stands in a fence."""

_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # in a file name, it could attack a terminal


def render(sections: Iterable[str], pieces: Sequence[AnswerPiece], layout: int = LAYOUT) -> str:
    """Return the text of an answer: the sections, and then the pieces in their order.

    The project is named in headings only if there are several. `layout` is `LAYOUT` or, for the replay of an older
    receipt, what that receipt has.
    """
    shows_project = len({piece.project for piece in pieces}) > 1
    sources = (
        render_source(list(group), shows_project=shows_project, layout=layout)
        for _, group in groupby(pieces, _source_key)
    )
    return "\n\n".join(section for section in (*sections, *sources) if section)


def render_source(pieces: Sequence[AnswerPiece], *, shows_project: bool, layout: int = LAYOUT) -> str:
    """Return the text of pieces of one source that follow one another, under one heading."""
    speakers = _SpeakerNames(pieces)
    runs = [_run(run, speakers, layout) for run in _runs(pieces, layout)]
    return "\n".join([f"### {_title(pieces[0], shows_project=shows_project)}{_range(runs[0][0])}", *_bodies(runs)])


def heading_text(piece: AnswerPiece) -> str:
    """Return the text that the first piece of a source needs besides its own, at most. Packing counts its tokens."""
    return f"### {_title(piece, shows_project=True)}{_range(piece.lines)}\n{_fences(piece)}\n\n"


def gap_text(piece: AnswerPiece) -> str:
    """Return the text that a piece needs if it is not adjacent to another one of its source.

    Packing counts its tokens.
    """
    return f"{_ellipsis_line(piece.lines)}\n{_fences(piece)}"


def render_piece(piece: AnswerPiece) -> str:
    """Return the text of a piece by itself, with the separator before the next one. Packing counts its tokens."""
    return f"{speaker_text(piece)}{displayed_text(piece)}{_separator(piece)}"


def speaker_text(piece: AnswerPiece) -> str:
    """Return the longest text that names the speaker of a piece; empty if it has none."""
    if not piece.speaker:
        return ""
    initials = f" ({_initials(piece.speaker)})" if " " in piece.speaker else ""
    return f"{piece.speaker}{initials}: "


def are_adjacent(before: AnswerPiece, after: AnswerPiece, layout: int = LAYOUT) -> bool:
    """Return True if nothing is left out between two pieces of a source, and they are displayed in the same way."""
    is_same = after.kind == before.kind and _is_fenced(after, layout) == _is_fenced(before, layout)
    return is_same and after.place == before.place + 1


def _is_fenced(piece: AnswerPiece, layout: int) -> bool:
    """Return True if a piece stands in a fence. The listing of code is no code."""
    return piece.kind == CODE and (layout < LAYOUT or piece.depth != "listing")


def _source_key(piece: AnswerPiece) -> Key:
    """Return the key by which pieces are grouped. A piece without a source is a group of its own."""
    return piece.project, piece.source or f"\0{piece.fragment_id}"


def _runs(pieces: Sequence[AnswerPiece], layout: int) -> Iterator[list[AnswerPiece]]:
    """Yield the runs of adjacent pieces."""
    run: list[AnswerPiece] = []
    for piece in pieces:
        if run and not are_adjacent(run[-1], piece, layout):
            yield run
            run = []
        run.append(piece)
    yield run


class _SpeakerNames:
    """The names of the speakers of a source: in full the first time, then by initials if these are unambiguous."""

    def __init__(self, pieces: Sequence[AnswerPiece]) -> None:
        # Initials are used only if no other speaker has them, neither as initials nor as a name, and if the speaker
        # has more than one turn: the first one spells out what they stand for.
        turns = Counter(piece.speaker for piece in pieces)
        self._initials: Final = {name: _initials(name) for name in turns if " " in name}
        self._meant: Final = Counter([*self._initials.values(), *turns])
        self._turns: Final = turns
        self._named: Final[set[str]] = set()

    def name(self, speaker: str) -> str:
        """Return the name to write for the next turn of a speaker."""
        initials = self._initials.get(speaker)
        if initials is None or self._meant[initials] > 1 or self._turns[speaker] == 1:
            return speaker
        if speaker in self._named:
            return initials
        self._named.add(speaker)
        return f"{speaker} ({initials})"


def _run(pieces: Sequence[AnswerPiece], speakers: _SpeakerNames, layout: int) -> tuple[tuple[int, int] | None, str]:
    """Return the lines that a run covers, and its text. A speaker who goes on is not named again."""
    first, last = pieces[0].lines, pieces[-1].lines
    parts: list[str] = []
    speaker = ""
    for piece in pieces:
        is_named = piece.speaker and piece.speaker != speaker
        text = displayed_text(piece)
        parts.append(f"{speakers.name(piece.speaker)}: {text}" if is_named else text)
        speaker = piece.speaker
    joined = _separator(pieces[0]).join(parts)
    language = language_of(pieces[0].source) if layout >= LAYOUT else ""
    text = fenced(joined, language) if _is_fenced(pieces[0], layout) else joined
    return (first[0], last[1]) if first and last and first[0] <= last[1] else None, text


def _bodies(runs: Sequence[tuple[tuple[int, int] | None, str]]) -> Iterator[str]:
    """Yield the texts of the runs, with an ellipsis between two of them."""
    for number, (lines, text) in enumerate(runs):
        if number:
            yield _ellipsis_line(lines)
        yield text


def _ellipsis_line(lines: tuple[int, int] | None) -> str:
    """Return the line between two runs: an ellipsis, and the lines of the next run."""
    return f"{ELLIPSIS}{_range(lines)}"


def _title(piece: AnswerPiece, *, shows_project: bool) -> str:
    """Return the title of a source on one line, whatever its name contains."""
    name = _CONTROL_CHARACTER.sub("?", " ".join((piece.source or piece.fragment_id).split()))
    if len(name) > limits.HEADING_CHARS_MAX:
        name = ELLIPSIS + name[-limits.HEADING_CHARS_MAX :]
    return f"{piece.project} {name}" if shows_project else name


def _range(lines: tuple[int, int] | None) -> str:
    """Return a line range as it follows a source; empty if the lines are not known."""
    return f":{lines[0]}-{lines[1]}" if lines else ""


def _separator(piece: AnswerPiece) -> str:
    """Return the text between two pieces: turns of a conversation stand close to each other."""
    return "\n" if piece.kind == TURN else "\n\n"


def _fences(piece: AnswerPiece) -> str:
    """Return the fences that a piece of code needs, to be counted."""
    return f"{FENCE}{language_of(piece.source)}\n{FENCE}\n" if _is_fenced(piece, LAYOUT) else ""


def _initials(name: str) -> str:
    return "".join(word[0] for word in name.split())
