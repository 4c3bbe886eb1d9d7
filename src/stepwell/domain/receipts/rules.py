"""The rules of receipts: kept for a while, the newest of them, and nothing moves for their sake.

Assembling is no access, and neither is writing down how it went: a receipt for which there is no room is refused, and
whoever wanted to keep it goes on without. What makes way for it are older receipts, in the same step.
"""

from __future__ import annotations

from stepwell import limits
from stepwell.domain.paging import build_page, cursor_number
from stepwell.domain.receipts.commands import GetReceipt, ListReceipts, StoreReceipt
from stepwell.domain.receipts.model import ReceiptRow, check_size
from stepwell.domain.replies import ReceiptFound, ReceiptPage, ReceiptStored
from stepwell.domain.state import State
from stepwell.domain.verdict import Origin, RowChanged, Verdict, decides
from stepwell.errors import AlreadyExists, NotFound, TierFull

_ROW_BYTES = 2 * limits.KIB  # of a page: the title and what else there is, without the projects


@decides(StoreReceipt)
def store_receipt(state: State, command: StoreReceipt, origin: Origin) -> Verdict:
    """Insert, and let the oldest go that are too many then."""
    origin.require(command.projects)
    digest, size = origin.resolve_body(command.body)
    check_size(size)
    row = ReceiptRow(
        receipt_id=command.receipt_id,
        projects=tuple(sorted({*command.projects})),
        title=command.title,
        size=size,
        digest=digest,
        created_at_ms=origin.now_ms,
        revision=state.revision + 1,
        serial=state.receipts.next_serial,
    )
    if known := state.receipts.get(row.receipt_id):
        return Verdict(ReceiptStored(_same(known, row)))
    budget = state.budget
    if size > budget.receipts_bytes:
        raise TierFull(
            f"this receipt has {size} bytes, and all receipts may have {budget.receipts_bytes}: raise bodies_bytes",
            limit=budget.receipts_bytes,
        )
    leaving = state.receipts.surplus(limits.RECEIPTS_MAX - 1, budget.receipts_bytes - size)
    state.bodies.require_room(row.held, budget.bodies_bytes, [held for each in leaving for held in each.held])
    changes = (*(RowChanged(each, None) for each in leaving), RowChanged(None, row))
    inline = {digest: command.body} if isinstance(command.body, bytes) else {}
    return Verdict(ReceiptStored(row), changes, bodies=inline)


@decides(GetReceipt)
def get_receipt(state: State, command: GetReceipt, origin: Origin) -> Verdict:
    """One receipt, if the session may see all its projects: what it may not see, it has not."""
    row = state.receipts.get(command.receipt_id)
    if row is None or not origin.sees(row.projects):
        raise NotFound(
            f"there is no receipt {command.receipt_id!r} in this session's projects, or newer ones took its place",
            receipt_id=command.receipt_id,
        )
    return Verdict(ReceiptFound(row))


@decides(ListReceipts)
def list_receipts(state: State, command: ListReceipts, origin: Origin) -> Verdict:
    """The newest first. What the session may not see does not even show in where a page ends."""
    start = None if command.cursor is None else cursor_number(command.cursor)
    page, cursor = build_page(
        (row for row in state.receipts.before(start) if origin.sees(row.projects)),
        command.limit,
        lambda row: str(row.serial),
        size_of=lambda row: sum(map(len, row.projects)) + _ROW_BYTES,
    )
    return Verdict(ReceiptPage(page, cursor))


def _same(known: ReceiptRow, row: ReceiptRow) -> ReceiptRow:
    """The receipt that is there, if it is what is stored again."""
    if (known.projects, known.title, known.digest) != (row.projects, row.title, row.digest):
        raise AlreadyExists(
            f"receipt {row.receipt_id!r} exists already, and is another one: a receipt does not change, store this "
            "one under a new id",
            receipt_id=row.receipt_id,
        )
    return known
