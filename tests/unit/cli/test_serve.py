"""`stepwell serve`, as a process."""

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

import stepwell as sw
from tests.unit.cli.support import PATIENCE_SECONDS, interrupt, is_listening, run, started, wait_until


@pytest.fixture
def address(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "a.sock"


@pytest.fixture
def manager(address: Path) -> Iterator[Popen[str]]:
    with started("serve", "--address", str(address), "--hot-tokens", "123") as process:
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
    second = run("serve", "--address", str(address))
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
        place: run("serve", "--address", str(place))
        for place in (tmp_path / "a.sock", file / "a.sock", tmp_path / ("x" * 120))
    }
    assert [each.returncode for each in found.values()] == [1, 1, 2]
    assert all(len(each.stderr.splitlines()) == 1 for each in found.values()), found
    said = " ".join(each.stderr for each in found.values())
    assert "mkdir -m 700" in said
    assert "cannot use the directory" in said
    assert "use a shorter path" in said


def test_logs_can_be_json(address: Path) -> None:
    with started("serve", "--address", str(address), "--json-logs", "--log-level", "debug") as process:
        announcement(process)
        sw.connect(str(address)).close()
        _, told = interrupt(process)
    events = [json.loads(line)["event"] for line in told.splitlines()]
    assert events[0] == "manager.started"
    assert "peer.welcomed" in events
    assert events[-1] == "manager.stopped"


def test_it_serves_on_when_nobody_reads_what_it_says(address: Path) -> None:
    """Its output going nowhere is no reason to stop."""
    with started("serve", "--address", str(address)) as process:
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
    with started("serve", "--address", str(address)) as process:
        announcement(process)
        with sw.connect(str(address)) as client:
            assert client.status().pid == process.pid
