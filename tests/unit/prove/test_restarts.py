"""A manager that is killed and started again keeps what it has acknowledged, and leaves nothing behind."""

from pathlib import Path

import msgspec
import pytest

import stepwell as sw
from stepwell import limits
from stepwell.prove import restarts
from stepwell.prove.restarts import KillableManager

pytestmark = pytest.mark.usefixtures("processes_unmeasured")


def test_kill(tmp_path: Path) -> None:
    """A client goes on over a kill, and finds what it has stored."""
    with KillableManager(tmp_path) as manager, sw.connect(manager.address, ["p"]) as client:
        client.tiers.store(sw.Fragment(fragment_id="a", body="kept"))
        manager.kill()
        assert client.tiers.get("a").text == "kept"
        assert manager.kills == 1
    assert not [*tmp_path.glob("manager.sock*")]


def test_without_an_index_of_reads(tmp_path: Path) -> None:
    """Every read is a request then, also after a restart."""
    with KillableManager(tmp_path, read_index=False) as manager, sw.connect(manager.address, ["p"]) as client:
        client.tiers.store(sw.Fragment(fragment_id="a", body="kept"))
        manager.kill()
        for _ in range(3):
            client.tiers.get("a")
        assert client.status().index.bytes == 0


def test_data_directory(tmp_path: Path) -> None:
    """The state can be in a directory of the user, which stays; a directory with other files is refused."""
    with KillableManager(tmp_path, str(tmp_path / "mine")):
        assert (tmp_path / "mine" / "stepwell.sqlite").exists()
    (tmp_path / "other").mkdir(mode=0o700)
    (tmp_path / "other" / "file").touch()
    with pytest.raises(sw.StepwellError, match="other"):
        KillableManager(tmp_path, str(tmp_path / "other"))


def test_start_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends without a report, or sends none in time, is an error."""
    monkeypatch.setattr(restarts, "_MODULE", "tests.support.prove.silent_process")
    with pytest.raises(sw.StartFailed, match="ended while starting"):
        KillableManager(tmp_path)
    monkeypatch.setattr(limits, "MANAGER_START_SECONDS_MAX", 0.01)
    with pytest.raises(sw.StartFailed, match=r"within 0\.01 s"):
        KillableManager(tmp_path)
    assert msgspec.json.decode(restarts._SERVES) == {}
