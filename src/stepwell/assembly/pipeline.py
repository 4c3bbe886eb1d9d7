"""The pipeline: from the results of strategies to an answer under a budget.

    select → allocate → fuse → expand → dedupe → score → rank → pack (with depth) → order → preamble, skeleton → render

Tokens do not add up: the tokens of two texts side by side may be more or fewer than the sum of both. So packing goes by
the counts of single pieces, and counts the rendered text where the difference may decide. The whole text is counted at
the end; if it is too long all the same, packing runs again with less room.

The answer depends on the inputs alone. Results are taken in order of the strategies' names, not of arrival, ties are
broken by project and id, and no clock is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
from stepwell.assembly.stages.pack import PackContext, PackResult, PlacedPiece, without_worst
from stepwell.assembly.stages.preamble import AnswerSummary
from stepwell.assembly.stages.rank import RankContext, RankedCandidates
from stepwell.assembly.stages.select import validate_results


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
    ranked = components.rank(RankContext(request, validated.results, allotments, inputs.offers), scored)
    layout = _LayoutSearch(inputs, components, allotments, failures, len(deduped.candidates)).best(ranked)
    result = AssemblyResult(
        results=validated.results,
        allotments=allotments,
        failures=failures,
        ranked=ranked,
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
        self._context: Final = PackContext(inputs.view, inputs.count, components.depth, self._pieces_tokens)
        self._skeleton, self._skeleton_tokens = self._skeleton_section()
        # Of what the skeleton leaves: if both took their shares of the budget, a larger one could leave less room.
        self._preamble_tokens: Final = self._preamble_room(self._budget - self._skeleton_tokens)

    def best(self, ranked: RankedCandidates) -> _Layout:
        """Return the layout with the best pieces that there is room for.

        The sections before the pieces have room of their own. So the room for pieces does not depend on them, and never
        becomes less when the budget grows.
        """
        scored = {each.candidate.key: each for each in (*ranked.order, *ranked.further)}
        room = self._budget - self._preamble_tokens - self._skeleton_tokens
        packed = self._components.pack(ranked, room, self._context)
        layout = self._lay_out(packed, scored)
        # No more than a safeguard: with the usual encodings, a text has no more tokens than its parts have.
        for _ in range(limits.PACK_ROUNDS_MAX):
            if layout.tokens <= self._budget:
                break
            room -= layout.tokens - self._budget
            packed = self._components.pack(ranked, room, self._context)
            layout = self._lay_out(packed, scored)
        spare = 0
        while layout.tokens > self._budget and packed.placed:
            packed = without_worst(packed, layout.tokens - self._budget + spare)
            spare = 2 * spare + 1
            layout = self._lay_out(packed, scored)
        return layout if layout.tokens <= self._budget else _Layout(packed, (), (), "", self._inputs.count(""))

    def _lay_out(self, packed: PackResult, scored: Mapping[Key, ScoredCandidate]) -> _Layout:
        """Order, render and count."""
        pieces = self._components.order(packed.placed.values())
        sections = tuple(each for each in (self._preamble(packed, scored), self._skeleton) if each)
        text = render(sections, pieces)
        return _Layout(packed, sections, pieces, text, self._inputs.count(text))

    def _pieces_tokens(self, placed: Iterable[PlacedPiece]) -> int:
        """Return the tokens of pieces as they stand in the text, with the blank line after them."""
        text = render((), self._components.order(placed))
        return self._inputs.count(f"{text}\n\n") if text else 0

    def _preamble(self, packed: PackResult, scored: Mapping[Key, ScoredCandidate]) -> str:
        """Return the first text of the preamble that its room is enough for; empty if nothing is shown."""
        if not packed.placed:
            return ""
        shown = [scored[key].candidate for key in packed.placed]
        named = Counter(vote.strategy for candidate in shown for vote in candidate.votes)
        summary = AnswerSummary(
            shown=len(shown),
            shortened=sum(each.piece.depth != "full" for each in packed.placed.values()),
            candidates=self._candidates,
            strategies={name: named[name] for name in self._strategies},
            neighbours=sum(not candidate.votes for candidate in shown),
            failures=self._failures,
        )
        texts = self._components.preamble(summary)
        return next((each for each in texts if self._tokens(each) <= self._preamble_tokens), "")

    def _preamble_room(self, tokens: int) -> int:
        """Return how many of these tokens are reserved for the preamble, whatever its numbers will be."""
        most = self._candidates
        summary = AnswerSummary(
            shown=most,
            shortened=most,
            candidates=most,
            strategies=dict.fromkeys(self._strategies, most),
            neighbours=most,
            failures=self._failures,
        )
        lengths = [self._tokens(each) for each in self._components.preamble(summary) if each]
        return max(0, preambles.room_tokens(tokens, lengths, has_failures=bool(self._failures)))

    def _tokens(self, section: str) -> int:
        """Return the tokens of a section with the blank line after it."""
        return self._inputs.count(f"{section}\n\n") if section else 0

    def _skeleton_section(self) -> tuple[str, int]:
        """Return the decisions of the request's plan, and the tokens reserved for them; nothing without a plan.

        The reserved tokens are the share of the budget, or less if all decisions need less.
        """
        plan, count = self._inputs.request.plan, self._inputs.count
        if plan is None:
            return "", 0
        share = int(self._budget * skeletons.SHARE)
        whole = self._components.skeleton(plan, limits.REQUEST_TOKENS_MAX, count)
        return self._components.skeleton(plan, share, count), min(share, self._tokens(whole))
