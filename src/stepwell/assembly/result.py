"""The answer and its receipt, made from the delivered text.

The pipeline collects the outputs of its stages in an `AssemblyResult`; this module turns it into the public values. It
decides nothing, so a receipt cannot say anything else than the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from stepwell.assembly.answer import Answer, AnswerFragment, StrategyReport
from stepwell.assembly.candidate import Allotment, AnswerPiece, Candidate, DepthName, Scores
from stepwell.assembly.inputs import AssemblyInputs, Failure
from stepwell.assembly.receipt import Decision, Receipt, ReceiptEntry, ShownPiece, StrategyUse
from stepwell.assembly.render import LAYOUT
from stepwell.assembly.stages.dedupe import DedupeResult
from stepwell.assembly.stages.depth import CUT
from stepwell.assembly.stages.pack import DOCSTRINGS_CUT, NAMED, NO_ROOM, SHORTENED, PackResult, PlacedPiece
from stepwell.assembly.stages.rank import RankedCandidates
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.source_outline import lines_of, redacted_of
from stepwell.strategies.payload import StrategyResult

KEPT: Final = "it was among the best that fit"
"""The reason of a fragment that is shown in full."""


class AssemblyResult(Struct, frozen=True):
    """The outputs of all stages of one assembly.

    `ranked` and `deduped` have every candidate; `packed` and `pieces` have those that are in the text.
    """

    results: tuple[StrategyResult, ...]
    allotments: tuple[Allotment, ...]
    failures: tuple[Failure, ...]
    ranked: RankedCandidates
    deduped: DedupeResult
    packed: PackResult
    sections: tuple[str, ...]
    pieces: tuple[AnswerPiece, ...]
    text: str
    tokens: int


def build_answer(inputs: AssemblyInputs, result: AssemblyResult) -> Answer:
    """Return the answer with its receipt."""
    entries = _entries(result)
    uses = _uses(result)
    receipt = Receipt(
        request=inputs.request,
        epoch=inputs.view.epoch,
        revision=inputs.view.revision,
        total_tokens=result.tokens,
        strategies=uses,
        entries=entries,
        sections=result.sections,
        text_digest=digest_of(result.text.encode()).hex(),
        layout=LAYOUT,
    )
    return Answer(
        fragments=fragments_of(receipt, result.pieces),
        total_tokens=result.tokens,
        budget_tokens=inputs.request.budget_tokens,
        strategies=tuple(_reports(result, uses)),
        epoch=inputs.view.epoch,
        revision=inputs.view.revision,
        text=result.text,
        receipt=receipt,
    )


def fragments_of(receipt: Receipt, pieces: Sequence[AnswerPiece]) -> tuple[AnswerFragment, ...]:
    """Return the delivered fragments with the provenance that the receipt has. Replay uses it, too."""
    found: list[AnswerFragment] = []
    for entry, piece in zip(receipt.delivered, pieces, strict=True):
        assert entry.key == piece.key, "a receipt names what was delivered, in its order"
        assert entry.shown is not None, "what is delivered is shown"
        found.append(
            AnswerFragment(
                project=piece.project,
                fragment_id=piece.fragment_id,
                source=piece.source,
                kind=piece.kind,
                lines=piece.lines,
                depth=piece.depth,
                text=piece.text,
                tokens=entry.shown.tokens,
                tier=entry.tier,
                revision=entry.revision,
                scores=entry.scores,
                votes=entry.votes,
                near=entry.near,
                redacted=entry.redacted,
            )
        )
    return tuple(found)


class _Outcome(Struct, frozen=True):
    """The decision about a candidate, its reason and, if it is shown, how."""

    decision: Decision
    reason: str
    depth: DepthName | None = None
    shown: ShownPiece | None = None


def _entries(result: AssemblyResult) -> tuple[ReceiptEntry, ...]:
    """Return the entries of all candidates in the order of packing; then those left out, and duplicates of others."""
    positions = {piece.key: position for position, piece in enumerate(result.pieces)}
    packed, deduped, ranked = result.packed, result.deduped, result.ranked
    entries: list[ReceiptEntry] = []
    # A candidate is kept if it is among the rendered pieces, because the receipt describes the text. A replaced order
    # stage may leave out pieces that were packed.
    for scored in (*ranked.order, *ranked.left_out):
        key = scored.candidate.key
        is_kept = key in positions
        outcome = (
            _kept_outcome(packed.placed[key], positions[key], is_below_stop=key in ranked.reasons)
            if is_kept
            else _cut_outcome(ranked.reasons.get(key) or packed.unreadable.get(key, NO_ROOM))
        )
        entries.append(_entry(scored.candidate, scored.scores, outcome))
    for candidate in deduped.candidates:
        # A duplicate was never scored: only the parts of a score that are known before the score stage are recorded.
        if first := deduped.dropped.get(candidate.key):
            scores = Scores(0.0, candidate.relevance, candidate.hierarchy, 0.0, 0.0)
            outcome = _Outcome("deduplicated", f"it has the body of {first[1]} in {first[0]}")
            entries.append(_entry(candidate, scores, outcome))
    return tuple(entries)


def _kept_outcome(placed: PlacedPiece, position: int, *, is_below_stop: bool) -> _Outcome:
    """Return the outcome of a fragment in the text.

    A shortened text is stored, because it cannot be read from the body.
    """
    piece = placed.piece
    is_full = piece.depth == "full"
    text = "" if is_full else piece.text
    shown = ShownPiece(position, piece.place, piece.kind, piece.speaker, placed.tokens, text)
    if is_full:
        return _Outcome("kept", KEPT, piece.depth, shown)
    reason = NAMED if is_below_stop else DOCSTRINGS_CUT if piece.depth == CUT else SHORTENED
    return _Outcome("shortened", reason, piece.depth, shown)


@lru_cache(maxsize=16)
def _cut_outcome(reason: str) -> _Outcome:
    """Return the outcome of a fragment that is not in the text. It is cached, because thousands share it."""
    return _Outcome("cut", reason)


def _entry(candidate: Candidate, scores: Scores, outcome: _Outcome) -> ReceiptEntry:
    """Return the entry of one candidate. It copies what the row says now, because the row may change or go."""
    row = candidate.row
    return ReceiptEntry(
        project=row.project,
        fragment_id=row.fragment_id,
        source=row.source,
        lines=lines_of(row.metadata),
        digest=row.digest.hex(),
        revision=row.revision,
        tier=row.tier,
        tokens=row.tokens,
        votes=candidate.votes,
        scores=scores,
        decision=outcome.decision,
        reason=outcome.reason,
        near=candidate.near,
        depth=outcome.depth,
        shown=outcome.shown,
        redacted=redacted_of(row.metadata),
        writer=row.writer,
    )


def _uses(result: AssemblyResult) -> tuple[StrategyUse, ...]:
    """Return the use of each strategy, by name: used ones, ones without a result, and failed ones."""
    shown = {piece.key for piece in result.pieces}
    kept = Counter(
        vote.strategy
        for each in (*result.ranked.order, *result.ranked.further)
        if each.candidate.key in shown
        for vote in each.candidate.votes
    )
    weights = {each.result.strategy: each for each in result.allotments}
    uses = [
        StrategyUse(
            strategy=each.strategy,
            confidence=used.confidence if (used := weights.get(each.strategy)) else each.confidence,
            weight=used.weight if used else 0.0,
            candidates=len(each.fragments),
            kept=kept[each.strategy],
        )
        for each in result.results
    ]
    failed = [StrategyUse(strategy=each.strategy, failure=each.kind) for each in result.failures]
    return tuple(sorted(uses + failed, key=lambda use: use.strategy))


def _reports(result: AssemblyResult, uses: Sequence[StrategyUse]) -> Iterator[StrategyReport]:
    """Yield the public reports of the strategies: the uses, with times, explanations and errors."""
    results = {each.strategy: each for each in result.results}
    failures = {failure.strategy: failure for failure in result.failures}
    for use in uses:
        found = results.get(use.strategy)
        yield StrategyReport(
            strategy=use.strategy,
            confidence=use.confidence,
            weight=use.weight,
            candidates=use.candidates,
            kept=use.kept,
            seconds=found.seconds if found else 0.0,
            explanation=found.explanation if found else "",
            failure=failures.get(use.strategy) if use.failure else None,
        )
