"""The terms by which a fragment is found: words of code and prose, the same for bodies and for queries.

An identifier is found whole and by its parts: `getUserName` is found by itself, and by `get`, `user` and `name`. All
terms are lower case, numbers are words, and characters that look the same are the same (NFKC). An English word is found
in all its forms: `parsed` by `parsing`. Chinese and Japanese have no spaces between words, so a run of their characters
is found by its pairs.

A text is first cut into pieces at the ASCII characters that are in no word. Most pieces have been seen before, and the
terms of a known piece are one dict lookup.
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
"""The weight of a stop word beside another word, where a share of words is measured."""

_WORD_CHARS_MAX: Final = 64  # a longer word, such as a key in base64, is cut into several
_PIECE_BYTES_REMEMBERED_MAX: Final = 128  # a longer piece is unlikely to come again

_IN_WORDS: Final = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_") | frozenset(
    range(128, 256)
)
_SPACED: Final = bytes(byte if byte in _IN_WORDS else ord(" ") for byte in range(256))

# A combining mark belongs to the word that it stands in, but "\w" does not match it. So the pattern has the marks of
# the scripts that need them, and leaves out their full stops.
_CHARACTER: Final = r"[\w\u0300-\u036f\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0900-\u0963\u0966-\u109f]"
_WORD: Final = re.compile(rf"{_CHARACTER}{{1,{_WORD_CHARS_MAX}}}")
_UNSPACED: Final = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]+")
_ASCII_PART: Final = re.compile(r"[A-Z]+(?![a-z])[^A-Z_]*|[A-Z]?[^A-Z_]+")

_stem: Final = Stemmer.Stemmer("english", 0).stemWord  # 0: no cache of its own, because `_stemmed` has one


def pieces(text: bytes) -> list[bytes]:
    """Cut a text in UTF-8 into pieces, at all ASCII characters that are in no word."""
    return text.translate(_SPACED).split()


def terms_of(piece: bytes) -> tuple[str, ...]:
    """Return the terms of a piece. Each counts once in a word: a name of one part does not count twice."""
    return _cached_terms(piece) if len(piece) <= _PIECE_BYTES_REMEMBERED_MAX else _terms(piece)


def term_counts(text: str) -> dict[str, int]:
    """Return how often each term occurs in a text."""
    counts: dict[str, int] = {}
    for piece in _pieces(text):
        for term in terms_of(piece):
            counts[term] = counts.get(term, 0) + 1
    return counts


def query_terms(text: str) -> dict[str, str]:
    """Return the terms of a text in order of occurrence, each with the word that it stands for."""
    found: dict[str, str] = {}
    for word in chain.from_iterable(map(_words, _pieces(text))):
        for term, name in _named_terms(word):
            found.setdefault(term, name)
    return found


def distinct_terms(text: str) -> Iterator[str]:
    """Iterate over the terms of a text, each once, in order of occurrence."""
    return iter(query_terms(text))


def query_weight(term: str) -> float:
    """Return how much a term counts in the share of a query that a text has: less than 1 for a stop word."""
    return STOP_WORD_WEIGHT if term in _STOP_TERMS else 1.0


def is_stop_term(term: str) -> bool:
    """Return True for the term of an English word that most texts have, whatever they are about."""
    return term in _STOP_TERMS


def _pieces(text: str) -> list[bytes]:
    return pieces(text.encode(errors="replace"))


def _terms(piece: bytes) -> tuple[str, ...]:
    """Return the terms of a piece without the cache. A lower case ASCII word, the usual case, needs no pattern."""
    if piece.isalnum() and len(piece) <= _WORD_CHARS_MAX and piece == piece.lower():
        word = piece.decode()
        return (word,) if (stem := _stemmed(word)) == word else (word, stem)
    return tuple(term for word in _words(piece) for term, _ in _named_terms(word))


_cached_terms: Final = functools.lru_cache(maxsize=limits.TERM_WORDS_REMEMBERED_MAX)(_terms)


def _words(piece: bytes) -> list[str]:
    """Return the words of a piece. Pieces are cut at ASCII characters only; other separators are found here."""
    text = piece.decode()
    if text.isascii() and len(text) <= _WORD_CHARS_MAX:
        return [text]
    return _WORD.findall(unicodedata.normalize("NFKC", text))


def _named_terms(word: str) -> list[tuple[str, str]]:
    """Return the terms of a word, each with the name that it stands for: the whole word, and the stems of its parts."""
    if not word.strip("_"):
        return []
    whole = word.lower()
    return [*{whole: whole, **{_stemmed(part): part for part in _parts(word) if part}}.items()]


def _parts(name: str) -> list[str]:
    """Return the parts of a name in snake or camel case: `parseHTTPHeader2` has `parse`, `HTTP` and `Header2`."""
    if name.isascii():
        return [part.lower() for part in _ASCII_PART.findall(name)]
    return [hump.lower() for part in name.split("_") for hump in _humps(part) if hump]


def _humps(name: str) -> Iterator[str]:
    """Yield the parts of a name in camel case that is not ASCII; a run without spaces is cut into pairs."""
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
    """Yield the overlapping pairs of characters of a run."""
    if len(run) == 1:
        yield run
    for at in range(len(run) - 1):
        yield run[at : at + 2]


@functools.lru_cache(maxsize=limits.TERM_WORDS_REMEMBERED_MAX)
def _stemmed(name: str) -> str:
    """Return the stem of an English word. A name that has other characters than letters is not stemmed."""
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
"""Words that most questions have, whatever they are about. The last line is what an apostrophe leaves."""

_STOP_TERMS: Final = frozenset(distinct_terms(_STOP_WORDS))

_KEYWORD_TEXT: Final = """
    and as assert async await break case catch class const continue def default defer del delete do done double echo
    elif else elsif end enum esac except export extends extern f False false fi final finally float fn for foreach
    from func function global goto if impl implements import in include inline instanceof int interface is lambda let
    long match mod mut namespace new nil None nonlocal not null operator or package pass private protected pub public
    r raise return self Self short signed sizeof static struct super switch template this throw throws trait True true
    try type typedef typename typeof undefined union unless unsafe unsigned until use using var virtual void volatile
    when where while with yield cls b u
"""
KEYWORDS: Final = frozenset(word.encode() for word in _KEYWORD_TEXT.split())
"""Pieces that every program has, and that have no terms there. As words of prose, in a comment, they are found."""
