"""The expand stage: fragments that stand around a hit become candidates, and hits that stand together support each
other.

A search finds the turn, or the function, that has the words; the answer is often just before or after it. So a hit
spreads over its source, less with each token in between. Many hits close together count for more than one, and a weak
hit spreads little. Distances are in tokens, not in parts: dozens of short turns are in reach, of long functions hardly
the next one.

The strength of the effect depends on the query. If one fragment has all of its words, it may well be the answer, and
needs no surroundings. If none has, the answer is spread over several fragments that stand together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest
from itertools import islice, pairwise
from operator import attrgetter
from typing import Final

from stepwell import limits
from stepwell.assembly.candidate import Candidate, FusedFragment
from stepwell.assembly.inputs import Key
from stepwell.assembly.source_parts import FindRows, search
from stepwell.assembly.texts import read
from stepwell.domain.tiers.model import FragmentRow
from stepwell.strategies.index.words import terms
from stepwell.strategies.protocol import ContextRequest, StrategyView
from stepwell.strategies.ranking import has_requested_kind

REACH_TOKENS: Final = 400.0  # at this distance a hit counts 1/e
SPREAD: Final = 1.5  # the effect if the best hits have none of the query's words
SPREAD_MIN: Final = 0.05  # the effect if a hit has all of them: surrounding parts then only fill the room that is left
SUPPORT_MIN: Final = 0.05  # of a part that no strategy named: with less it does not become a candidate

Expand = Callable[[ContextRequest, StrategyView, Sequence[FusedFragment]], tuple[Candidate, ...]]
"""A function of the request, the view and the fused fragments to candidates."""
PartsBySource = Mapping[Key, Sequence[FragmentRow]]
"""The parts of each source in their order, by project and source."""


def nearby(
    request: ContextRequest, view: StrategyView, fused: Sequence[FusedFragment], find_rows: FindRows = search
) -> tuple[Candidate, ...]:
    """Return all hits with the support of their surroundings, and the best supported parts around them.

    `find_rows` may remember the rows of a view for the next question.
    """
    hits = {each.key: each for each in fused}
    spread = max(SPREAD_MIN, SPREAD * _missing_share(request, view, fused))
    named: list[Candidate] = []
    added: list[Candidate] = []
    decay_over = _Decays()
    for (project, _), parts in parts_by_source(request, view, fused, find_rows).items():
        found = [hits.pop((project, row.fragment_id), None) for row in parts]
        relevances = [0.0 if hit is None else hit.relevance for hit in found]
        supports, nearest = _support_at_parts(parts, relevances, decay_over)
        for index, (row, hit, support) in enumerate(zip(parts, found, supports, strict=True)):
            if hit is not None:
                named.append(Candidate(hit.key, row, hit.relevance, spread * support, place_of(row, index), hit.votes))
            elif support >= SUPPORT_MIN:
                place, near = place_of(row, index), parts[nearest[index]].fragment_id
                added.append(Candidate((project, row.fragment_id), row, 0.0, spread * support, place, (), near))
    return (*named, *nsmallest(limits.EXPAND_ADDED_MAX, added, key=_by_support), *map(_alone, hits.values()))


def alone(request: ContextRequest, view: StrategyView, fused: Sequence[FusedFragment]) -> tuple[Candidate, ...]:  # noqa: ARG001 - the others' signature
    """Return the hits only, without support."""
    return tuple(map(_alone, fused))


def _alone(hit: FusedFragment) -> Candidate:
    """Return the candidate of a hit without surroundings."""
    return Candidate(hit.key, hit.row, hit.relevance, 0.0, place_of(hit.row, 0), hit.votes)


def parts_by_source(
    request: ContextRequest, view: StrategyView, fused: Sequence[FusedFragment], find_rows: FindRows = search
) -> PartsBySource:
    """Return the parts of the sources that have the best hits, within the bounds of `limits`.

    A source is taken whole or not at all, because the support of a part depends on all parts before it.
    """
    best = _best_sources(fused)
    found: dict[Key, list[FragmentRow]] = {key: [] for key in best}
    for project in {project: None for project, _ in best}:
        wanted = {source for of, source in best if of == project}
        for row in find_rows(project, view.rows(project), wanted):
            if has_requested_kind(request, row):
                found[project, row.source].append(row)
    examined: dict[Key, Sequence[FragmentRow]] = {}
    room = limits.EXPAND_PARTS_MAX
    for key, parts in found.items():
        room -= len(parts)
        if room < 0:
            break
        has_order = any("order" in row.metadata for row in parts)
        examined[key] = sorted(parts, key=_order if has_order else _serial)
    return examined


def place_of(row: FragmentRow, index: int) -> int:
    """Return the position of a part: the one in its metadata or, without one, its index."""
    order = row.metadata.get("order", "")
    return int(order) if order.isascii() and order.isdigit() and len(order) < 10 else index  # noqa: PLR2004 - as `Outline` has it


_serial: Final = attrgetter("serial")


def _order(row: FragmentRow) -> tuple[int, int]:
    """Return the sort key of a part. A part without a declared position stands where it was stored."""
    return place_of(row, row.serial), row.serial


def _best_sources(fused: Sequence[FusedFragment]) -> list[Key]:
    """Return the sources with the best hits, the best first. A fragment without a source has no surroundings."""
    best: dict[Key, float] = {}
    for each in fused:
        key = each.row.project, each.row.source
        if each.row.source and each.relevance > best.get(key, 0.0):
            best[key] = each.relevance
    return nsmallest(limits.EXPAND_SOURCES_MAX, best, key=lambda key: (-best[key], key))


def _missing_share(request: ContextRequest, view: StrategyView, fused: Sequence[FusedFragment]) -> float:
    """Return the share of the query's words that is missing even in the hit that has most of them.

    0 means that one hit has all of them, or that the query has no words. Only the best hits are read.
    """
    weights = {
        term: terms.query_weight(term) for term in islice(terms.distinct_terms(request.query), limits.QUERY_TERMS_MAX)
    }
    best = nsmallest(limits.EXPAND_JUDGED_MAX, fused, key=lambda each: (-each.relevance, each.key))
    texts = [text for each in best if isinstance(text := read(view, each.row, limits.EXPAND_JUDGED_BYTES), str)]
    shares = [_missing_weight(weights, text) for text in texts] if weights else [0.0]
    return min(shares, default=1.0)


def _missing_weight(weights: Mapping[str, float], text: str) -> float:
    """Return the share of the weighted terms that a text does not have."""
    has = terms.term_counts(text)
    return sum(worth for term, worth in weights.items() if term not in has) / sum(weights.values())


class _Decays(dict[int, float]):
    """The share of a support that is left from the middle of one part to that of the next, by their tokens together."""

    def __missing__(self, tokens: int) -> float:
        decay = self[tokens] = math.exp(-tokens / 2 / REACH_TOKENS)
        return decay


def _support_at_parts(
    parts: Sequence[FragmentRow], relevances: Sequence[float], decay_over: Mapping[int, float]
) -> tuple[list[float], list[int]]:
    """Return the support of each part by all other parts, and the place of the part that supports it most.

    Supports add up like perpendicular lengths (the root of the sum of squares), so that many weak hits do not outweigh
    a strong one. One pass from each side computes them, because the decay over a distance is a product of decays.
    """
    strengths = [relevance * relevance for relevance in relevances]
    tokens = [row.tokens for row in parts]
    decays = [decay_over[before + after] for before, after in pairwise(tokens)]
    left, most_left, at_left = _support_from_before(strengths, decays)
    right, most_right, at_right = _support_from_before(strengths[::-1], decays[::-1])
    for each in (right, most_right, at_right):
        each.reverse()
    last = len(parts) - 1
    supports = [math.sqrt(before + after) for before, after in zip(left, right, strict=True)]
    nearest = [
        at if most >= most_behind else last - behind
        for most, at, most_behind, behind in zip(most_left, at_left, most_right, at_right, strict=True)
    ]
    return supports, nearest


def _support_from_before(
    strengths: Sequence[float], decays: Sequence[float]
) -> tuple[list[float], list[float], list[int]]:
    """Return, for each part, the sum of squares of the support by the parts before it, the strongest, and its place."""
    total, most, near = 0.0, 0.0, 0
    totals, strongest, places = [total], [most], [near]
    for place, decay in enumerate(decays):  # no part follows the last one
        strength = strengths[place]
        if strength:
            if strength > most:
                most, near = strength, place
            total += strength * strength
        total = total * decay * decay
        most *= decay
        totals.append(total)
        strongest.append(most)
        places.append(near)
    return totals, strongest, places


def _by_support(candidate: Candidate) -> tuple[float, Key]:
    return -candidate.hierarchy, candidate.key


COMPONENTS: Final[dict[str, Expand]] = {"nearby": nearby, "alone": alone}
