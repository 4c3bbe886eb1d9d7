"""Neighbours: what stands around a hit belongs to it.

Who looks for something finds the turn, or the function, that has the words; what answers it is often said just before
or after. So a hit spreads over its source, less with each token in between, and many hits close together count for
more than one; a weak hit says little of itself, and less of what stands around it. Distances are in tokens, not in
parts: short turns are carried along by the dozen, while of a long function hardly the next one is. Parts that no
strategy has named become candidates, too.

How much all this counts depends on the question: if one fragment has all of its words, that one may well be the answer,
and needs nobody beside it. If none has, the answer is spread over several that stand together.

The figures were measured on meetings, code and prose. None of them is sensitive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest
from itertools import islice, pairwise
from typing import Final

from stepwell import limits
from stepwell.assembly.candidate import Candidate, Fused
from stepwell.assembly.inputs import Key
from stepwell.assembly.texts import read
from stepwell.domain.tiers.model import FragmentRow
from stepwell.strategies.index import terms
from stepwell.strategies.protocol import ContextRequest, StrategyView
from stepwell.strategies.ranking import has_requested_kind

REACH_TOKENS: Final = 400.0  # at this distance a hit counts 1/e
SPREAD: Final = 2.0  # what a hit is worth to what stands right beside it, if it has nothing of what is asked
SPREAD_MIN: Final = 0.05  # if it has all of it: so little that neighbours only fill what is left
SUPPORT_MIN: Final = 0.05  # of a part that nobody has named, before that counts; with less it is not considered

Expand = Callable[[ContextRequest, StrategyView, Sequence[Fused]], tuple[Candidate, ...]]
Sources = Mapping[Key, Sequence[FragmentRow]]
"""By project and source, the parts in their order."""


def nearby(request: ContextRequest, view: StrategyView, fused: Sequence[Fused]) -> tuple[Candidate, ...]:
    """Each fragment with what its surroundings are worth, and those parts around the hits that are worth something."""
    hits = {each.key: each for each in fused}
    spread = max(SPREAD_MIN, SPREAD * _unanswered(request, view, fused))
    named: list[Candidate] = []
    added: list[Candidate] = []
    for (project, _), parts in sources(request, view, fused).items():
        found = [hits.pop((project, row.fragment_id), None) for row in parts]
        supports = _supports(parts, [0.0 if hit is None else hit.relevance for hit in found])
        for index, (row, hit, (support, near)) in enumerate(zip(parts, found, supports, strict=True)):
            worth, place = spread * support, place_of(row, index)
            if hit is not None:
                named.append(Candidate(hit.key, row, hit.relevance, worth, place, hit.votes))
            elif support >= SUPPORT_MIN:
                added.append(Candidate((project, row.fragment_id), row, 0.0, worth, place, (), near))
    return (*named, *nsmallest(limits.EXPAND_ADDED_MAX, added, key=_by_support), *map(_alone, hits.values()))


def alone(request: ContextRequest, view: StrategyView, fused: Sequence[Fused]) -> tuple[Candidate, ...]:  # noqa: ARG001 - the others' signature
    """What strategies have named, and nothing else."""
    return tuple(map(_alone, fused))


def _alone(hit: Fused) -> Candidate:
    return Candidate(hit.key, hit.row, hit.relevance, 0.0, place_of(hit.row, 0), hit.votes)


def sources(request: ContextRequest, view: StrategyView, fused: Sequence[Fused]) -> Sources:
    """The parts of those sources that have the best hits, as many as there may be."""
    best = _best_sources(fused)
    found: dict[Key, list[FragmentRow]] = {key: [] for key in best}
    for project in {project: None for project, _ in best}:
        wanted = {source for of, source in best if of == project}
        for row in [row for row in view.rows(project) if row.source in wanted]:  # of 100,000, most are not
            if has_requested_kind(request, row):
                found[project, row.source].append(row)
    kept: dict[Key, Sequence[FragmentRow]] = {}
    room = limits.EXPAND_PARTS_MAX
    for key, parts in found.items():
        room -= len(parts)
        if room < 0:
            break
        kept[key] = sorted(parts, key=_order)
    return kept


def place_of(row: FragmentRow, index: int) -> int:
    """Where a part stands: what its metadata says, or else how many stand before it."""
    order = row.metadata.get("order", "")
    return int(order) if order.isascii() and order.isdigit() and len(order) < 10 else index  # noqa: PLR2004 - as `Outline` has it


def _order(row: FragmentRow) -> tuple[int, int]:
    """What has no place of its own stands where it was stored."""
    return place_of(row, row.serial), row.serial


def _best_sources(fused: Sequence[Fused]) -> list[Key]:
    """Those with the best hits first. What has no source has no neighbours."""
    best: dict[Key, float] = {}
    for each in fused:
        key = each.row.project, each.row.source
        if each.row.source and each.relevance > best.get(key, 0.0):
            best[key] = each.relevance
    return nsmallest(limits.EXPAND_SOURCES_MAX, best, key=lambda key: (-best[key], key))


def _unanswered(request: ContextRequest, view: StrategyView, fused: Sequence[Fused]) -> float:
    """Which part of the question's words the best hit lacks that has most of them; 0 if nothing is asked in words."""
    worths = {
        term: terms.query_weight(term) for term in islice(terms.distinct_terms(request.query), limits.QUERY_TERMS_MAX)
    }
    best = nsmallest(limits.EXPAND_JUDGED_MAX, fused, key=lambda each: (-each.relevance, each.key))
    texts = [text for each in best if isinstance(text := read(view, each.row, limits.EXPAND_JUDGED_BYTES), str)]
    lacking = [_lacking(worths, text) for text in texts] if worths else [0.0]
    return min(lacking, default=1.0)


def _lacking(worths: Mapping[str, float], text: str) -> float:
    has = terms.term_counts(text)
    return sum(worth for term, worth in worths.items() if term not in has) / sum(worths.values())


def _supports(parts: Sequence[FragmentRow], relevances: Sequence[float]) -> list[tuple[float, str]]:
    """What the others come to at each part, as lengths at right angles add up, and which of them counts most there."""
    strengths = [relevance * relevance for relevance in relevances]
    decays = [math.exp(-(before.tokens + after.tokens) / 2 / REACH_TOKENS) for before, after in pairwise(parts)]
    ids = [row.fragment_id for row in parts]
    left = _carried(ids, strengths, decays)
    right = _carried(ids[::-1], strengths[::-1], decays[::-1])[::-1]
    return [
        (math.sqrt(before + after), near_before if most_before >= most_after else near_after)
        for (before, most_before, near_before), (after, most_after, near_after) in zip(left, right, strict=True)
    ]


def _carried(ids: Sequence[str], strengths: Sequence[float], decays: Sequence[float]) -> list[tuple[float, float, str]]:
    """At each part, what those before it come to: the sum of squares, the strongest of them, and whose that is."""
    total, most, near = 0.0, 0.0, ""
    carried = [(total, most, near)]
    for fragment_id, strength, decay in zip(ids, strengths, decays, strict=False):  # the last carries nothing on
        if strength > most:
            most, near = strength, fragment_id
        total = (total + strength * strength) * decay * decay
        most *= decay
        carried.append((total, most, near))
    return carried


def _by_support(candidate: Candidate) -> tuple[float, Key]:
    return -candidate.hierarchy, candidate.key


COMPONENTS: Final[dict[str, Expand]] = {"nearby": nearby, "alone": alone}
