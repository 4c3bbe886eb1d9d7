"""Showing: what a fragment looks like among others, so that none changes how the next one is read.

Code stands in a fence that it does not contain. Prose may open one and be cut before its end: it is closed. A turn that
was kept as JSON is shown as what was said.
"""

from __future__ import annotations

import re
from typing import Final

from stepwell.assembly.candidate import AnswerPiece
from stepwell.assembly.stages.dedupe import TURN
from stepwell.assembly.stages.depth import CODE
from stepwell.ingest.splitters.turns import turn_of

FENCE: Final = "```"

_FENCE: Final = re.compile(r"^ {0,3}(`{3,}(?=[^`]*$)|~{3,})(.*)$", re.MULTILINE)


def text_of(piece: AnswerPiece) -> str:
    """The text of a piece, harmless to what follows it; code is not in its fence yet."""
    if piece.kind == CODE:
        return piece.text
    turn = turn_of(piece.text) if piece.kind == TURN and piece.text.startswith("{") else None
    return closed(turn.text if turn and turn.text.strip() else piece.text)


def fenced(text: str) -> str:
    """Code, between fences that are longer than any in it."""
    fence = FENCE
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"


def closed(text: str) -> str:
    """Markdown, with the end of a block that has none."""
    opened = ""
    for found in _FENCE.finditer(text):
        fence, rest = found[1], found[2]
        if not opened:
            opened = fence
        elif fence[0] == opened[0] and len(fence) >= len(opened) and not rest.strip():
            opened = ""
    return f"{text}\n{opened}" if opened else text
