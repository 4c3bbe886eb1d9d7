"""`stepwell serve`, as a process."""

import json
import resource
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest

import stepwell as sw
from stepwell.manager.process import STORE_FAILED
from tests.support.cli.processes import PATIENCE_SECONDS, interrupt, is_listening, run, started, wait_until
from tests.support.data_directories import alter

pytestmark = pytest.mark.usefixtures("processes_unmeasured")


@pytest.fixture
def address(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "a.sock"


@pytest.fixture
def manager(address: Path) -> Iterator[Popen[str]]:
    with started("serve", "--workers", "0", "--address", str(address), "--hot-tokens", "123") as process:
        yield process


def announcement(process: Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline() + process.stdout.readline()


def test_it_says_where_it_is_and_serves(address: Path, manager: Popen[str]) -> None:
    told = announcement(manager)
    assert f"listening at {address}" in told
    assert f"stepwell.connect({str(address)!r})" in told
    with sw.connect(str(address)) as client:
        assert client.status().pid == manager.pid
        assert client.tiers.metrics().budget.hot_tokens == 123


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
def test_it_ends_cleanly(how: signal.Signals, address: Path, manager: Popen[str]) -> None:
    """Ctrl-C and SIGTERM are the usual ends: code 0, readable logs, the socket gone."""
    announcement(manager)
    if how is signal.SIGINT:
        _, told = interrupt(manager)
    else:
        manager.send_signal(how)
        _, told = manager.communicate(timeout=PATIENCE_SECONDS)
    assert manager.returncode == 0
    assert "manager.started" in told
    assert "manager.stopped" in told
    assert "Traceback" not in told
    assert "\x1b" not in told
    assert not address.exists()


def test_a_second_one_is_refused(address: Path, manager: Popen[str]) -> None:
    """The first one goes on."""
    announcement(manager)
    second = run("serve", "--workers", "0", "--address", str(address))
    assert second.returncode == 1
    assert (
        second.stderr
        == f"stepwell: a manager already serves {str(address)!r}: connect to it, or give another address\n"
    )
    with sw.connect(str(address)) as client:
        assert client.status().pid == manager.pid


def test_a_place_that_will_not_do_is_refused(tmp_path: Path) -> None:
    """Too long, open to others, no directory: one line each, that says what to do."""
    tmp_path.chmod(0o755)
    file = tmp_path / "file"
    file.touch()
    found = {
        place: run("serve", "--workers", "0", "--address", str(place))
        for place in (tmp_path / "a.sock", file / "a.sock", tmp_path / ("x" * 120))
    }
    assert [each.returncode for each in found.values()] == [1, 1, 2]
    assert all(len(each.stderr.splitlines()) == 1 for each in found.values()), found
    said = " ".join(each.stderr for each in found.values())
    assert "mkdir -m 700" in said
    assert "cannot use the directory" in said
    assert "use a shorter path" in said


def test_logs_can_be_json(address: Path) -> None:
    with started(
        "serve", "--workers", "0", "--address", str(address), "--json-logs", "--log-level", "debug"
    ) as process:
        announcement(process)
        sw.connect(str(address)).close()
        _, told = interrupt(process)
    events = [json.loads(line)["event"] for line in told.splitlines()]
    assert events[0] == "manager.started"
    assert "peer.welcomed" in events
    assert events[-1] == "manager.stopped"


@pytest.mark.usefixtures("measured")
def test_it_serves_on_when_nobody_reads_what_it_says(address: Path) -> None:
    """Its output going nowhere is no reason to stop."""
    with started("serve", "--workers", "0", "--address", str(address)) as process:
        assert process.stdout is not None
        process.stdout.close()
        wait_until(is_listening(address), process)
        with sw.connect(str(address)) as client:
            assert client.status().pid == process.pid
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_a_stale_socket_is_no_hindrance(address: Path) -> None:
    """What a killed manager left behind is replaced."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(address))
    with started("serve", "--workers", "0", "--address", str(address)) as process:
        announcement(process)
        with sw.connect(str(address)) as client:
            assert client.status().pid == process.pid


# With a data directory.


@contextmanager
def kept(address: Path, data_dir: Path, *arguments: str) -> Iterator[sw.Client]:
    """A client of a manager with that directory, which ends well in the end."""
    with started(
        "serve", "--workers", "0", "--address", str(address), "--data-dir", str(data_dir), *arguments
    ) as process:
        assert f"listening at {address}" in announcement(process)
        assert process.stdout is not None
        assert process.stdout.readline() == f"keeping everything in {data_dir}\n"
        with sw.connect(str(address), projects=["p"]) as client:
            yield client
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0


def test_state_outlives_its_manager(address: Path, tmp_path: Path) -> None:
    """Under the same epoch, and in a directory that nobody else can enter."""
    data_dir = tmp_path / "data"
    with kept(address, data_dir) as client:
        client.tiers.store(sw.Fragment(fragment_id="a", body="kept", tokens=1))
        epoch = client.epoch
        assert client.status().durability == "disk"
    assert data_dir.stat().st_mode & 0o077 == 0
    with kept(address, data_dir, "--durability", "process") as client:
        assert client.tiers.get("a").text == "kept"
        assert client.epoch == epoch
        assert client.status().durability == "process"


def test_only_the_budget_that_is_given_changes(address: Path, tmp_path: Path) -> None:
    """A start without flags changes nothing, and one with a flag that field alone."""
    data_dir = tmp_path / "data"
    with kept(address, data_dir, "--hot-tokens", "123", "--warm-entries", "45") as client:
        first = client.tiers.metrics().budget
        assert first == sw.TierBudget(hot_tokens=123, warm_entries=45)
    with kept(address, data_dir) as client:
        assert client.tiers.metrics().budget == first
    with kept(address, data_dir, "--hot-tokens", "200") as client:
        assert client.tiers.metrics().budget == sw.TierBudget(hot_tokens=200, warm_entries=45)
    with kept(address, data_dir) as client:
        assert client.tiers.metrics().budget == sw.TierBudget(hot_tokens=200, warm_entries=45)


def test_a_budget_that_was_set_meanwhile_is_kept(address: Path, tmp_path: Path) -> None:
    """What a client has set is changed by a flag in that field alone, too."""
    with kept(address, tmp_path / "data") as client, sw.connect(str(address)) as unrestricted:
        assert client.tiers.metrics().budget == sw.TierBudget()
        unrestricted.tiers.set_budget(sw.TierBudget(hot_tokens=100, cold_entries=77))
    with kept(address, tmp_path / "data", "--warm-entries", "45") as client:
        assert client.tiers.metrics().budget == sw.TierBudget(hot_tokens=100, cold_entries=77, warm_entries=45)


@pytest.mark.usefixtures("measured")
def test_the_encoding_is_kept(address: Path, tmp_path: Path) -> None:
    """It is the one that the directory began with: another is refused, and none is that one."""
    with kept(address, tmp_path / "data", "--encoding", "estimate") as client:
        assert client.status().encoding == "estimate"
    with kept(address, tmp_path / "data") as client:
        assert client.status().encoding == "estimate"
    done = run(
        "serve",
        "--workers",
        "0",
        "--address",
        str(address),
        "--data-dir",
        str(tmp_path / "data"),
        "--encoding",
        "qwen3",
    )
    assert done.returncode == 1
    assert "counts tokens in 'estimate', not in 'qwen3'" in done.stderr


def test_durability_of_nothing_is_refused(address: Path) -> None:
    """It is said what to do."""
    done = run("serve", "--workers", "0", "--address", str(address), "--durability", "disk")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "give --data-dir DIR too, or leave it out" in line


def test_a_directory_that_is_in_use_is_refused(address: Path, tmp_path: Path) -> None:
    """Its manager is named."""
    with kept(address, tmp_path / "data"):
        second = run("serve", "--workers", "0", "--address", str(address) + "2", "--data-dir", str(tmp_path / "data"))
    assert second.returncode == 1
    (line,) = second.stderr.splitlines()
    assert f"which listens at {str(address)!r}" in line


def test_a_directory_of_other_files_is_refused(address: Path, tmp_path: Path) -> None:
    """A home directory, say: one line, which names what is there and what to do, and nothing is made there."""
    (tmp_path / "notes.txt").write_text("mine")
    done = run("serve", "--workers", "0", "--address", str(address), "--data-dir", str(tmp_path))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "but other files ('notes.txt'): give a new or an empty directory; nothing was changed" in line
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.usefixtures("measured")
def test_a_damaged_directory_is_refused(address: Path, tmp_path: Path) -> None:
    """One line, which names the doctor."""
    with kept(address, tmp_path / "data") as client:
        client.tiers.store(sw.Fragment(fragment_id="a", body="kept", tokens=1))
    alter(tmp_path / "data", "DELETE FROM bodies")
    done = run("serve", "--workers", "0", "--address", str(address), "--data-dir", str(tmp_path / "data"))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "stepwell doctor" in line


def test_a_disk_that_takes_no_more_is_74(address: Path, tmp_path: Path) -> None:
    """Nothing that was not written is acknowledged: the manager stops, and says why and what to do in one line."""
    arguments = ["--address", str(address), "--data-dir", str(tmp_path / "data"), "--log-level", "error"]
    with started("serve", "--workers", "0", *arguments) as process:
        announcement(process)
        with sw.connect(str(address), projects=["p"]) as client:
            client.tiers.store(sw.Fragment(fragment_id="a", body="kept", tokens=1))
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            with ThreadPoolExecutor(1) as pool:
                lost = pool.submit(client.tiers.store, sw.Fragment(fragment_id="b", body="lost", tokens=1))
                assert process.wait(PATIENCE_SECONDS) == STORE_FAILED == 74
                client.close()
                assert isinstance(lost.exception(PATIENCE_SECONDS), sw.RuntimeFault)
        assert process.stderr is not None
        (line,) = process.stderr.read().splitlines()
    assert line.startswith(f"stepwell: the data directory {str(tmp_path / 'data')!r} cannot be written")
    assert "make room or mend the disk, then start again" in line
