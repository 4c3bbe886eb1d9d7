"""A receipt: how an answer came about, as its client wrote it down. The manager keeps it, and never looks into it."""

from __future__ import annotations

from msgspec import Struct

from stepwell import limits
from stepwell.domain.tiers.model import BodyRef, Tier
from stepwell.errors import InvalidArgument


def check_size(size: int) -> None:
    """Refuse a receipt that is larger than one should be."""
    if size > limits.RECEIPT_BYTES_MAX:
        raise InvalidArgument(
            f"this receipt has {size} bytes, at most {limits.RECEIPT_BYTES_MAX} are allowed: "
            "ask for fewer candidates, or keep it in a file"
        )


class ReceiptRow(Struct, frozen=True, array_like=True, gc=False):
    """What is known of a receipt. It never changes: there is one, or there is none."""

    receipt_id: str
    projects: tuple[str, ...]  # sorted; whoever may not see all of them does not see it
    title: str
    size: int
    digest: bytes
    created_at_ms: int
    revision: int
    serial: int  # its place in the order of storing, which pages follow

    @property
    def key(self) -> str:
        return self.receipt_id

    @property
    def held(self) -> tuple[BodyRef, ...]:
        return ((self.digest, self.size),)

    @property
    def tier(self) -> Tier:
        """Where its body is kept: on disk, where it takes nothing from fragments that are read often."""
        return Tier.COLD
