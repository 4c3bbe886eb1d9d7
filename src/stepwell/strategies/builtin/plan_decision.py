"""The plan-decision strategy: fragments that the decisions of a plan and of its ancestors mention.

An agent that carries out a plan has to know what was decided. A decision mentions a fragment if it names the fragment,
its source or a definition in it, or if it shares rare words with it. Decisions of the plan itself count most, and those
of each ancestor half as much as those of its child.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from heapq import merge, nsmallest
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.domain.tiers.model import FragmentRow
from stepwell.strategies.index.index_cache import IndexCache
from stepwell.strategies.index.proximity import ProximityIndex
from stepwell.strategies.index.words.keyword_hits import KeywordSearch
from stepwell.strategies.protocol import ContextRequest, DecisionSeen, ScoredFragment, StrategyView
from stepwell.strategies.ranking import RESULTS_MAX, by_score, fill_budget, has_requested_kind, requested_projects

CONFIDENCE: Final = 0.6  # if there is any decision
NAMED: Final = 1.0  # for a fragment whose id or definition a decision names
IN_NAMED_SOURCE: Final = 0.5  # for a part of a source that a decision names
SHARES_WORDS: Final = 0.5  # for the fragment that shares most words with the decisions; others in proportion
DECAY: Final = 0.5  # for each generation between the plan and the ancestor that decided

_QUOTED: Final = re.compile(r"`([^`\n]{1,512})`")
_TOKEN: Final = re.compile(r"[\w./#:~>-]{2,512}")
_IS_NAME: Final = re.compile(r"[./#:_~]|[a-z][A-Z]|\d")
"""A character that no word of a sentence has: `get` may be a verb, `get_user` is a name."""


class _Mentioned(Struct):
    """A fragment that decisions mention: the sum of all scores, and the reason of the largest."""

    row: FragmentRow
    score: float = 0.0
    most: float = 0.0
    reason: str = ""

    def add(self, score: float, reason: str) -> None:
        self.score += score
        if score > self.most:
            self.most, self.reason = score, reason


class PlanDecisionStrategy:
    """Scores by mentions in decisions, and by the words that decisions share with a fragment.

    Nearer plans count more.
    """

    name: str = "plan-decision"
    capabilities: frozenset[str] = frozenset({"kinds", "plan"})

    def __init__(self, hits: KeywordSearch | None = None, neighbours: IndexCache[ProximityIndex] | None = None) -> None:
        self._hits: Final = KeywordSearch() if hits is None else hits
        self._neighbours: Final = IndexCache(ProximityIndex) if neighbours is None else neighbours

    def can_handle(self, request: ContextRequest, view: StrategyView) -> float:
        """Return 0 for a request without a plan, or a plan without decisions."""
        return CONFIDENCE if len(view) and request.plan is not None and request.plan.decisions else 0.0

    def assemble(self, request: ContextRequest, view: StrategyView, budget_tokens: int) -> Sequence[ScoredFragment]:
        """Return the mentioned fragments, the best first; ties by project and id."""
        found = [self._scored(request, view, project) for project in requested_projects(request, view)]
        return fill_budget(merge(*found, key=by_score), budget_tokens)

    def explain(self) -> str:
        """Return the rule in a sentence."""
        return (
            "Shows what the decisions of the plan and of its ancestors name, or share rare words with; "
            "what a nearer plan decided counts more."
        )

    def _scored(self, request: ContextRequest, view: StrategyView, project: str) -> list[ScoredFragment]:
        """Return the best fragments of one project, the best first."""
        mentioned: dict[str, _Mentioned] = {}
        for generation, decisions in enumerate(_generations(request)):
            weight = DECAY**generation
            for row, score, reason in self._named(view, project, decisions):
                mentioned.setdefault(row.fragment_id, _Mentioned(row)).add(weight * score, reason)
            for row, score, reason in self._sharing_words(view, project, decisions):
                mentioned.setdefault(row.fragment_id, _Mentioned(row)).add(weight * score, reason)
        scored = (
            ScoredFragment(project, each.row.fragment_id, each.score, each.row.tokens, each.row.revision, each.reason)
            for each in mentioned.values()
            if has_requested_kind(request, each.row)
        )
        return nsmallest(RESULTS_MAX, scored, key=by_score)

    def _named(
        self, view: StrategyView, project: str, decisions: Sequence[DecisionSeen]
    ) -> Iterator[tuple[FragmentRow, float, str]]:
        """Return the fragments that decisions name, each once, with the score of its most exact name.

        An id is more exact than a definition, and a definition more exact than a source.
        """
        neighbours = self._neighbours.get(view, project)
        best: dict[int, tuple[float, str]] = {}
        for name, decision in _names(decisions).items():
            slot = neighbours.slot(name)
            parts = [each for source in neighbours.files(name) for each in neighbours.parts(source)]
            meant = [slot] if slot is not None else [] if parts else neighbours.targets_of(name)
            for score, slots in ((IN_NAMED_SOURCE, parts[: limits.DECISION_PARTS_MAX]), (NAMED, meant)):
                for each in slots:
                    if score > best.get(each, (0.0, ""))[0]:
                        best[each] = score, f"named by decision {decision.decision_id}"
        for slot, (score, reason) in best.items():
            yield neighbours.at(slot), score, reason

    def _sharing_words(
        self, view: StrategyView, project: str, decisions: Sequence[DecisionSeen]
    ) -> Iterator[tuple[FragmentRow, float, str]]:
        """Return the fragments that share rare words with the decisions."""
        text = "\n".join(each.text for each in reversed(decisions))  # the latest first: the search reads the beginning
        hits = self._hits.best_of_rarest(text, view, project, limits.DECISION_HITS_MAX, limits.DECISION_TERMS_MAX)
        for hit in hits:
            reason = f"decisions of plan {decisions[0].plan_id} have {hit.words}"
            yield hit.row, SHARES_WORDS * hit.score / hits[0].score, reason


def _generations(request: ContextRequest) -> list[list[DecisionSeen]]:
    """Return the decisions by generation, each in order of recording; a generation may have none."""
    decisions = request.plan.decisions if request.plan else ()
    return [
        [each for each in decisions if min(each.depth, limits.DECISION_GENERATIONS_MAX - 1) == generation]
        for generation in range(limits.DECISION_GENERATIONS_MAX)
    ]


def _names(decisions: Sequence[DecisionSeen]) -> dict[str, DecisionSeen]:
    """Return the texts that look like names, with the decision of each: in backticks, or unlike any word of a sentence.

    The latest decisions come first, because the number of names is bounded.
    """
    found: dict[str, DecisionSeen] = {}
    for decision in reversed(decisions):
        quoted = _QUOTED.findall(decision.text)
        tokens = (each.strip(".:#>-") for each in _TOKEN.findall(decision.text))
        for name in (*quoted, *(each for each in tokens if _IS_NAME.search(each))):
            if len(found) < limits.DECISION_NAMES_MAX:
                found.setdefault(name, decision)
    return found
