"""The file of an index: what was written is read, and everything else is refused."""

import os
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stepwell as sw
from stepwell.directory_index import array_file
from tests.support.seeds import seeded

ARRAYS: dict[str, NDArray[Any]] = {
    "numbers": np.arange(1_000, dtype=np.uint64),
    "table": np.arange(12, dtype=np.int32).reshape(4, 3),
    "nothing": np.zeros(0, dtype=np.uint8),
    "flags": np.array([True, False]),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "index"
    array_file.write(found, "1", ARRAYS)
    return found


def test_arrays_come_back(path: Path) -> None:
    """With their types and shapes, private to the user, and writable without an effect on the file."""
    found = array_file.read(path, "1")
    assert found is not None
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    found["numbers"][0] = 7
    again = array_file.read(path, "1")
    assert again is not None
    assert again["numbers"][0] == 0
    assert path.stat().st_mode & 0o777 == 0o600


def test_another_version_or_no_file(path: Path) -> None:
    assert array_file.read(path, "2") is None
    path.unlink()
    assert array_file.read(path, "1") is None


def test_a_reader_goes_on_with_the_old_file(path: Path) -> None:
    """A file is replaced, not changed."""
    before = array_file.read(path, "1")
    array_file.write(path, "1", {"numbers": np.zeros(3, dtype=np.uint64)})
    after = array_file.read(path, "1")
    assert before is not None
    assert after is not None
    assert (before["numbers"][999], len(after["numbers"])) == (999, 3)


def test_every_damage_is_noticed(path: Path) -> None:
    """Each cut and each changed byte: in the arrays, the header and the trailer."""
    whole, random = path.read_bytes(), seeded(3)
    for length in (0, 1, 23, 24, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(sw.StoreDamaged):
            array_file.read(path, "1")
    for place in {*random.sample(range(len(whole)), 300), *range(len(whole) - 100, len(whole))}:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << random.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(sw.StoreDamaged):
            array_file.read(path, "1")


def test_objects_are_not_read(path: Path) -> None:
    """A file that has an array of a type that no index has is refused, although its checksums are right."""
    array_file.write(path, "1", {"odd": np.array(["text"])})
    with pytest.raises(sw.StoreDamaged, match="no array of type"):
        array_file.read(path, "1")


@pytest.mark.parametrize("shape", [(-1,), (1_001,), (1 << 62, 4), (1 << 63,)])
def test_a_shape_that_does_not_fit(path: Path, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """An array that would reach beyond the file, or has no size, is damage, although the checksums are right."""

    def wrong(dtype: str, _: tuple[int, ...], offset: int) -> object:
        return dtype, shape, offset

    monkeypatch.setattr(array_file, "_Place", wrong)
    array_file.write(path, "1", {"numbers": ARRAYS["numbers"]})
    monkeypatch.undo()
    with pytest.raises(sw.StoreDamaged):
        array_file.read(path, "1")


def test_a_link_is_not_followed(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        array_file.read(link, "1")


def test_no_room(path: Path) -> None:
    """The file stays as it was, and nothing else is left."""
    pid = os.fork()
    if not pid:  # a limit that the process cannot raise again
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, 4_096))
        try:
            array_file.write(path, "1", {"large": np.zeros(100_000, dtype=np.uint8)})
        except OSError:
            os._exit(42)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
    assert array_file.read(path, "1") is not None
    assert [each.name for each in path.parent.iterdir()] == ["index"]
