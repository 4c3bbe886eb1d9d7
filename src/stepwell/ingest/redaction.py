"""Redaction: secrets of known formats in the text of a file are replaced before the file is split.

The whole file is redacted, and not its parts, so that a secret across the border of two parts is found. A replacement
keeps the number of lines, so that the line numbers in an answer are those of the file.

The time is linear in the length of any text. RE2 finds all anchors in one pass. A format is then matched
behind its anchor, within a window of bounded size.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import Final

import re2
from msgspec import Struct

from stepwell import limits
from stepwell.domain.tiers.source_outline import RedactedPlace
from stepwell.ingest.secret_formats import FORMATS
from stepwell.ingest.secret_policy import SecretPolicy

RANDOM: Final = "random text"
"""The kind of a secret that was found by its entropy."""

_ANCHORS: Final = re2.compile("|".join(each.anchor for each in FORMATS).encode())
_NO_TOKEN: Final = re2.compile(rb"[^A-Za-z0-9+/=_.~-]")
_RANDOM: Final = re2.compile(rb"""(?:["']|[=:][ \t]?)([A-Za-z0-9+/=_-]{20,500})""")
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_HEXADECIMAL: Final = re2.compile(rb"[0-9A-Fa-f]+")

_HEXADECIMAL_BITS: Final = 3.0  # entropy of a character: random hexadecimal digits have 4 at most, and words 2 to 3
_TEXT_BITS: Final = 4.5  # random base64 has 6 at most, and identifiers 3 to 4.3


class Redaction(Struct, frozen=True, array_like=True, gc=False):
    """A secret in the bytes of a file: from `start` to before `end`, and its kind. It does not have the secret."""

    start: int
    end: int
    kind: str


def find_secrets(data: bytes, policy: SecretPolicy) -> tuple[Redaction, ...]:
    """Return the secrets in a text in UTF-8, in order and without overlaps; none if secrets are included."""
    if policy is SecretPolicy.INCLUDE:
        return ()
    found = [*_known_secrets(data)]
    if policy is SecretPolicy.REDACT_ENTROPY:
        found = [*_with_random_texts(data, found)]
    return tuple(found)


def redact(data: bytes, redactions: Sequence[Redaction]) -> bytes:
    """Return a text with its secrets replaced. It has as many lines as before."""
    pieces: list[bytes] = []
    done = 0
    for each in redactions:
        line_ends = b"".join(_LINE_END.findall(data, each.start, each.end))
        pieces += (data[done : each.start], f"[redacted: {each.kind}]".encode(), line_ends)
        done = each.end
    return b"".join((*pieces, data[done:])) if pieces else data


def redacted_places(data: bytes, redactions: Sequence[Redaction]) -> tuple[RedactedPlace, ...]:
    """Return the lines, counted from 1, and the kinds of the secrets in a text."""
    if not redactions:
        return ()
    starts = [*accumulate(map(len, data.splitlines(keepends=True)), initial=0)]
    return tuple(
        RedactedPlace(each.kind, (bisect_right(starts, each.start), bisect_right(starts, each.end - 1)))
        for each in redactions
    )


def _known_secrets(data: bytes) -> Iterator[Redaction]:
    """Yield the secrets of known formats."""
    done = 0
    for anchor in _ANCHORS.finditer(data):
        if anchor.start() < done:
            continue  # inside of the secret before it
        if found := _matcher().match(data, anchor.start()):
            done = found.end
            yield found


class _FormatMatcher:
    """The expression of all formats. It takes 20 ms to compile, and most processes never need it."""

    def __init__(self) -> None:
        self._expression = re2.compile("|".join(each.expression for each in FORMATS).encode())

    def match(self, data: bytes, start: int) -> Redaction | None:
        """Return the secret whose format begins at a position; None if there is none."""
        window_end = min(len(data), start + limits.SECRET_BYTES_MAX)
        found = self._expression.match(data, start, window_end)
        if found is None:
            return None
        assert found.lastindex is not None, "each format has one group"
        first, end = found.span(found.lastindex)
        if end == window_end:  # the secret may go on behind the window
            behind = _NO_TOKEN.search(data, end)
            end = behind.start() if behind else len(data)
        return Redaction(first, end, FORMATS[found.lastindex - 1].kind)


@cache
def _matcher() -> _FormatMatcher:
    return _FormatMatcher()


def _with_random_texts(data: bytes, known: Sequence[Redaction]) -> Iterator[Redaction]:
    """Yield the known secrets, and between them texts of high entropy that are quoted or assigned."""
    ends = [0, *(each.end for each in known)]
    borders = [*(each.start for each in known), len(data)]
    for place, (start, end) in enumerate(zip(ends, borders, strict=True)):
        for found in _RANDOM.finditer(data, start, end):
            if _is_random(found[1]):
                yield Redaction(*found.span(1), RANDOM)
        yield from known[place : place + 1]


def _is_random(text: bytes) -> bool:
    """Return True if the characters of a text are as mixed as those of a random one."""
    needed = _HEXADECIMAL_BITS if _HEXADECIMAL.fullmatch(text) else _TEXT_BITS
    return _entropy_bits(Counter(text).values(), len(text)) > needed


def _entropy_bits(counts: Iterable[int], total: int) -> float:
    """Return the entropy of one character, in bits (Shannon)."""
    return -sum(each / total * math.log2(each / total) for each in counts)
