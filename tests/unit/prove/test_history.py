"""A history survives its file, and a damaged file is refused with the number of the line."""

from pathlib import Path

import pytest

from stepwell.errors import InvalidArgument
from stepwell.prove.history import (
    DeleteCall,
    GetCall,
    PlanReadCall,
    PlanStepCall,
    ReplaceCall,
    SnapshotCall,
    StoreCall,
    TransactCall,
    keys_of,
    read_history,
    write_history,
    writes_of,
)
from tests.support.prove.simulated import simulated_history


def test_round_trip(tmp_path: Path) -> None:
    """Calls, outcomes and watches are read as they were written."""
    history = simulated_history(1)
    write_history(tmp_path / "kept", history)
    assert read_history(tmp_path / "kept") == history


@pytest.mark.parametrize(
    "content, complaint",
    [
        ("", "the first line is not the header"),
        ('{"type": "watch", "process": 0, "kind": "k", "is_complete": true, "events": []}\n', "not the header"),
        ("{}\n", "line 1"),
        ('{"type": "trial", "subject": "s", "seed": 1, "processes": 1, "threads": 1, "seconds": 1}\nno\n', "line 2"),
    ],
)
def test_damaged(content: str, complaint: str, tmp_path: Path) -> None:
    """A file that is no history is refused, with the place."""
    (tmp_path / "kept").write_text(content)
    with pytest.raises(InvalidArgument, match=complaint):
        read_history(tmp_path / "kept")


def test_keys_and_writes() -> None:
    """Each call knows the keys that it concerns and the values that it sets."""
    transact = TransactCall((StoreCall("a", "1"), ReplaceCall("b", None, "2")))
    assert keys_of(transact) == ("a", "b")
    assert writes_of(transact) == (("a", "1"), ("b", "2"))
    assert keys_of(SnapshotCall(("a", "b"))) == ("a", "b")
    assert keys_of(GetCall("a")) == ("a",)
    assert writes_of(GetCall("a")) == ()
    assert writes_of(DeleteCall("a")) == (("a", None),)
    assert keys_of(PlanStepCall("p", "start_execute")) == keys_of(PlanReadCall("p")) == ("plan p",)
