"""Receipts in files: the last ones, whole, and no more than a bound."""

from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.assembly.receipt import Receipt
from stepwell.directory_index import receipts
from stepwell.directory_index.receipts import ReceiptFiles
from tests.support.assembly import answer, meeting, request, result


@pytest.fixture
def kept(tmp_path: Path) -> ReceiptFiles:
    (tmp_path / "receipts").mkdir()
    return ReceiptFiles(tmp_path / "receipts")


def receipt(number: int) -> Receipt:
    asked = request(query=f"question {number}", budget_tokens=200)
    return answer(meeting(5).view(), result("keyword", {"t1": 1.0}), asked=asked).receipt


def test_the_last_receipts(kept: ReceiptFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come back as they were, newest first; older ones are deleted."""
    monkeypatch.setattr(limits, "DIRECTORY_RECEIPTS_MAX", 3)
    added = [kept.add(receipt(number)) for number in range(5)]
    assert kept.latest(2) == added[:-3:-1]
    assert kept.get(added[-1]) == receipt(4)
    with pytest.raises(sw.NotFound, match="2 answers are missing"):
        kept.latest(5)
    with pytest.raises(sw.NotFound, match="there is no receipt"):
        kept.get(added[0])


def test_a_clock_that_was_set_back(kept: ReceiptFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The receipt of the present answer stays, also if all others seem to be newer."""
    monkeypatch.setattr(limits, "DIRECTORY_RECEIPTS_MAX", 2)
    for number in range(3):
        kept.add(receipt(number))
    monkeypatch.setattr(receipts, "new_id", lambda: "0" * 26)
    assert kept.get(kept.add(receipt(7))) == receipt(7)


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "0" * 26, "\0"])
def test_a_name_of_no_receipt(kept: ReceiptFiles, name: str) -> None:
    with pytest.raises(sw.NotFound, match="there is no receipt"):
        kept.get(name)


def test_no_directory(tmp_path: Path) -> None:
    """Nothing was asked yet."""
    with pytest.raises(sw.NotFound, match="1 answer is missing"):
        ReceiptFiles(tmp_path / "none").latest(1)


def test_another_version(kept: ReceiptFiles, tmp_path: Path) -> None:
    added = kept.add(receipt(1))
    (tmp_path / "receipts" / f"{added}.receipt").write_bytes(b"\xff\xff")
    with pytest.raises(sw.InvalidArgument, match="cannot be read by this version"):
        kept.get(added)


def test_no_room(kept: ReceiptFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing half is left."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(OSError, match="No space"):
        kept.add(receipt(1))
    assert [*(tmp_path / "receipts").iterdir()] == []
