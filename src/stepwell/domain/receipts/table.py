"""The table of receipts."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from stepwell.domain.receipts.model import ReceiptRow
from stepwell.domain.tables import Table


class ReceiptTable(Table[ReceiptRow]):
    """Receipts by id and in the order in which they came, and how many bytes they have."""

    def __init__(self) -> None:
        super().__init__()
        self.by_serial: SortedDict[int, str] = SortedDict()
        self.bytes = 0

    @property
    def next_serial(self) -> int:
        """Behind the newest one."""
        return self.by_serial.peekitem()[0] + 1 if self.by_serial else 1

    def swap(self, before: ReceiptRow | None, after: ReceiptRow | None) -> None:
        super().swap(before, after)
        if before is not None:
            del self.by_serial[before.serial]
            self.bytes -= before.size
        if after is not None:
            self.by_serial[after.serial] = after.receipt_id
            self.bytes += after.size

    def before(self, serial: int | None) -> Iterator[ReceiptRow]:
        """Those that came before one, or all; the newest first."""
        for at in self.by_serial.irange(None, serial, inclusive=(True, False), reverse=True):
            yield self.rows[self.by_serial[at]]

    def surplus(self, count: int, size: int) -> list[ReceiptRow]:
        """The oldest, no more of them than it takes to leave so many, of so many bytes together."""
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
