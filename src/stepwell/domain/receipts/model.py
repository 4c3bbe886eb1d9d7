"""The row of a receipt. A receipt documents how an assembled answer came about, as the client wrote it down.

The manager stores the body of a receipt like any other body and never looks into it: `stepwell.assembly` defines its
format. A receipt never changes. The newest receipts are kept, within bounds in number and bytes.
"""

from __future__ import annotations

from msgspec import Struct

from stepwell import limits
from stepwell.domain.tiers.model import BodyRef, Tier
from stepwell.errors import InvalidArgument
from stepwell.text import brief_repr


def check_size(size: int) -> None:
    """Raise `InvalidArgument` if a receipt is too large. The client checks this too, before it uploads."""
    if size > limits.RECEIPT_BYTES_MAX:
        raise InvalidArgument(
            f"this receipt has {size} bytes, at most {limits.RECEIPT_BYTES_MAX} are allowed: "
            "ask for fewer candidates, or keep it in a file"
        )


class ReceiptRow(Struct, frozen=True, array_like=True, gc=False):
    """A receipt without its body.

    `projects` are sorted and without duplicates; a session that does not see all of them does not see the receipt.
    `serial` is the position in the order of storing, which pages follow.
    """

    receipt_id: str
    projects: tuple[str, ...]
    title: str
    size: int
    digest: bytes
    created_at_ms: int
    revision: int
    serial: int

    __repr__ = brief_repr

    @property
    def key(self) -> str:
        """The key of the receipt in its table."""
        return self.receipt_id

    @property
    def held(self) -> tuple[BodyRef, ...]:
        """The bodies that the row refers to: its own."""
        return ((self.digest, self.size),)

    @property
    def tier(self) -> Tier:
        """The tier of its body: on disk, where it takes no room from fragments that are read often."""
        return Tier.COLD
