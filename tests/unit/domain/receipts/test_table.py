"""The table of receipts follows its rows, forwards and backwards."""

from stepwell.domain.receipts.model import ReceiptRow
from stepwell.domain.receipts.table import ReceiptTable


def test_receipts_are_in_the_order_of_storing() -> None:
    """Whatever their ids are; as many of the oldest are too many as have to be, and undone they are back."""
    table, names = ReceiptTable(), ("c", "a", "b")
    rows = [ReceiptRow(name, ("p",), "", 10, b"", 0, 1, serial) for serial, name in enumerate(names, 1)]
    assert (table.next_serial, list(table.before(None)), table.surplus(0, 0)) == (1, [], [])
    for row in rows:
        table.swap(None, row)
    assert (table.next_serial, table.bytes) == (4, 30)
    assert list(table.before(None)) == rows[::-1]
    assert list(table.before(3)) == rows[1::-1]
    assert list(table.before(1)) == []
    assert table.surplus(3, 30) == []
    assert table.surplus(2, 30) == table.surplus(3, 29) == table.surplus(3, 20) == rows[:1]
    assert table.surplus(3, 19) == rows[:2]
    assert table.surplus(0, 30) == table.surplus(3, -1) == rows
    table.swap(rows[0], None)
    assert (table.bytes, list(table.before(None))) == (20, rows[:0:-1])
    table.unswap(rows[0], None)
    assert (table.next_serial, table.bytes, list(table.before(None))) == (4, 30, rows[::-1])
    table.unswap(None, rows[2])
    assert table.next_serial == 3
