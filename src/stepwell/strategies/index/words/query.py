"""A query as an index reads it: its words with their weights, and the places that it names.

A question is a line; a bug report is a title, prose, code, the output of a program and a traceback. Not all of it says
as much about the place of the bug:

| zone | weight |
|---|---|
| title: the first line | 3 |
| names in backticks, the line with the error | 2 |
| prose | 1 |
| blocks of code | 0.6 |
| lines of a traceback | 0.3 |

The weight of a term is log(1 + the sum of the weights of its occurrences). A number counts in titles and errors
only: the others of a report are versions, lines of files and counts, which other fragments have by chance. All
functions are pure, and linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import log1p
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.strategies.index.words.terms import is_stop_term, query_terms, query_weight, term_counts

TITLE, NAMED, ERROR, PROSE, CODE, TRACEBACK = 3.0, 2.0, 2.0, 1.0, 0.6, 0.3

_NUMBERED_ZONES: Final = frozenset({TITLE, ERROR})
"""The weights of the zones in which numbers are terms."""

_HTML_COMMENT: Final = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_FENCE: Final = re.compile(r"[ \t]*(`{3,}|~{3,})")
_NAMED: Final = re.compile(r"`([^`\n]{1,200})`")
_TRACEBACK: Final = re.compile(r"\s*Traceback \(most recent call last\)")
_ERROR: Final = re.compile(
    r"\s*(?:E\s+)?(?:Caused by: |Exception in thread \S+ |panic: |fatal: |thread '[^']*' panicked at )?"
    r"[\w.$:\\]*(?:Error|Exception|Warning|Panic|Failure|Fault|panic|panicked|error|fatal)\b.{0,20}[:(]"
)
_FRAME: Final = re.compile(
    r"""File\ "(?P<python>[^"\n]{1,300})",\ line\ (?P<python_line>\d{1,7})(?:,\ in\ (?P<python_name>[\w<>]+))?
    | (?P<path>[\w@.~\\/-]{1,300}\.[A-Za-z]\w{0,9}):(?:line\ )?(?P<line>\d{1,7})
      (?::\d{1,7})?(?::in\ [`'](?P<name>[^'\n]{1,100})')?
    | (?P<paren>[\w@.~\\/-]{1,300}\.[A-Za-z]\w{0,9})\((?P<paren_line>\d{1,7})(?:,\d+)?\)
    """,
    re.VERBOSE,
)
_FRAME_LINE: Final = re.compile(r"\s*(?:at\s|File\s\"|from\s\S+:\d|#\d+\s|\d+:\s)|\S+:\d+: in \S+$")
_PATH: Final = re.compile(r"(?<![\w/.-])[\\/]?(?:[\w@.~-]+[\\/])*[\w@-][\w@.-]*\.[A-Za-z]\w{0,9}(?![\w/])")
_DOTTED: Final = re.compile(r"(?<![\w./-])[A-Za-z_]\w*(?:(?:\.|::|\\)[A-Za-z_]\w*)+")

_TESTS: Final = re.compile(
    r"\b(?:(?:unit|integration|regression|which|what|the|add|write|failing|flaky|our) tests?"
    r"|tests? (?:for|of|that|suites?|cases?|coverage|fixtures?)|tests\?|tested|spec files?|scenarios?)(?!\w)",
    re.IGNORECASE,
)
_DOCUMENTS: Final = re.compile(
    r"\b(?:docs?|documentation|documented|readme|changelog|tutorials?|guides?|manual|examples?|samples?|demos?"
    r"|vendor(?:ed)?|third[- ]party|benchmarks?)\b",
    re.IGNORECASE,
)


class Frame(Struct, frozen=True):
    """A line of a file that a traceback or a message names, and perhaps the function."""

    path: str
    line: int
    name: str = ""


class ParsedQuery(Struct, frozen=True):
    """A query with all that an index uses of it.

    - `weights`: the weight of each term.
    - `title_weights`: the same for the title alone; empty if the title is all of the query.
    - `words`: for each term, the word that it stands for.
    - `frames`: the places of tracebacks, the innermost first.
    - `paths`, `dotted`: names that look like files, and names with dots such as `package.module.Class`.
    - `asks_for_tests`, `asks_for_documents`: the title is about them, so that they count as much as the code.
    """

    weights: Mapping[str, float]
    title_weights: Mapping[str, float]
    words: Mapping[str, str]
    frames: tuple[Frame, ...] = ()
    paths: tuple[str, ...] = ()
    dotted: tuple[str, ...] = ()
    asks_for_tests: bool = False
    asks_for_documents: bool = False

    @property
    def content_weights(self) -> Mapping[str, float]:
        """The weights without stop words, unless there are no other words."""
        found = {term: weight for term, weight in self.weights.items() if not is_stop_term(term)}
        return found or self.weights

    def only(self, terms: tuple[str, ...]) -> ParsedQuery:
        """Return a query of some of the terms alone, each with the same weight."""
        return ParsedQuery(dict.fromkeys(terms, 1.0), {}, self.words)


@lru_cache(maxsize=limits.QUERIES_REMEMBERED_MAX)
def parse_query(text: str) -> ParsedQuery:
    """Return a query as an index reads it."""
    zones = [*_zones(_HTML_COMMENT.sub(" ", text))]
    weights: dict[str, float] = {}
    title_weights: dict[str, float] = {}
    for zone, line in zones:
        for term, count in _zone_terms(zone, line):
            weights[term] = weights.get(term, 0.0) + zone * count
            if zone == TITLE:
                title_weights[term] = title_weights.get(term, 0.0) + zone * count
    words: dict[str, str] = {}
    for _, line in zones:
        for term, word in query_terms(line).items():
            words.setdefault(term, word)
    body = "\n".join(line for _, line in zones)
    title = next((line for _, line in zones), "")
    is_title_all = len(zones) <= 1
    return ParsedQuery(
        weights=_bounded(_logarithmic(weights)),
        title_weights={} if is_title_all else _bounded(_logarithmic(title_weights)),
        words=words,
        frames=_frames(body),
        paths=tuple(dict.fromkeys(found[0] for found in _PATH.finditer(body)))[: limits.QUERY_PLACES_MAX],
        dotted=tuple(dict.fromkeys(found[0] for found in _DOTTED.finditer(body)))[: limits.QUERY_PLACES_MAX],
        asks_for_tests=bool(_TESTS.search(title)),
        asks_for_documents=bool(_DOCUMENTS.search(title)),
    )


def _zone_terms(zone: float, line: str) -> Iterator[tuple[str, int]]:
    """Yield the terms of a line that count in its zone, each with its number of occurrences."""
    for term, count in term_counts(line).items():
        if zone in _NUMBERED_ZONES or not term.isdigit():
            yield term, count


def _zones(text: str) -> Iterator[tuple[float, str]]:
    """Yield the lines of a text with the weights of their zones, and each name in backticks once more."""
    fence = ""
    is_title, is_traceback = True, False
    for line in text.splitlines():
        if not line.strip():
            is_traceback = False
            continue
        if (marker := _FENCE.match(line)) and (not fence or marker[1].startswith(fence)):
            fence = "" if fence else marker[1]
            is_traceback = False
            continue
        if is_title:
            yield TITLE, line
            is_title = False
            continue
        if _TRACEBACK.match(line):
            is_traceback = True
        if _ERROR.match(line):
            yield ERROR, line
            is_traceback = False
        elif is_traceback or _FRAME_LINE.match(line):
            yield TRACEBACK, line
        elif fence or line.lstrip().startswith((">>> ", "... ", "$ ")):
            yield CODE, line
        else:
            yield PROSE, line
            for named in _NAMED.finditer(line):
                yield NAMED - PROSE, named[1]


def _logarithmic(weights: Mapping[str, float]) -> dict[str, float]:
    """Return the weights of terms by the sums of their zones. A stop word counts little beside other words."""
    return {term: query_weight(term) * log1p(weight) for term, weight in weights.items()}


def _bounded(weights: dict[str, float]) -> dict[str, float]:
    """Return the terms with the largest weights, as many as a query may have; equal ones in order of occurrence."""
    return dict(sorted(weights.items(), key=lambda item: -item[1])[: limits.QUERY_TERMS_MAX])


def _frames(text: str) -> tuple[Frame, ...]:
    """Return the frames of the tracebacks in a text, the innermost first: Python prints it last, others first."""
    found: list[Frame] = []
    is_python = False
    for match in _FRAME.finditer(text):
        groups = match.groupdict()
        path = groups["python"] or groups["path"] or groups["paren"] or ""
        line = groups["python_line"] or groups["line"] or groups["paren_line"] or "0"
        is_python |= groups["python"] is not None
        found.append(Frame(path.replace("\\", "/"), int(line), groups["python_name"] or groups["name"] or ""))
    ordered = found[::-1] if is_python or all(frame.path.endswith(".py") for frame in found) else found
    return tuple(ordered[: limits.QUERY_PLACES_MAX])
