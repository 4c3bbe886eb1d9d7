"""The commands on receipts. `rules` decides them."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from stepwell import limits
from stepwell.domain import replies
from stepwell.domain.bounded_types import Body, Cursor, Identifier, PageLimit, ProjectName, UploadNumber
from stepwell.domain.command_roots import Read, Write

Title = Annotated[str, Meta(max_length=limits.TITLE_CHARS_MAX, description="a title has at most 200 characters")]


class StoreReceipt(Write[replies.ReceiptStored], frozen=True):
    """Store a receipt; the oldest receipts make room for it. Storing the same one again has no effect.

    No fragment is demoted to make room in memory for the receipt's body (`no_eviction`).
    """

    no_eviction: ClassVar[bool] = True

    receipt_id: Identifier
    projects: Annotated[
        tuple[ProjectName, ...],
        Meta(min_length=1, max_length=limits.PROJECTS_PER_SESSION_MAX, description="name 1 to 64 projects"),
    ]
    title: Title
    body: Body | UploadNumber

    @property
    def inline(self) -> tuple[int, ...]:
        """The length of the body, if it is inside the command and was not uploaded."""
        return (len(self.body),) if isinstance(self.body, bytes) else ()


class GetReceipt(Read[replies.ReceiptFound], frozen=True):
    """Read one receipt with its body. It is no access and moves nothing."""

    receipt_id: Identifier


class ListReceipts(Read[replies.ReceiptPage], frozen=True):
    """List the receipts of which the session sees every project, from the newest on."""

    limit: PageLimit = 100
    cursor: Cursor | None = None


ReceiptRead = GetReceipt | ListReceipts
ReceiptWrite = StoreReceipt
