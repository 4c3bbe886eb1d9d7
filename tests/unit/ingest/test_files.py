"""Reading and splitting one file: what it has become, or why it is not read."""

import os
import time
from pathlib import Path

import pytest

from stepwell import limits
from stepwell.client.session.tokens import counter
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.ingest import files
from stepwell.ingest.files import BINARY, NOT_UTF8, FileRequest, FileSame, FileSkipped, FileSplit, Outcome, SplitJob
from stepwell.pool.strategy.jobs import JOBS

COUNT = counter("estimate").count
TEXT = b"def f():\n    return 1\n"


def aged(path: Path, data: bytes = TEXT) -> Path:
    """A file that was written long ago."""
    path.write_bytes(data)
    os.utime(path, ns=(10**18, 10**18))
    return path


def look(path: Path, digest: str = "") -> Outcome:
    return files.split_file(bytes(path.parent), FileRequest(path.name, digest), COUNT)[0]


def test_a_file_is_split(tmp_path: Path) -> None:
    """Into parts that know their digest, tokens and lines; together with its bytes."""
    path = aged(tmp_path / "a.py")
    outcome, data = files.split_file(bytes(tmp_path), FileRequest("a.py"), COUNT)
    assert isinstance(outcome, FileSplit)
    assert data == TEXT
    (part,) = outcome.parts
    assert (part.part_id, part.start, part.end, part.kind) == ("a.py#f", 0, len(TEXT), "code")
    assert (part.digest, part.tokens) == (digest_of(TEXT), COUNT(TEXT))
    assert part.metadata == {"lines": "1-2", "name": "f", "order": "0", "split": "2"}
    assert (outcome.size, outcome.mtime_ns, outcome.digest) == (len(TEXT), 10**18, digest_of(TEXT).hex())
    assert look(path, outcome.digest) == FileSame("a.py", len(TEXT), 10**18)


def test_a_young_file_is_not_recognised_by_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could change again within one tick of the clock."""
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    path = aged(tmp_path / "a.py")
    os.utime(path, ns=(now_ns, now_ns))
    outcome = look(path)
    assert isinstance(outcome, FileSplit)
    assert outcome.mtime_ns == 0


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"\x7fELF\0\0", BINARY),
        (b"x" * 100_000 + b"\0", BINARY),
        (b"caf\xe9\n", NOT_UTF8),
        ("x".encode("utf-16"), BINARY),
    ],
)
def test_what_is_no_text(tmp_path: Path, data: bytes, reason: str) -> None:
    """Is skipped, and recognised the next time."""
    outcome = look(aged(tmp_path / "a", data))
    assert outcome == FileSkipped("a", reason, len(data), 10**18, digest_of(data).hex())


def test_an_empty_file_has_no_parts(tmp_path: Path) -> None:
    outcome = look(aged(tmp_path / "a.py", b""))
    assert isinstance(outcome, FileSplit)
    assert outcome.parts == ()


def test_what_cannot_be_read(tmp_path: Path) -> None:
    """Whatever it has become since it was found: none of it is opened that could make us wait, or lead elsewhere."""
    (tmp_path / "link").symlink_to(aged(tmp_path / "a.py"))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", limits.INGEST_FILE_BYTES_MAX + 1)
    for name in ("nothing", "link", "pipe", "directory", "huge"):
        outcome = look(tmp_path / name)
        assert isinstance(outcome, FileSkipped), name
        assert outcome.reason
        assert outcome.digest == ""


def test_bytes_that_somebody_else_has_split(tmp_path: Path) -> None:
    """They are the same, or the file is split as it is now, or it is gone."""
    path = aged(tmp_path / "a.py")
    split = look(path)
    assert isinstance(split, FileSplit)
    assert files.reread_split(bytes(tmp_path), split, COUNT) == (split, TEXT)
    aged(path, b"def g():\n    return 2\n")
    changed, data = files.reread_split(bytes(tmp_path), split, COUNT)
    assert isinstance(changed, FileSplit)
    assert (changed.parts[0].part_id, data) == ("a.py#g", path.read_bytes())
    path.unlink()
    assert isinstance(files.reread_split(bytes(tmp_path), split, COUNT)[0], FileSkipped)


def test_the_chore(tmp_path: Path) -> None:
    """What a worker is given and gives back is what a call in this process gives."""
    aged(tmp_path / "a.py")
    chore = SplitJob(bytes(tmp_path), "estimate", (FileRequest("a.py"), FileRequest("nothing")))
    answer = JOBS[files.SPLIT_JOB](files.encoder.encode(chore))
    assert files.outcomes_decoder.decode(answer) == (look(tmp_path / "a.py"), look(tmp_path / "nothing"))
