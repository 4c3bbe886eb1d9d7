"""Records reach their file, and the order of a watch has writes only."""

from pathlib import Path

from stepwell.domain.events import ActionArchived, FragmentDeleted, FragmentStored
from stepwell.domain.tiers.model import Tier
from stepwell.prove.history import GetCall, read_records
from stepwell.prove.recorder import END_KEY, Recorder, WatchRecorder
from tests.support.prove.calls import made, saw

CALL = made(0, 1, GetCall("x"), saw("1"))


def stored(key: str) -> FragmentStored:
    return FragmentStored(1, 0, "p", key, Tier.HOT, None, 1, 1, b"\x01", "text")


def test_file(tmp_path: Path) -> None:
    """Records are read back in their order."""
    with Recorder(tmp_path / "records") as recorder:
        recorder.record(CALL, CALL)
        recorder.record()
    assert read_records(tmp_path / "records") == [CALL, CALL]


def test_watch() -> None:
    """Stores and deletions are kept, other events are not, and one key ends the run."""
    record = WatchRecorder(1, "blocking")
    assert record.add(stored("x"))
    assert record.add(ActionArchived(2, 0, "a"))
    assert record.add(FragmentDeleted(3, 0, "p", "x", Tier.HOT, 1, b"\x01"))
    assert not record.add(stored(END_KEY))
    assert record.result(is_ended=True).events == (("x", "01"), ("x", None))
    assert record.result(is_ended=True).is_complete
    assert not record.result(is_ended=False).is_complete
    record.note_gap()
    assert not record.result(is_ended=True).is_complete
