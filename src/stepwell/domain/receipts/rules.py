"""The rules of receipts: store, read, list. The newest receipts are kept, and no fragment moves because of them.

Assembling an answer is no access to fragments, and storing its receipt must not disturb them either. Older receipts
make room for a new one, in the same step. If that is not enough, the receipt is refused, and the client goes on without
it. A receipt is immutable, which makes storing idempotent: the same receipt again is a success and changes nothing.
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


@decides(StoreReceipt)
def store_receipt(state: State, command: StoreReceipt, origin: Origin) -> Verdict:
    """Insert a receipt, and delete the oldest ones that exceed the bounds then.

    Raises `AlreadyExists` if another receipt has the id, and `TierFull` if the receipt cannot fit at all.
    """
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
        return Verdict(ReceiptStored(_stored_if_equal(known, row)))
    budget = state.budget
    if size > budget.receipts_bytes:
        raise TierFull(
            f"this receipt has {size} bytes, and all receipts may have {budget.receipts_bytes}: raise bodies_bytes",
            limit=budget.receipts_bytes,
        )
    leaving = state.receipts.surplus(limits.RECEIPTS_MAX - 1, budget.receipts_bytes - size)
    state.bodies.require_room(row.held, budget.bodies_bytes, [body for each in leaving for body in each.held])
    changes = (*(RowChanged(each, None) for each in leaving), RowChanged(None, row))
    inline = {digest: command.body} if isinstance(command.body, bytes) else {}
    return Verdict(ReceiptStored(row), changes, bodies=inline)


@decides(GetReceipt)
def get_receipt(state: State, command: GetReceipt, origin: Origin) -> Verdict:
    """Return one receipt.

    A receipt outside the session's scope is reported as missing, like one that does not exist.
    """
    row = state.receipts.get(command.receipt_id)
    if row is None or not origin.sees(row.projects):
        raise NotFound(
            f"there is no receipt {command.receipt_id!r} in this session's projects, or newer ones took its place",
            receipt_id=command.receipt_id,
        )
    return Verdict(ReceiptFound(row))


@decides(ListReceipts)
def list_receipts(state: State, command: ListReceipts, origin: Origin) -> Verdict:
    """Return a page of receipts, from the newest on.

    Receipts outside the scope are filtered before paging, so that not even the ends of pages tell of them.
    """
    start = None if command.cursor is None else cursor_number(command.cursor)
    page, cursor = build_page(
        (row for row in state.receipts.before(start) if origin.sees(row.projects)),
        command.limit,
        lambda row: str(row.serial),
        size_of=lambda row: sum(map(len, row.projects)) + limits.RECEIPT_ROW_BYTES,
    )
    return Verdict(ReceiptPage(page, cursor))


def _stored_if_equal(known: ReceiptRow, row: ReceiptRow) -> ReceiptRow:
    """Return the stored receipt if the new one equals it; raise `AlreadyExists` otherwise."""
    if (known.projects, known.title, known.digest) != (row.projects, row.title, row.digest):
        raise AlreadyExists(
            f"receipt {row.receipt_id!r} exists already, and is another one: a receipt does not change, store this "
            "one under a new id",
            receipt_id=row.receipt_id,
        )
    return known
