"""The receipts that `why` and `diff` read: those of the index of a path, or those that a running manager keeps."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from stepwell.assembly.receipt import Receipt
from stepwell.cli.common.source import Source
from stepwell.directory_index.cache import cache_directory, delete_unredacted
from stepwell.directory_index.receipts import ReceiptFiles, require_answers

if TYPE_CHECKING:
    from stepwell.client.client import Client


class ReceiptReader(Protocol):
    """Reads the receipts of one source."""

    def latest(self, count: int) -> list[str]:
        """Return the ids of the last `count` receipts, newest first. Raise `NotFound` if there are fewer answers."""
        ...

    def get(self, receipt_id: str) -> Receipt:
        """Return a receipt, or raise `NotFound`."""
        ...


class _ManagerReceipts:
    """The receipts of a project of a running manager."""

    def __init__(self, client: Client) -> None:
        self._client: Final = client

    def latest(self, count: int) -> list[str]:
        return require_answers([each.receipt_id for each in self._client.receipts.list(limit=count).receipts], count)

    def get(self, receipt_id: str) -> Receipt:
        return self._client.receipt(receipt_id)


@contextmanager
def open_receipts(source: Source) -> Generator[ReceiptReader]:
    """Yield the receipts of the answers about a source."""
    if source.address is None:
        delete_unredacted(source.root)
        yield ReceiptFiles(cache_directory(source.root, source.policy).receipts)
        return
    from stepwell.client.client import connect  # noqa: PLC0415 - a client is needed here only

    with connect(source.address, [source.project]) as client:
        yield _ManagerReceipts(client)
