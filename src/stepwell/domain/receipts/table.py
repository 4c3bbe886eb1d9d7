"""The table of receipts, with their order of storing and the sum of their bytes."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from stepwell.domain.receipts.model import ReceiptRow
from stepwell.domain.tables import SortedTable


class ReceiptTable(SortedTable[ReceiptRow]):
    """Receipts by id and by serial number, and the bytes of their bodies together. Owned by the `State`."""

    def __init__(self) -> None:
        super().__init__()
        self.by_serial: SortedDict[int, str] = SortedDict()
        self.bytes = 0

    @property
    def next_serial(self) -> int:
        """The serial number of the next receipt: one more than that of the newest."""
        return self.by_serial.peekitem()[0] + 1 if self.by_serial else 1

    def swap(self, before: ReceiptRow | None, after: ReceiptRow | None) -> None:
        """Insert or delete a receipt, and update the index and the sum."""
        super().swap(before, after)
        if before is not None:
            del self.by_serial[before.serial]
            self.bytes -= before.size
        if after is not None:
            self.by_serial[after.serial] = after.receipt_id
            self.bytes += after.size

    def before(self, serial: int | None) -> Iterator[ReceiptRow]:
        """Iterate over the receipts that are older than a serial number, or over all, from the newest on."""
        for at in self.by_serial.irange(None, serial, inclusive=(True, False), reverse=True):
            yield self.rows[self.by_serial[at]]

    def surplus(self, count: int, size: int) -> list[ReceiptRow]:
        """Return the oldest receipts whose deletion leaves at most `count`, with at most `size` bytes together."""
        leaving: list[ReceiptRow] = []
        left_count, left_bytes = len(self), self.bytes
        for receipt_id in self.by_serial.values():
            if left_count <= count and left_bytes <= size:
                break
            row = self.rows[receipt_id]
            leaving.append(row)
            left_count -= 1
            left_bytes -= row.size
        return leaving
