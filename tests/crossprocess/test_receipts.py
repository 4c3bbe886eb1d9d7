"""Receipts of many processes: no more than there may be, the newest of each, and the same ones after a kill."""

from pathlib import Path

import stepwell as sw
from stepwell import limits
from stepwell.manager.check.doctor import examine
from tests.support.data_directories import serving
from tests.support.processes import run_all

PROCESSES = 4
EACH = 300
"""Together more than are kept."""


def store_many(address: str, number: int) -> None:
    """Store as fast as it goes, now and then a large one, and find each there."""
    with sw.connect(address, projects=["p"]) as client:
        for count in range(EACH):
            client.receipts.store(f"{number}-{count}", ["p"], "a title", body(number, count))
            assert client.receipts.get(f"{number}-{count}") == body(number, count)


def body(number: int, count: int) -> bytes:
    return f"{number}/{count};".encode() * (20_000 if count % 50 == 0 else 10)


def everything(client: sw.Client) -> list[sw.types.ReceiptRow]:
    """All pages, the newest first."""
    rows: list[sw.types.ReceiptRow] = []
    page = client.receipts.list(limit=300)
    while True:
        rows += page.receipts
        if page.cursor is None:
            return rows
        page = client.receipts.list(limit=300, cursor=page.cursor)


def test_newest_are_kept(tmp_path: Path) -> None:
    """Of each process the last that it stored, in its order; after a kill, too."""
    assert PROCESSES * EACH > limits.RECEIPTS_MAX
    with serving(tmp_path / "data") as address, sw.connect(address) as client:
        run_all(store_many, [(address, number) for number in range(PROCESSES)])
        before = everything(client)
    assert len(before) == limits.RECEIPTS_MAX
    for number in range(PROCESSES):
        counts = [int(row.receipt_id.split("-")[1]) for row in before if row.receipt_id.startswith(f"{number}-")]
        assert counts == list(reversed(range(EACH - len(counts), EACH)))
    assert examine(tmp_path / "data", lambda _: None).problems == []
    with serving(tmp_path / "data") as address, sw.connect(address) as client:
        assert everything(client) == before
        for row in before:
            number, count = map(int, row.receipt_id.split("-"))
            assert client.receipts.get(row.receipt_id) == body(number, count)
