"""Replay: the text of an answer again, byte for byte, from its receipt and the bodies that the receipt names.

No strategy runs and no stage decides anything: the receipt has the order, the depths and the sections. So a replay
shows what a model has read, also when the strategies or their indexes have changed since.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell import limits
from stepwell.assembly.answer import Answer, StrategyReport
from stepwell.assembly.candidate import AnswerPiece
from stepwell.assembly.inputs import Count, Failure
from stepwell.assembly.receipt import Receipt, ReceiptEntry
from stepwell.assembly.render import LAYOUT, render
from stepwell.assembly.result import fragments_of
from stepwell.assembly.texts import GONE, Unreadable, read
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import BodyGone, InvalidArgument
from stepwell.strategies.protocol import StrategyView


def replay(receipt: Receipt, view: StrategyView, count: Count) -> Answer:
    """Return the answer that a receipt is of.

    Raise `BodyGone` if the view does not have a body any more that the text needs. Raise `InvalidArgument` if the text
    differs from the original, because the receipt was changed or was made by another version.
    """
    pieces: list[AnswerPiece] = []
    gone: list[str] = []
    for entry in receipt.delivered:
        text = _text(entry, view)
        if isinstance(text, Unreadable):
            gone.append(entry.fragment_id)
        else:
            pieces.append(_piece(entry, text))
    if gone:
        more = len(gone) - limits.REPLAY_NAMED_MAX
        named = ", ".join(gone[: limits.REPLAY_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
        raise BodyGone(f"bodies that this receipt names were changed or deleted since: {named}", fragment_ids=gone)
    return _answer(receipt, pieces, count)


def _answer(receipt: Receipt, pieces: Sequence[AnswerPiece], count: Count) -> Answer:
    """Return the answer with the rendered text, after its digest is compared with the receipt's."""
    if receipt.layout > LAYOUT:
        raise InvalidArgument("this receipt was made by a later version of stepwell: replay it with that version")
    text = render(receipt.sections, pieces, receipt.layout)
    if digest_of(text.encode()).hex() != receipt.text_digest:
        raise InvalidArgument(
            "this receipt is of another text than its bodies give: it was changed, or made by another version"
        )
    return Answer(
        fragments=fragments_of(receipt, pieces),
        total_tokens=count(text),
        budget_tokens=receipt.request.budget_tokens,
        strategies=tuple(
            StrategyReport(
                strategy=use.strategy,
                confidence=use.confidence,
                weight=use.weight,
                candidates=use.candidates,
                kept=use.kept,
                failure=Failure(use.strategy, use.failure, "") if use.failure else None,
            )
            for use in receipt.strategies
        ),
        epoch=receipt.epoch,
        revision=receipt.revision,
        text=text,
        receipt=receipt,
    )


def _text(entry: ReceiptEntry, view: StrategyView) -> str | Unreadable:
    """Return the text of a delivered entry.

    A shortened text is in the receipt. A full one is the body of the view, if it still has the same digest.
    """
    assert entry.shown is not None, "what is delivered is shown"
    if entry.shown.text:
        return entry.shown.text
    seen = view.get(entry.fragment_id, project=entry.project) if entry.project in view.projects else None
    if seen is None or seen.row.digest.hex() != entry.digest:
        return Unreadable(GONE)
    return read(view, seen.row)


def _piece(entry: ReceiptEntry, text: str) -> AnswerPiece:
    """Return the piece of a delivered entry with its text."""
    assert entry.shown is not None, "what is delivered is shown"
    assert entry.depth is not None, "what is delivered has a depth"
    return AnswerPiece(
        project=entry.project,
        fragment_id=entry.fragment_id,
        source=entry.source,
        kind=entry.shown.kind,
        place=entry.shown.place,
        lines=entry.lines,
        speaker=entry.shown.speaker,
        depth=entry.depth,
        text=text,
    )
