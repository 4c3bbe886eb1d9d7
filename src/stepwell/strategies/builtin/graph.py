"""The graph strategy: fragments near to the focus, or near to the best hits of the query's words.

It starts at the fragments in focus or, without a focus, at the best keyword hits. These are the seeds. A neighbour of a
seed stands beside it in its source, is referred to by it, or refers to it. It gets a part of the seed's score, the
smaller the further away; a neighbour of several seeds gets a part of each. So a turn of a conversation that has none of
the words is found if it stands between two that have them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge, nsmallest
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.strategies.index.index_cache import IndexCache
from stepwell.strategies.index.proximity import Neighbour, ProximityIndex
from stepwell.strategies.index.words.keyword_hits import KeywordSearch
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyView
from stepwell.strategies.ranking import RESULTS_MAX, by_score, fill_budget, has_requested_kind, requested_projects

_FOCUS_SCORE: Final = 1.0  # of a fragment in focus


class _Reached(Struct):
    """A fragment that the walk has reached: its score so far, and the neighbour that contributed most.

    The reason is a text for a seed. For other fragments it is the neighbour, from which the text is made at the end,
    because most fragments are not returned.
    """

    score: float = 0.0
    most: float = 0.0
    reason: str | Neighbour = ""

    def add(self, score: float, neighbour: Neighbour, *, is_sum: bool) -> None:
        """Add the contribution of one neighbour: to the sum, or only if it is the largest."""
        self.score = self.score + score if is_sum else max(self.score, score)
        if score > self.most:
            self.most, self.reason = score, neighbour


_Found = dict[int, _Reached]
"""The reached fragments, by slot of the index."""


class GraphStrategy:
    """Scores by the distance to the focus or to the best keyword hits.

    `breadth` is how many references of a fragment are followed; along its source, four times as many parts to each
    side. `depth` is the number of steps. Scores come from the fragment's own project only.
    """

    name: str = "graph"
    capabilities: frozenset[str] = frozenset({"focus", "kinds", "query", "references"})

    def __init__(self, hits: KeywordSearch | None = None, neighbours: IndexCache[ProximityIndex] | None = None) -> None:
        self._hits: Final = KeywordSearch() if hits is None else hits
        self._neighbours: Final = IndexCache(ProximityIndex) if neighbours is None else neighbours

    def can_handle(self, request: ContextRequest, view: StrategyView) -> float:
        """Return 1 for a focus that exists; otherwise the confidence in the words, times the share
        of linked fragments.
        """
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
        """Return the nearest fragments, the best first; ties by project and id."""
        found = [self._scored(request, view, project) for project in requested_projects(request, view)]
        return fill_budget(merge(*found, key=by_score), budget_tokens)

    def explain(self) -> str:
        """Return the rule in a sentence."""
        return (
            "Begins at the focus, or at the best hits of the query's words, and adds what stands beside them in their "
            "source, what they refer to and what refers to them: the nearer, the better."
        )

    def _scored(self, request: ContextRequest, view: StrategyView, project: str) -> Iterator[ScoredFragment]:
        """Return the best fragments of one project, the best first."""
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
        """Return the best keyword hits, of every kind: a requested fragment may be the neighbour of one of another
        kind.
        """
        found: _Found = {}
        for hit in self._hits.best(request.query, view, neighbours.project, limits.GRAPH_SEEDS_MAX):
            slot = neighbours.slot(hit.row.fragment_id)
            if slot is not None:
                found[slot] = _Reached(hit.score, hit.score, f"has {hit.words}")
        return found


def _focus_slots(request: ContextRequest, neighbours: ProximityIndex) -> Iterator[int]:
    """Return the slots of the fragments and sources that the request has in focus.

    A source means all of its parts, and so does the fragment that lists a file. A source may be named by the end of its
    path.
    """
    for name in request.focus:
        row, slot = neighbours.row(name), neighbours.slot(name)
        if slot is not None:
            yield slot
        files = [row.source] if row is not None and slot is None else neighbours.files(name)
        for source in files:
            yield from neighbours.parts(source)


def _walk(neighbours: ProximityIndex, found: _Found, request: ContextRequest) -> None:
    """Add to `found` the neighbours of the seeds, then their neighbours, as many steps as the request allows.

    In the first step, a neighbour of several seeds gets a part of each. Further away only the best path counts: there
    are so many paths that their sum would outweigh the seeds. The number of fragments whose neighbours are examined is
    bounded over all steps.
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
    """Return the score that a seed passes on: a seed half as good as the best passes on an eighth of the best's."""
    score = found[slot].score
    return score * (score / found[best].score) ** 2


def _scored_fragment(neighbours: ProximityIndex, slot: int, reached: _Reached) -> ScoredFragment:
    row, reason = neighbours.at(slot), reached.reason
    text = reason if isinstance(reason, str) else neighbours.reason(reason)
    return ScoredFragment(row.project, row.fragment_id, reached.score, row.tokens, row.revision, text)


def _rank(neighbours: ProximityIndex, found: _Found, slot: int) -> tuple[float, str]:
    return -found[slot].score, neighbours.at(slot).fragment_id
