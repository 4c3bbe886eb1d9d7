"""The pipeline: from the results of strategies to an answer under a budget.

    select → allocate → fuse → expand → dedupe → score → pack (with depth) → order → preamble, skeleton → render

Tokens do not add up: the tokens of two texts side by side may be more or fewer than the sum of both. So packing goes by
the counts of single pieces, and then the rendered text is counted. If it is too long, the least valuable pieces are
removed; if tokens are left over, packing runs again with what is left.

The answer depends on the inputs alone. Results are taken in order of the strategies' names, not of arrival, ties are
broken by project and id, and no clock is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.assembly.answer import Answer
from stepwell.assembly.candidate import Allotment, AnswerPiece, ScoredCandidate
from stepwell.assembly.components import DEFAULT, Components
from stepwell.assembly.inputs import AssemblyInputs, Failure, Key
from stepwell.assembly.render import render
from stepwell.assembly.result import AssemblyResult, build_answer
from stepwell.assembly.stages import preamble as preambles
from stepwell.assembly.stages import skeleton as skeletons
from stepwell.assembly.stages.pack import NOTHING, PackContext, PackResult, without_least_valuable
from stepwell.assembly.stages.preamble import AnswerSummary
from stepwell.assembly.stages.select import validate_results

LEFT_OVER: Final = 0.01  # of the budget: less is not worth another count of the whole text
LEFT_OVER_TOKENS: Final = 8  # and not less than this


class _Layout(Struct, frozen=True):
    """A rendered text with its exact number of tokens, and the pieces and sections that it is made of."""

    packed: PackResult
    sections: tuple[str, ...]
    pieces: tuple[AnswerPiece, ...]
    text: str
    tokens: int


def assemble(inputs: AssemblyInputs, components: Components = DEFAULT) -> Answer:
    """Return the best answer that fits. The same inputs give the same bytes.

    Raise `InvalidArgument` if two results are of one strategy.
    """
    request, view = inputs.request, inputs.view
    validated = validate_results(request, view, inputs.results)
    failures = tuple(sorted((*inputs.failures, *validated.failures), key=lambda each: (each.strategy, each.kind)))
    chosen = components.select(request, validated.results)
    allotments = components.allocate(request, chosen, inputs.offers)
    candidates = components.expand(request, view, components.fuse(validated.rows, allotments))
    deduped = components.dedupe(candidates)
    scored = components.score(request, deduped.kept)
    layout = _LayoutSearch(inputs, components, allotments, failures, len(deduped.candidates)).best(scored)
    result = AssemblyResult(
        results=validated.results,
        allotments=allotments,
        failures=failures,
        scored=scored,
        deduped=deduped,
        packed=layout.packed,
        sections=layout.sections,
        pieces=layout.pieces,
        text=layout.text,
        tokens=layout.tokens,
    )
    return build_answer(inputs, result)


class _LayoutSearch:
    """The search for a layout that fits into the budget, by rendering and counting. It lives for one assembly."""

    def __init__(
        self,
        inputs: AssemblyInputs,
        components: Components,
        allotments: Sequence[Allotment],
        failures: Sequence[Failure],
        candidates: int,
    ) -> None:
        self._inputs: Final = inputs
        self._components: Final = components
        self._failures: Final = failures
        self._candidates: Final = candidates
        self._budget: Final = inputs.request.budget_tokens
        self._strategies: Final = [each.result.strategy for each in allotments]
        shares: Mapping[str, int] = {each.result.strategy: each.tokens for each in allotments}
        self._context: Final = PackContext(inputs.view, inputs.count, components.depth, shares)
        self._skeleton: Final = self._skeleton_section()

    def best(self, scored: Sequence[ScoredCandidate]) -> _Layout:
        """Return the layout with as many pieces as there is room for.

        Each further fill has to add a piece and tokens, so the search ends also where the counts are not monotonic.
        """
        # The sections before the pieces have their place first. The preamble states numbers that are not known yet,
        # so its length is estimated here; the exact count below corrects the difference.
        by_key = {each.candidate.key: each for each in scored}
        beside = sum(self._inputs.count(f"{each}\n\n") for each in self._sections(NOTHING, by_key))
        packed = self._components.pack(scored, self._budget - beside, self._context, NOTHING)
        layout = self._lay_out_within_budget(packed, by_key)
        for _ in range(limits.PACK_FILLS_MAX):
            left = self._budget - layout.tokens
            if left < max(LEFT_OVER_TOKENS, LEFT_OVER * self._budget):
                break
            fuller = self._components.pack(scored, left, self._context, layout.packed)
            if len(fuller.placed) == len(layout.packed.placed):
                break
            refilled = self._lay_out_within_budget(fuller, by_key)
            if refilled.tokens <= layout.tokens:
                break
            layout = refilled
        return layout

    def _lay_out_within_budget(self, packed: PackResult, scored: Mapping[Key, ScoredCandidate]) -> _Layout:
        """Return a layout that fits, without the least valuable pieces.

        Each round removes about twice as much as the round before, so that few rounds are needed.
        """
        layout = self._lay_out(packed, scored)
        spare = 0
        while layout.tokens > self._budget and packed.placed:
            packed = without_least_valuable(packed, layout.tokens - self._budget + spare)
            spare = 2 * spare + 1
            layout = self._lay_out(packed, scored)
        return layout if layout.tokens <= self._budget else self._empty_layout(packed)

    def _empty_layout(self, packed: PackResult) -> _Layout:
        """Return an empty layout, for a budget that has no room even for the sections before the pieces."""
        return _Layout(packed, (), (), "", self._inputs.count(""))

    def _lay_out(self, packed: PackResult, scored: Mapping[Key, ScoredCandidate]) -> _Layout:
        """Order, render and count."""
        pieces = self._components.order(packed.placed.values())
        sections = self._sections(packed, scored)
        text = render(sections, pieces)
        return _Layout(packed, sections, pieces, text, self._inputs.count(text))

    def _sections(self, packed: PackResult, scored: Mapping[Key, ScoredCandidate]) -> tuple[str, ...]:
        """Return the preamble and the skeleton.

        Before anything is packed, the preamble is about as long as it will be.
        """
        summary = self._summary(packed, scored)
        tokens_max = preambles.tokens_max(self._budget, summary)
        texts = self._components.preamble(summary) if scored and (packed is NOTHING or packed.placed) else ()
        first = next((each for each in texts if self._inputs.count(f"{each}\n\n") <= tokens_max), "")
        return tuple(each for each in (first, self._skeleton) if each)

    def _summary(self, packed: PackResult, scored: Mapping[Key, ScoredCandidate]) -> AnswerSummary:
        """Return the facts that the preamble may state."""
        shown = [scored[key].candidate for key in packed.placed]
        named = Counter(vote.strategy for candidate in shown for vote in candidate.votes)
        return AnswerSummary(
            shown=len(shown),
            shortened=sum(each.piece.depth != "full" for each in packed.placed.values()),
            candidates=self._candidates,
            strategies={name: named[name] for name in self._strategies},
            neighbours=sum(not candidate.votes for candidate in shown),
            failures=self._failures,
        )

    def _skeleton_section(self) -> str:
        """Return the decisions of the request's plan, within their share of the budget; empty without a plan."""
        plan = self._inputs.request.plan
        if plan is None:
            return ""
        return self._components.skeleton(plan, int(self._budget * skeletons.SHARE), self._inputs.count)
