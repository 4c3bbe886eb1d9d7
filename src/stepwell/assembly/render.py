"""Render: the text of an answer, Markdown with sources and line ranges.

Neighbouring parts of a source stand together under one heading, later runs of the same source begin with an ellipsis,
and who speaks again is named by initials: what is spent on headings is not there for what they head.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from stepwell import limits
from stepwell.assembly.candidate import AnswerPiece
from stepwell.assembly.fences import FENCE, fenced, text_of
from stepwell.assembly.inputs import Key
from stepwell.assembly.stages.dedupe import TURN
from stepwell.assembly.stages.depth import CODE, ELLIPSIS

_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # a name may be meant to confuse a terminal


def render(sections: Iterable[str], pieces: Sequence[AnswerPiece]) -> str:
    """What comes first, and then the pieces in their order."""
    shows_project = len({piece.project for piece in pieces}) > 1
    sources = (source(list(group), shows_project=shows_project) for _, group in groupby(pieces, _source_key))
    return "\n\n".join(section for section in (*sections, *sources) if section)


def source(pieces: Sequence[AnswerPiece], *, shows_project: bool) -> str:
    """Pieces of one source that follow one another."""
    voices = _Voices(pieces)
    runs = [_run(run, voices) for run in _runs(pieces)]
    return "\n".join([f"### {_title(pieces[0], shows_project=shows_project)}{_range(runs[0][0])}", *_bodies(runs)])


def heading(piece: AnswerPiece) -> str:
    """What the first piece of a source costs besides itself, at the most."""
    return f"### {_title(piece, shows_project=True)}{_range(piece.lines)}\n{_fences(piece)}\n\n"


def gap(piece: AnswerPiece) -> str:
    """What a piece costs that does not stand next to another one."""
    return f"{_gap(piece.lines)}\n{_fences(piece)}"


def shown(piece: AnswerPiece) -> str:
    """A piece by itself, with what separates it from the next."""
    return f"{f'{piece.speaker}: ' if piece.speaker else ''}{text_of(piece)}{_separator(piece)}"


def are_adjacent(before: AnswerPiece, after: AnswerPiece) -> bool:
    """Whether nothing is left out between two pieces of a source, and they look alike."""
    return after.place == before.place + 1 and after.kind == before.kind


def _source_key(piece: AnswerPiece) -> Key:
    """What has no source stands alone."""
    return piece.project, piece.source or f"\0{piece.fragment_id}"


def _runs(pieces: Sequence[AnswerPiece]) -> Iterator[list[AnswerPiece]]:
    run: list[AnswerPiece] = []
    for piece in pieces:
        if run and not are_adjacent(run[-1], piece):
            yield run
            run = []
        run.append(piece)
    yield run


class _Voices:
    """How the speakers of a source are named: in full the first time, and then, if that is clear, by their initials."""

    def __init__(self, pieces: Sequence[AnswerPiece]) -> None:
        turns = Counter(piece.speaker for piece in pieces)
        self._initials: Final = {name: "".join(word[0] for word in name.split()) for name in turns if " " in name}
        self._meant: Final = Counter([*self._initials.values(), *turns])
        self._turns: Final = turns
        self._named: Final[set[str]] = set()

    def name(self, speaker: str) -> str:
        initials = self._initials.get(speaker)
        if initials is None or self._meant[initials] > 1 or self._turns[speaker] == 1:
            return speaker
        if speaker in self._named:
            return initials
        self._named.add(speaker)
        return f"{speaker} ({initials})"


def _run(pieces: Sequence[AnswerPiece], voices: _Voices) -> tuple[tuple[int, int] | None, str]:
    """The lines that a run covers, and its text. Who goes on speaking is not named again."""
    first, last = pieces[0].lines, pieces[-1].lines
    parts: list[str] = []
    speaker = ""
    for piece in pieces:
        is_named = piece.speaker and piece.speaker != speaker
        text = text_of(piece)
        parts.append(f"{voices.name(piece.speaker)}: {text}" if is_named else text)
        speaker = piece.speaker
    joined = _separator(pieces[0]).join(parts)
    text = fenced(joined) if pieces[0].kind == CODE else joined
    return (first[0], last[1]) if first and last and first[0] <= last[1] else None, text


def _bodies(runs: Sequence[tuple[tuple[int, int] | None, str]]) -> Iterator[str]:
    for number, (lines, text) in enumerate(runs):
        if number:
            yield _gap(lines)
        yield text


def _gap(lines: tuple[int, int] | None) -> str:
    return f"{ELLIPSIS}{_range(lines)}"


def _title(piece: AnswerPiece, *, shows_project: bool) -> str:
    """On one line, whatever it is called."""
    name = _UNFIT.sub("?", " ".join((piece.source or piece.fragment_id).split()))
    if len(name) > limits.HEADING_CHARS_MAX:
        name = ELLIPSIS + name[-limits.HEADING_CHARS_MAX :]
    return f"{piece.project} {name}" if shows_project else name


def _range(lines: tuple[int, int] | None) -> str:
    return f":{lines[0]}-{lines[1]}" if lines else ""


def _separator(piece: AnswerPiece) -> str:
    return "\n" if piece.kind == TURN else "\n\n"


def _fences(piece: AnswerPiece) -> str:
    return f"{FENCE}\n{FENCE}\n" if piece.kind == CODE else ""
