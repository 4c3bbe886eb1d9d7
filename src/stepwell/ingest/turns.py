"""Where the parts of a conversation begin: at each turn, one JSON object to a line."""

from __future__ import annotations

from typing import Final, cast

import msgspec

from stepwell.ingest.lines import Border, Lines

ENDINGS: Final = (".jsonl", ".ndjson")
TURNS_MAX: Final = 5_000  # of one file: what has more is split by size

_TEXTS: Final = ("text", "content", "utterance", "message", "body", "value")
_SPEAKERS: Final = ("speaker", "role", "author", "from", "sender", "user", "name")
_EXAMINED: Final = 20  # turns, before it is believed to be a conversation

_decoder = msgspec.json.Decoder(dict[str, object])


def borders(lines: Lines) -> list[Border] | None:
    """One for each line that is not blank; None if most of the first lines are no turns."""
    found: list[Border] = []
    turns = 0
    for number, line in enumerate(lines.texts):
        if not line.strip():
            continue
        speaker = _speaker(line)
        turns += speaker is not None
        found.append(Border(number, speaker=speaker or "", is_alone=True))
        if len(found) > TURNS_MAX or (len(found) == _EXAMINED and 2 * turns < _EXAMINED):
            return None
    return found if turns and 2 * turns >= min(len(found), _EXAMINED) else None


def _speaker(line: str) -> str | None:
    """Who says it, if it is a turn. The message may be wrapped in an envelope."""
    try:
        turn = _decoder.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    inner = turn.get("message")
    for each in (turn, cast("dict[str, object]", inner) if isinstance(inner, dict) else {}):
        says = any(isinstance(each.get(key), str | list) for key in _TEXTS)
        speaker = next((text for key in _SPEAKERS if isinstance(text := each.get(key), str)), None)
        if says and speaker is not None:
            return " ".join(speaker.split())
    return None
