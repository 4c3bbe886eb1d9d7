"""`ReceiptService`: stores receipts of assembled answers, and finds them again.

A receipt explains how an answer came about. The manager stores it as bytes and never decodes it; its format belongs to
`stepwell.assembly`.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell import limits
from stepwell.client.api.service import BlockingService, Service, method
from stepwell.client.session.calls import Answered, Call, NoEviction
from stepwell.domain.checks import require_instance
from stepwell.domain.receipts.commands import GetReceipt, ListReceipts, StoreReceipt
from stepwell.domain.receipts.model import check_size
from stepwell.domain.replies import ReceiptFound, ReceiptPage
from stepwell.errors import InvalidArgument


class ReceiptCalls(Service):
    """The calls on receipts; their result depends on the kind of service."""

    @method
    def store(self, receipt_id: str, projects: Sequence[str], title: str, data: bytes) -> Call[str]:
        """Store a receipt and return its id. A title that is too long for a line of a list is cut.

        Storing the same receipt again changes nothing. Another receipt under the same id raises `AlreadyExists`.
        """
        if isinstance(projects, str):
            raise InvalidArgument(f"projects is a sequence of names: give [{projects!r}]")
        require_instance(title, (str,), "a title is a str")
        require_instance(data, (bytes,), "a receipt is bytes")
        check_size(len(data))
        is_large = len(data) > limits.INLINE_BODY_BYTES_MAX
        command = StoreReceipt(
            receipt_id=receipt_id,
            projects=tuple(projects),
            title=title[: limits.TITLE_CHARS_MAX],
            body=0 if is_large else data,
        )
        large = {"body": NoEviction(data)} if is_large else None
        return Call(command, lambda answered: answered.reply.receipt.receipt_id, large)

    @method
    def get(self, receipt_id: str) -> Call[bytes]:
        """Return the bytes of a receipt; `NotFound` if newer receipts have replaced it."""
        return Call(GetReceipt(receipt_id), self._read)

    @method
    def list(self, *, limit: int = 100, cursor: str | None = None) -> Call[ReceiptPage]:
        """Return a page of receipts, the newest first, without their bytes."""
        return Call(ListReceipts(limit, cursor))

    def _read(self, answered: Answered[ReceiptFound]) -> bytes:
        digest = answered.reply.receipt.digest
        return bytes(self.session.bodies.read(digest, answered.handles[digest]))


class ReceiptService(ReceiptCalls, BlockingService):
    """Receipts as bytes. Any number of threads and processes may use it.

    The manager keeps a bounded number, the newest. A session finds the receipts of which it may see every project.
    Storing one demotes no fragment: if there is no room, it is refused with `TierFull`, `ResourceExhausted` or `Busy`.
    """
