"""The text of a piece, made safe to stand among others: no piece changes how the next one is read.

Code stands in a fence that is longer than any in it. Prose may open a fence and be cut before its end; then the fence
is closed. A turn that is stored as JSON is shown as the words that were said.
"""

from __future__ import annotations

import re
from typing import Final

from stepwell.assembly.candidate import AnswerPiece
from stepwell.assembly.stages.dedupe import TURN
from stepwell.assembly.stages.depth import CODE
from stepwell.ingest.splitters.turns import turn_of

FENCE: Final = "```"  # the shortest one that Markdown has

# A line that opens or closes a block, by the rules of CommonMark: up to three spaces, then three or more backticks or
# tildes. After opening backticks there is no further backtick on the line, or it would be code within a line.
_FENCE: Final = re.compile(r"^ {0,3}(`{3,}(?=[^`]*$)|~{3,})(.*)$", re.MULTILINE)


def displayed_text(piece: AnswerPiece) -> str:
    """Return the text of a piece with all fences closed. Code is not in its own fence yet."""
    if piece.kind == CODE:
        return piece.text
    turn = turn_of(piece.text) if piece.kind == TURN and piece.text.startswith("{") else None
    return with_closed_fence(turn.text if turn and turn.text.strip() else piece.text)


def fenced(text: str) -> str:
    """Return code between fences that are longer than any in it."""
    fence = FENCE
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"


def with_closed_fence(text: str) -> str:
    """Return Markdown with an end for a fenced block that has none."""
    opened = ""
    for found in _FENCE.finditer(text):
        fence, rest = found[1], found[2]
        if not opened:
            opened = fence
        # Only a fence of the same character, at least as long and with nothing behind it, closes a block.
        elif fence[0] == opened[0] and len(fence) >= len(opened) and not rest.strip():
            opened = ""
    return f"{text}\n{opened}" if opened else text
