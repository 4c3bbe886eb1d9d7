"""What is near to what matters: beside it in its source, referred to by it, or referring to it.

It begins at the focus or, without one, at the best hits of the query's words. Whatever one of these leads to gets a
part of its score, the smaller the further away; what several lead to gets a part of each. Evidence stands together: a
turn that has none of the words, between two that have them, belongs to what was asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge, nsmallest
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.strategies.index.index_cache import IndexCache
from stepwell.strategies.index.keyword_hits import KeywordSearch
from stepwell.strategies.index.proximity import Neighbour, ProximityIndex
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyView
from stepwell.strategies.ranking import RESULTS_MAX, by_score, fill_budget, has_requested_kind, requested_projects

_FOCUS_SCORE: Final = 1.0  # the score of what is in focus


class _Reached(Struct):
    """A fragment that was found, and by which neighbour most of all."""

    score: float = 0.0
    most: float = 0.0
    reason: str | Neighbour = ""

    def add(self, score: float, neighbour: Neighbour, *, is_sum: bool) -> None:
        self.score = self.score + score if is_sum else max(self.score, score)
        if score > self.most:
            self.most, self.reason = score, neighbour


_Found = dict[int, _Reached]
"""By slot."""


class GraphStrategy:
    """Scores by what a fragment is near to.

    `breadth` is how many references of a fragment are followed, and along its source four times as many parts to each
    side; `depth` is how many steps. All scores are made of those of the fragment's own project.
    """

    name: str = "graph"
    capabilities: frozenset[str] = frozenset({"focus", "kinds", "query", "references"})

    def __init__(self, hits: KeywordSearch | None = None, neighbours: IndexCache[ProximityIndex] | None = None) -> None:
        self._hits: Final = KeywordSearch() if hits is None else hits
        self._neighbours: Final = IndexCache(ProximityIndex) if neighbours is None else neighbours

    def can_handle(self, request: ContextRequest, view: StrategyView) -> float:
        """As sure as the query's words are, if things are near to each other there; sure of a focus that it finds."""
        return max(
            (self._confidence(request, view, project) for project in requested_projects(request, view)), default=0.0
        )

    def _confidence(self, request: ContextRequest, view: StrategyView, project: str) -> float:
        neighbours = self._neighbours.get(view, project)
        if request.focus:
            return float(any(True for _ in _focus_slots(request, neighbours)))
        return (
            neighbours.linked_share * self._hits.confidence(request.query, view, project)
            if neighbours.linked_share
            else 0.0
        )

    def assemble(self, request: ContextRequest, view: StrategyView, budget_tokens: int) -> Sequence[ScoredFragment]:
        """What is near, the best first; ties by project and id. As much as `fill` takes."""
        found = [self._scored(request, view, project) for project in requested_projects(request, view)]
        return fill_budget(merge(*found, key=by_score), budget_tokens)

    def explain(self) -> str:
        """What it goes by."""
        return (
            "Begins at the focus, or at the best hits of the query's words, and adds what stands beside them in their "
            "source, what they refer to and what refers to them: the nearer, the better."
        )

    def _scored(self, request: ContextRequest, view: StrategyView, project: str) -> Iterator[ScoredFragment]:
        neighbours = self._neighbours.get(view, project)
        if request.focus:
            found = {
                slot: _Reached(_FOCUS_SCORE, _FOCUS_SCORE, "in focus") for slot in _focus_slots(request, neighbours)
            }
        else:
            found = self._seeds(request, view, neighbours)
        _walk(neighbours, found, request)
        wanted = (slot for slot in found if has_requested_kind(request, neighbours.at(slot)))
        best = nsmallest(RESULTS_MAX, wanted, key=lambda slot: _rank(neighbours, found, slot))
        return (_scored_fragment(neighbours, slot, found[slot]) for slot in best)

    def _seeds(self, request: ContextRequest, view: StrategyView, neighbours: ProximityIndex) -> _Found:
        """Of every kind: what is wanted may be next to something else."""
        found: _Found = {}
        for hit in self._hits.best(request.query, view, neighbours.project, limits.GRAPH_SEEDS_MAX):
            slot = neighbours.slot(hit.row.fragment_id)
            if slot is not None:
                found[slot] = _Reached(hit.score, hit.score, f"has {hit.words}")
        return found


def _focus_slots(request: ContextRequest, neighbours: ProximityIndex) -> Iterator[int]:
    """The fragments that are named, and all parts of the sources that are; what stands for a file means its parts.

    A source may be named by the end of its path.
    """
    for name in request.focus:
        row, slot = neighbours.row(name), neighbours.slot(name)
        if slot is not None:
            yield slot
        files = [row.source] if row is not None and slot is None else neighbours.files(name)
        for source in files:
            yield from neighbours.parts(source)


def _walk(neighbours: ProximityIndex, found: _Found, request: ContextRequest) -> None:
    """All that is one step away, then what is a step further, and not known yet.

    In the first step, what several seeds lead to gets a part of each. Further away only the best way counts: there are
    so many that all of them together would outweigh the seeds.
    """
    frontier, left = [*found], limits.GRAPH_EXPANDED_MAX
    for step in range(request.depth):
        begun = nsmallest(left, frontier, key=lambda slot: _rank(neighbours, found, slot))
        left -= len(begun)
        known = set(found) if step else set[int]()
        frontier = list[int]()
        scores = [(slot, _seed_strength(found, slot, begun[0]) if not step else found[slot].score) for slot in begun]
        for slot, score in scores:
            for each in neighbours.neighbours_of(slot, request.breadth):
                if each.slot not in found:
                    frontier.append(each.slot)
                if each.slot not in known:
                    found.setdefault(each.slot, _Reached()).add(score * each.weight, each, is_sum=not step)


def _seed_strength(found: _Found, slot: int, best: int) -> float:
    """What a seed has to give: one that is half as good as the best gives an eighth of what that gives."""
    score = found[slot].score
    return score * (score / found[best].score) ** 2


def _scored_fragment(neighbours: ProximityIndex, slot: int, reached: _Reached) -> ScoredFragment:
    row, reason = neighbours.at(slot), reached.reason
    told = reason if isinstance(reason, str) else neighbours.reason(reason)
    return ScoredFragment(row.project, row.fragment_id, reached.score, row.tokens, row.revision, told)


def _rank(neighbours: ProximityIndex, found: _Found, slot: int) -> tuple[float, str]:
    return -found[slot].score, neighbours.at(slot).fragment_id
