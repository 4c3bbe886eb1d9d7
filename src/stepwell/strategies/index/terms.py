"""The words of code and prose by which a fragment is found, the same for what is stored and what is asked.

An identifier is found whole and by its parts: `getUserName` is found by itself, and by `get`, `user` and `name`.
Everything is lower case, numbers are words, and what looks the same is the same (NFKC). An English word is found in all
its forms: `parsed` by `parsing`. Chinese and Japanese put no space between words: a run of their characters is found by
its pairs.

A text is cut into pieces at the signs of ASCII that are in no word. Most pieces have been seen before, and cost no more
than being found again.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator
from itertools import chain
from typing import Final

import Stemmer

from stepwell import limits

STOP_WORD_WEIGHT: Final = 0.1
"""What a stop word is worth beside another of the same frequency.

It decides little more than between fragments that the other words leave equal: a question is not about it.
"""

_WORD_CHARS_MAX: Final = 64  # what is longer, such as a key in base64, is taken for several words
_PIECE_BYTES_REMEMBERED_MAX: Final = 128  # a longer one does not come again

_IN_WORDS: Final = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_") | frozenset(
    range(128, 256)
)
_SPACED: Final = bytes(byte if byte in _IN_WORDS else ord(" ") for byte in range(256))

# A mark belongs to the word that it stands in, but is no "\w"; of the scripts that need them, all but the full stop is.
_CHARACTER: Final = r"[\w\u0300-\u036f\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0900-\u0963\u0966-\u109f]"
_WORD: Final = re.compile(rf"{_CHARACTER}{{1,{_WORD_CHARS_MAX}}}")
_UNSPACED: Final = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]+")
_ASCII_PART: Final = re.compile(r"[A-Z]+(?![a-z])[^A-Z_]*|[A-Z]?[^A-Z_]+")

_stem: Final = Stemmer.Stemmer("english", 0).stemWord  # 0: it need not remember words as well


def pieces(text: bytes) -> list[bytes]:
    """A text in UTF-8, cut into what can be looked up at once."""
    return text.translate(_SPACED).split()


def terms_of(piece: bytes) -> tuple[str, ...]:
    """The terms of a piece. Each counts once in a word: a name of one part does not count twice."""
    return _cached_terms(piece) if len(piece) <= _PIECE_BYTES_REMEMBERED_MAX else _terms(piece)


def term_counts(text: str) -> dict[str, int]:
    """How often each term is in a text."""
    counts: dict[str, int] = {}
    for piece in _pieces(text):
        for term in terms_of(piece):
            counts[term] = counts.get(term, 0) + 1
    return counts


def query_terms(text: str) -> dict[str, str]:
    """The terms of a text, in the order in which they come, each with the word that it stands for."""
    found: dict[str, str] = {}
    for word in chain.from_iterable(map(_words, _pieces(text))):
        for name in _names(word):
            found.setdefault(_stemmed(name), name)
    return found


def distinct_terms(text: str) -> Iterator[str]:
    """The terms of a text, each once, in the order in which they come."""
    return iter(query_terms(text))


def query_weight(term: str) -> float:
    """How much a term counts in a question."""
    return STOP_WORD_WEIGHT if term in _STOP_TERMS else 1.0


def _pieces(text: str) -> list[bytes]:
    return pieces(text.encode(errors="replace"))


def _terms(piece: bytes) -> tuple[str, ...]:
    if piece.isalnum() and len(piece) <= _WORD_CHARS_MAX and piece == piece.lower():
        return (_stemmed(piece.decode()),)
    return tuple(term for word in _words(piece) for term in dict.fromkeys(map(_stemmed, _names(word))))


_cached_terms: Final = functools.lru_cache(maxsize=limits.TERM_WORDS_REMEMBERED_MAX)(_terms)


def _words(piece: bytes) -> list[str]:
    text = piece.decode()
    if text.isascii() and len(text) <= _WORD_CHARS_MAX:
        return [text]
    return _WORD.findall(unicodedata.normalize("NFKC", text))


def _names(word: str) -> list[str]:
    """A word and its parts."""
    return [word.lower(), *_parts(word)] if word.strip("_") else []


def _parts(name: str) -> list[str]:
    """The parts of a name in snake or camel case: `parseHTTPHeader2` is `parse`, `HTTP` and `Header2`."""
    if name.isascii():
        return [part.lower() for part in _ASCII_PART.findall(name)]
    return [hump.lower() for part in name.split("_") for hump in _humps(part) if hump]


def _humps(name: str) -> Iterator[str]:
    if run := _UNSPACED.search(name):
        yield from _humps(name[: run.start()])
        yield from _pairs(run.group())
        yield from _humps(name[run.end() :])
        return
    start = 0
    for at in range(1, len(name)):
        before, here, after = name[at - 1], name[at], name[at + 1 : at + 2]
        if here.isupper() and (not before.isupper() or after.islower()):
            yield name[start:at]
            start = at
    yield name[start:]


def _pairs(run: str) -> Iterator[str]:
    if len(run) == 1:
        yield run
    for at in range(len(run) - 1):
        yield run[at : at + 2]


@functools.lru_cache(maxsize=limits.TERM_WORDS_REMEMBERED_MAX)
def _stemmed(name: str) -> str:
    """A word without its ending; a name that is not only letters is a name, and has none."""
    return _stem(name) if name.isascii() and name.isalpha() else name


_STOP_WORDS: Final = """
    a about above after again against all also am an and any are as at be because been before being below between both
    but by can could did do does doing don down during each few for from further had has have having he her here hers
    herself him himself his how i if in into is it its itself just let me more most my myself no nor not now of off on
    once only or other our ours ourselves out over own same she should so some such than that the their theirs them
    themselves then there these they this those through to too under until up us very was we were what when where which
    while who whom whose why will with would you your yours yourself yourselves
    d ll m re s t ve
"""
"""What most questions have, whatever they are about; the last are what an apostrophe leaves."""

_STOP_TERMS: Final = frozenset(distinct_terms(_STOP_WORDS))
