"""The receipts of the last answers about a directory, a file each. A receipt's id tells the order."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import msgspec

from stepwell import limits
from stepwell.assembly.receipt import Receipt
from stepwell.errors import InvalidArgument, NotFound
from stepwell.identifiers import new_id
from stepwell.text import plural

_PRIVATE: Final = 0o600
_SUFFIX: Final = ".receipt"
_ID: Final = re.compile(r"[0-9A-Z]{26}\Z")

_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")
_decoder: Final = msgspec.msgpack.Decoder(Receipt)


class ReceiptFiles:
    """The receipts in one directory. Any number of processes may add and read; a reader sees whole receipts."""

    def __init__(self, directory: Path) -> None:
        self._directory: Final = directory

    def add(self, receipt: Receipt) -> str:
        """Keep a receipt and return its id; delete the oldest ones. Raise `OSError` if it cannot be written."""
        receipt_id = new_id()
        path = self._path(receipt_id)
        draft = path.with_suffix(f".{os.getpid()}")
        try:
            draft.touch(_PRIVATE)
            draft.write_bytes(_encoder.encode(receipt))
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        for old in self._ids()[limits.DIRECTORY_RECEIPTS_MAX :]:
            if old != receipt_id:  # it sorts behind the others if the clock was set back
                self._path(old).unlink(missing_ok=True)
        return receipt_id

    def latest(self, count: int) -> list[str]:
        """Return the ids of the last `count` receipts, newest first. Raise `NotFound` if there are fewer answers."""
        return require_answers(self._ids()[:count], count)

    def get(self, receipt_id: str) -> Receipt:
        """Return a receipt. Raise `NotFound`, or `InvalidArgument` if another version wrote it in another form."""
        try:
            data = self._path(receipt_id).read_bytes() if _ID.match(receipt_id) else None
        except FileNotFoundError:
            data = None
        if data is None:
            raise NotFound(f"there is no receipt {receipt_id!r:.80} of an answer about this directory")
        try:
            return _decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"receipt {receipt_id!r} cannot be read by this version: {error}") from error

    def _ids(self) -> list[str]:
        """Return all ids, newest first."""
        try:
            names = os.listdir(self._directory)  # noqa: PTH208 - names are enough
        except FileNotFoundError:
            return []
        return sorted((name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)), reverse=True)

    def _path(self, receipt_id: str) -> Path:
        return self._directory / f"{receipt_id}{_SUFFIX}"


def require_answers(receipt_ids: list[str], count: int) -> list[str]:
    """Return the ids of the last `count` answers. Raise `NotFound` if there are fewer."""
    if len(receipt_ids) < count:
        missing = plural(count - len(receipt_ids), "answer is", "answers are")
        raise NotFound(f"{missing} missing: ask with `stepwell assemble` first")
    return receipt_ids
