"""The words of code and prose by which a fragment is found, the same for what is stored and what is asked.

An identifier is found whole and by its parts: `http.getUserName` is found by itself, by `http`, by `getUserName`, and
by `get`, `user` and `name`. Everything is lower case, numbers are words, and what looks the same is the same (NFKC).
Chinese and Japanese put no space between words: a run of their characters is found by its pairs.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import Final

WORDS_REMEMBERED_MAX: Final = 1 << 15  # with their terms: few words are most of every text
_PART_CHARS_MAX: Final = 64  # what is longer, such as a key in base64, is taken for several words
_PARTS_MAX: Final = 8  # of a dotted name

# A mark belongs to the word that it stands in, but is no "\w"; of the scripts that need them, all but the full stop is.
_CHARACTER: Final = r"[\w\u0300-\u036f\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0900-\u0963\u0966-\u109f]"
_PART: Final = rf"{_CHARACTER}{{1,{_PART_CHARS_MAX}}}"
_WORD: Final = re.compile(rf"{_PART}(?:\.{_PART}){{0,{_PARTS_MAX - 1}}}")
_UNSPACED: Final = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]+")


def counted(text: str) -> dict[str, int]:
    """How often each term is in a text."""
    counts: dict[str, int] = {}
    for word, count in Counter(_words(text)).items():
        for term in _terms(word):
            counts[term] = counts.get(term, 0) + count
    return counts


def distinct(text: str) -> Iterator[str]:
    """The terms of a text, each once, in the order in which they come."""
    seen: set[str] = set()
    for word in _words(text):
        for term in _terms(word):
            if term not in seen:
                seen.add(term)
                yield term


def _words(text: str) -> list[str]:
    return _WORD.findall(text if text.isascii() else unicodedata.normalize("NFKC", text))


@functools.lru_cache(maxsize=WORDS_REMEMBERED_MAX)
def _terms(word: str) -> tuple[str, ...]:
    """A word and its parts, each once: that a name has one part only does not make it count twice."""
    if word.isascii() and word.isalnum() and word.islower():
        return (word,)
    terms = [word]
    for name in word.split("."):
        terms.append(name)
        for part in name.split("_"):
            terms += _humps(part)
    return tuple(dict.fromkeys(term.lower() for term in terms if term.strip("_")))


def _humps(name: str) -> Iterator[str]:
    """The parts of a name in camel case: `parseHTTPHeader2` is `parse`, `HTTP` and `Header2`."""
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
