"""Delivery: the answer and its receipt, made from what is in the text and from nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from stepwell.assembly.answer import Answer, AnswerFragment, StrategyReport
from stepwell.assembly.candidate import Allotment, AnswerPiece, Candidate, DepthName, Scored, Scores
from stepwell.assembly.inputs import AssemblyInputs, Failure
from stepwell.assembly.receipt import Decision, Receipt, ReceiptEntry, Shown, StrategyUse
from stepwell.assembly.stages.dedupe import Deduped
from stepwell.assembly.stages.pack import NO_ROOM, SHORTENED, Packed, Placed
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.source_outline import lines_of
from stepwell.strategies.payload import StrategyResult

KEPT: Final = "it was among the best that fit"


class AssemblyResult(Struct, frozen=True):
    """What the stages came to."""

    results: tuple[StrategyResult, ...]
    allotments: tuple[Allotment, ...]
    failures: tuple[Failure, ...]
    scored: tuple[Scored, ...]
    deduped: Deduped
    packed: Packed
    sections: tuple[str, ...]
    pieces: tuple[AnswerPiece, ...]
    text: str
    tokens: int


def answered(question: AssemblyInputs, delivery: AssemblyResult) -> Answer:
    """An answer with its receipt."""
    entries = _entries(delivery)
    uses = _uses(delivery)
    receipt = Receipt(
        request=question.request,
        epoch=question.view.epoch,
        revision=question.view.revision,
        total_tokens=delivery.tokens,
        strategies=uses,
        entries=entries,
        sections=delivery.sections,
        text_digest=digest_of(delivery.text.encode()).hex(),
    )
    return Answer(
        fragments=fragments_of(receipt, delivery.pieces),
        total_tokens=delivery.tokens,
        budget_tokens=question.request.budget_tokens,
        strategies=tuple(_reports(delivery, uses)),
        epoch=question.view.epoch,
        revision=question.view.revision,
        text=delivery.text,
        receipt=receipt,
    )


def fragments_of(receipt: Receipt, pieces: Sequence[AnswerPiece]) -> tuple[AnswerFragment, ...]:
    """What is delivered, with the provenance that its receipt has."""
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
            )
        )
    return tuple(found)


class _Fate(Struct, frozen=True):
    """What became of a candidate."""

    decision: Decision
    reason: str
    depth: DepthName | None = None
    shown: Shown | None = None


def _entries(delivery: AssemblyResult) -> tuple[ReceiptEntry, ...]:
    """Of every candidate, the best first; those that another one stands for come last."""
    positions = {piece.key: position for position, piece in enumerate(delivery.pieces)}
    packed, deduped = delivery.packed, delivery.deduped
    entries: list[ReceiptEntry] = []
    for scored in delivery.scored:
        key = scored.candidate.key
        is_kept = key in positions
        fate = _kept(packed.placed[key], positions[key]) if is_kept else _cut(packed.unreadable.get(key, NO_ROOM))
        entries.append(_entry(scored.candidate, scored.scores, fate))
    for candidate in deduped.candidates:
        if first := deduped.dropped.get(candidate.key):
            scores = Scores(0.0, candidate.relevance, candidate.hierarchy, 0.0, 0.0)
            fate = _Fate("deduplicated", f"it has the body of {first[1]} in {first[0]}")
            entries.append(_entry(candidate, scores, fate))
    return tuple(entries)


def _kept(placed: Placed, position: int) -> _Fate:
    piece = placed.piece
    is_full = piece.depth == "full"
    text = "" if is_full else piece.text
    shown = Shown(position, piece.place, piece.kind, piece.speaker, placed.tokens, text)
    return _Fate("kept", KEPT, piece.depth, shown) if is_full else _Fate("shortened", SHORTENED, piece.depth, shown)


@lru_cache(maxsize=16)
def _cut(reason: str) -> _Fate:
    """Most candidates share it."""
    return _Fate("cut", reason)


def _entry(candidate: Candidate, scores: Scores, fate: _Fate) -> ReceiptEntry:
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
        decision=fate.decision,
        reason=fate.reason,
        near=candidate.near,
        depth=fate.depth,
        shown=fate.shown,
    )


def _uses(delivery: AssemblyResult) -> tuple[StrategyUse, ...]:
    """By name: those that were used, those that had nothing to say, and those that failed."""
    shown = {piece.key for piece in delivery.pieces}
    kept = Counter(
        vote.strategy for each in delivery.scored if each.candidate.key in shown for vote in each.candidate.votes
    )
    weights = {each.result.strategy: each for each in delivery.allotments}
    uses = [
        StrategyUse(
            strategy=result.strategy,
            confidence=used.confidence if (used := weights.get(result.strategy)) else result.confidence,
            weight=used.weight if used else 0.0,
            candidates=len(result.fragments),
            kept=kept[result.strategy],
        )
        for result in delivery.results
    ]
    failed = [StrategyUse(strategy=each.strategy, failure=each.kind) for each in delivery.failures]
    return tuple(sorted(uses + failed, key=lambda use: use.strategy))


def _reports(delivery: AssemblyResult, uses: Sequence[StrategyUse]) -> Iterator[StrategyReport]:
    results = {result.strategy: result for result in delivery.results}
    failures = {failure.strategy: failure for failure in delivery.failures}
    for use in uses:
        result = results.get(use.strategy)
        yield StrategyReport(
            strategy=use.strategy,
            confidence=use.confidence,
            weight=use.weight,
            candidates=use.candidates,
            kept=use.kept,
            seconds=result.seconds if result else 0.0,
            explanation=result.explanation if result else "",
            failure=failures.get(use.strategy) if use.failure else None,
        )
