"""LocalRuntime: a manager for one test, in the test's own process, that leaves nothing."""

import doctest
import os
import pickle
import threading
import time
from pathlib import Path

import pytest

import stepwell as sw
import stepwell.testing
from stepwell.errors import NotOwner
from stepwell.manager.state_owner import StateBroken
from stepwell.testing import LocalRuntime
from tests.support.client.sessions import fragment, in_threads
from tests.support.processes import in_forked_child
from tests.support.wait import eventually


def test_the_package_example_is_true() -> None:
    """The example in the package's docstring gives what it says."""
    assert doctest.testmod(stepwell.testing) == (0, 4)


def test_starts_and_ends_quickly() -> None:
    """A test can have one of its own: it takes milliseconds."""

    def is_quick() -> bool:
        """One of the attempts is not held up by what else the machine does."""
        began = time.perf_counter()
        with LocalRuntime():
            pass
        return time.perf_counter() - began < 0.05

    eventually(is_quick)


def test_it_is_in_this_process_and_has_no_file() -> None:
    """No process, no socket in any directory; only its address, which is good for this user's processes."""
    before = set(Path(os.environ["XDG_RUNTIME_DIR"]).iterdir())
    with LocalRuntime() as runtime, sw.connect(runtime.address) as client:
        assert client.status().pid == os.getpid()
        assert set(Path(os.environ["XDG_RUNTIME_DIR"]).iterdir()) == before
        assert runtime.address in repr(runtime)


def test_directory_of_other_files_is_refused(tmp_path: Path) -> None:
    """As a manager in a process refuses it; nothing is made there."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(sw.StartFailed, match="no database of stepwell, but other files"):
        LocalRuntime(data_dir=tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_clients_end_with_it() -> None:
    """Nobody has to close what it gave out; twice is as good as once."""
    with LocalRuntime() as runtime:
        client = runtime.client()
        runtime.close()
        runtime.close()
    with pytest.raises(sw.RuntimeLost):
        client.tiers.metrics()
    assert not runtime.is_alive()


def test_threads_and_processes_are_clients_too() -> None:
    """They are served while the test's own thread does something else."""
    with LocalRuntime() as runtime:
        client = runtime.client(projects=["p"])

        def deed(number: int) -> None:
            client.tiers.store(fragment(str(number)))

        in_threads(4, deed)

        def child() -> None:
            with runtime.client(projects=["p"]) as own:
                own.tiers.store(fragment("child"))
            runtime.close()  # has no effect: it is the parent's

        in_forked_child(child)
        assert client.tiers.metrics().hot.entries == 5
        assert runtime.is_alive()


def test_body_is_read_from_shared_memory() -> None:
    """As from any manager: a view of memory that cannot be written."""
    with LocalRuntime() as runtime:
        client = runtime.client(projects=["p"])
        client.tiers.store(fragment(body=b"x" * 100_000))
        body = client.tiers.get("a").body
        assert body.readonly
        assert bytes(body) == b"x" * 100_000
        del body


def test_killed_and_back(tmp_path: Path) -> None:
    """With a directory it is there again when `kill` returns, with its budget; and again for the next runtime."""
    with LocalRuntime(data_dir=tmp_path, budget=sw.TierBudget(hot_tokens=7)) as runtime:
        client = runtime.client(projects=["p"])
        client.tiers.store(fragment())
        epoch = client.epoch
        for _ in range(3):
            runtime.kill()
        assert (runtime.restarts, client.tiers.get("a").text) == (3, "body")
    with LocalRuntime(data_dir=tmp_path) as runtime:
        client = runtime.client(projects=["p"])
        assert client.epoch == epoch
        assert client.tiers.metrics().budget.hot_tokens == 7


def test_killed_for_good() -> None:
    """Without a directory the state is gone, and clients are told so."""
    with LocalRuntime() as runtime:
        client = runtime.client(projects=["p"])
        runtime.kill()
        with pytest.raises(sw.RuntimeLost):
            client.tiers.metrics()
        with pytest.raises(sw.RuntimeLost):
            runtime.client()


def test_does_not_start(tmp_path: Path) -> None:
    """Whatever keeps it from starting is said by the constructor, and nothing stays."""
    (tmp_path / "file").touch()
    with pytest.raises(sw.StartFailed, match="cannot be used"):
        LocalRuntime(data_dir=tmp_path / "file")
    with pytest.raises(sw.InvalidArgument, match="encoding"):
        LocalRuntime(encoding="none")
    with pytest.raises(sw.InvalidArgument, match="workers is 0 or 1"):
        LocalRuntime(workers=2)
    with pytest.raises(sw.InvalidArgument, match="is no strategy"):
        LocalRuntime(strategies=["nonsense"])


def test_stays_in_its_process() -> None:
    with LocalRuntime() as runtime, pytest.raises(NotOwner, match=r"runtime\.address"):
        pickle.dumps(runtime)


def test_defect_of_the_manager_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager that ends by itself is an error at the end of the test, even if no call noticed."""

    def break_down(*_: object) -> None:
        raise StateBroken("a defect")

    with pytest.raises(StateBroken), LocalRuntime() as runtime:
        client = runtime.client(projects=["p"])
        monkeypatch.setattr("stepwell.manager.request_handler.RequestHandler.respond", break_down)
        with pytest.raises(sw.OutcomeUnknown):
            client.tiers.metrics()


def test_thread_ends_with_it() -> None:
    """It is joined, and not only told to end."""
    with LocalRuntime(workers=0):
        assert "stepwell-local-manager" in [thread.name for thread in threading.enumerate()]
    assert "stepwell-local-manager" not in [thread.name for thread in threading.enumerate()]
