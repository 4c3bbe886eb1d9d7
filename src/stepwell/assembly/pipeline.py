"""The pipeline: from what strategies found to an answer under a budget.

    select → allocate → fuse → expand → dedupe → score → pack (with depth) → order → preamble, skeleton → render

Tokens do not add up: those of two texts side by side may be more or fewer than those of both. So packing goes by the
counts of pieces, and then the text is counted as it is; what is too much is taken out again, the least worth first,
and what is left over is filled once more.

Everything depends on the question alone: results are taken by the name of their strategy, whoever was first, ties are
broken by project and id, and no clock is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.assembly.answer import Answer
from stepwell.assembly.candidate import Allotment, AnswerPiece, Scored
from stepwell.assembly.components import DEFAULT, Components
from stepwell.assembly.inputs import AssemblyInputs, Failure, Key
from stepwell.assembly.render import render
from stepwell.assembly.result import AssemblyResult, answered
from stepwell.assembly.stages import preamble as preambles
from stepwell.assembly.stages import skeleton as skeletons
from stepwell.assembly.stages.pack import NOTHING, PackContext, Packed, without
from stepwell.assembly.stages.preamble import Summary
from stepwell.assembly.stages.select import sound

LEFT_OVER: Final = 0.01  # of the budget: less is not worth another count
LEFT_OVER_TOKENS: Final = 8


class _Laid(Struct, frozen=True):
    """A text, and what it is made of."""

    packed: Packed
    sections: tuple[str, ...]
    pieces: tuple[AnswerPiece, ...]
    text: str
    tokens: int


def assemble(question: AssemblyInputs, components: Components = DEFAULT) -> Answer:
    """The best that fits. The same question gives the same bytes."""
    request, view = question.request, question.view
    usable = sound(request, view, question.results)
    failures = tuple(sorted((*question.failures, *usable.failures), key=lambda each: (each.strategy, each.kind)))
    chosen = components.select(request, usable.results)
    allotments = components.allocate(request, chosen, question.offers)
    candidates = components.expand(request, view, components.fuse(usable.rows, allotments))
    deduped = components.dedupe(candidates)
    scored = components.score(request, deduped.kept)
    laid = _Layout(question, components, allotments, failures, len(deduped.candidates)).best(scored)
    delivery = AssemblyResult(
        results=usable.results,
        allotments=allotments,
        failures=failures,
        scored=scored,
        deduped=deduped,
        packed=laid.packed,
        sections=laid.sections,
        pieces=laid.pieces,
        text=laid.text,
        tokens=laid.tokens,
    )
    return answered(question, delivery)


class _Layout:
    """Finds what fits, by laying it out."""

    def __init__(
        self,
        question: AssemblyInputs,
        components: Components,
        allotments: Sequence[Allotment],
        failures: Sequence[Failure],
        candidates: int,
    ) -> None:
        self._question: Final = question
        self._components: Final = components
        self._failures: Final = failures
        self._candidates: Final = candidates
        self._budget: Final = question.request.budget_tokens
        self._strategies: Final = [each.result.strategy for each in allotments]
        shares: Mapping[str, int] = {each.result.strategy: each.tokens for each in allotments}
        self._kit: Final = PackContext(question.view, question.count, components.depth, shares)
        self._skeleton: Final = self._skeleton_section()

    def best(self, scored: Sequence[Scored]) -> _Laid:
        """As much as there is room for."""
        by_key = {each.candidate.key: each for each in scored}
        beside = sum(self._question.count(f"{each}\n\n") for each in self._sections(NOTHING, by_key))
        packed = self._components.pack(scored, self._budget - beside, self._kit, NOTHING)
        laid = self._fitted(packed, by_key)
        for _ in range(limits.PACK_FILLS_MAX):
            left = self._budget - laid.tokens
            if left < max(LEFT_OVER_TOKENS, LEFT_OVER * self._budget):
                break
            fuller = self._components.pack(scored, left, self._kit, laid.packed)
            if len(fuller.placed) == len(laid.packed.placed):
                break
            refilled = self._fitted(fuller, by_key)
            if refilled.tokens <= laid.tokens:
                break
            laid = refilled
        return laid

    def _fitted(self, packed: Packed, scored: Mapping[Key, Scored]) -> _Laid:
        """Laid out within the budget: what is too much goes, twice as much each time, so that it is soon done."""
        laid = self._laid(packed, scored)
        spare = 0
        while laid.tokens > self._budget and packed.placed:
            packed = without(packed, laid.tokens - self._budget + spare)
            spare = 2 * spare + 1
            laid = self._laid(packed, scored)
        return laid if laid.tokens <= self._budget else self._without_sections(packed)

    def _without_sections(self, packed: Packed) -> _Laid:
        """Where there is not even room for what comes first."""
        return _Laid(packed, (), (), "", self._question.count(""))

    def _laid(self, packed: Packed, scored: Mapping[Key, Scored]) -> _Laid:
        pieces = self._components.order(packed.placed.values())
        sections = self._sections(packed, scored)
        text = render(sections, pieces)
        return _Laid(packed, sections, pieces, text, self._question.count(text))

    def _sections(self, packed: Packed, scored: Mapping[Key, Scored]) -> tuple[str, ...]:
        """What comes before the pieces; before anything is packed, about as long as it will be."""
        summary = self._summary(packed, scored)
        tokens_max = preambles.tokens_max(self._budget, summary)
        said = self._components.preamble(summary) if scored and (packed is NOTHING or packed.placed) else ()
        first = next((each for each in said if self._question.count(f"{each}\n\n") <= tokens_max), "")
        return tuple(each for each in (first, self._skeleton) if each)

    def _summary(self, packed: Packed, scored: Mapping[Key, Scored]) -> Summary:
        shown = [scored[key].candidate for key in packed.placed]
        named = Counter(vote.strategy for candidate in shown for vote in candidate.votes)
        return Summary(
            shown=len(shown),
            shortened=sum(each.piece.depth != "full" for each in packed.placed.values()),
            candidates=self._candidates,
            strategies={name: named[name] for name in self._strategies},
            neighbours=sum(not candidate.votes for candidate in shown),
            failures=self._failures,
        )

    def _skeleton_section(self) -> str:
        plan = self._question.request.plan
        if plan is None:
            return ""
        return self._components.skeleton(plan, int(self._budget * skeletons.SHARE), self._question.count)
