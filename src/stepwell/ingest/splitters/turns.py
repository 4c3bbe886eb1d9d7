"""Borders of conversations with one JSON object to a line: each turn is a part, with its speaker.

There is no standard for such files, so the usual names of fields are tried. A file counts as a conversation if at least
half of its first lines are turns.
"""

from __future__ import annotations

from typing import Final, cast

import msgspec
from msgspec import Struct

from stepwell import limits
from stepwell.ingest.splitters.lines import Border, Lines

ENDINGS: Final = (".jsonl", ".ndjson")

# The names of fields that hold the text and the speaker; the first that is there counts.
_TEXTS: Final = ("text", "content", "utterance", "message", "body", "value")
_SPEAKERS: Final = ("speaker", "role", "author", "from", "sender", "user", "name")

_decoder = msgspec.json.Decoder(dict[str, object])


class DialogueTurn(Struct, frozen=True):
    """A speaker, and the text that is said: empty if the turn has more than text."""

    speaker: str
    text: str


def borders(lines: Lines) -> list[Border] | None:
    """Return a border for each line that is not blank; None if the file is no conversation, or is too long."""
    found: list[Border] = []
    turns = 0
    for number, line in enumerate(lines.texts):
        if not line.strip():
            continue
        turn = turn_of(line)
        turns += turn is not None
        found.append(Border(number, speaker=turn.speaker if turn else "", is_alone=True))
        is_other = len(found) == limits.INGEST_TURNS_EXAMINED and 2 * turns < limits.INGEST_TURNS_EXAMINED
        if is_other or len(found) > limits.INGEST_TURNS_MAX:
            return None
    return found if turns and 2 * turns >= min(len(found), limits.INGEST_TURNS_EXAMINED) else None


def turn_of(line: str) -> DialogueTurn | None:
    """Return the turn of a JSON object, or None if it is no turn. The message may be wrapped in an envelope."""
    try:
        outer = _decoder.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    inner = outer.get("message")
    for each in (outer, cast("dict[str, object]", inner) if isinstance(inner, dict) else {}):
        text = next((found for key in _TEXTS if (found := _text(each.get(key))) is not None), None)
        speaker = next((name for key in _SPEAKERS if isinstance(name := each.get(key), str)), None)
        if text is not None and speaker is not None:
            return DialogueTurn(" ".join(speaker.split()), text)
    return None


def _text(value: object) -> str | None:
    """Return the text of a field, or of its parts; empty if a part is no text, such as a picture; None if it is
    neither.
    """
    if not isinstance(value, list):
        return value if isinstance(value, str) else None
    texts: list[str] = []
    for part in cast("list[object]", value):
        text = cast("dict[str, object]", part).get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            return ""
        texts.append(text)
    return "\n".join(texts)
