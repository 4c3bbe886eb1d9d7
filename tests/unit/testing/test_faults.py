"""Faults happen where they should, as they do in reality, and one that does not happen is an error."""

import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.testing import Clock, Fault, LocalRuntime
from tests.support.client.sessions import fragment


@pytest.fixture
def client(stepwell_runtime: LocalRuntime) -> sw.Client:
    return stepwell_runtime.client(projects=["p"])


@pytest.fixture
def kept(tmp_path: Path) -> LocalRuntime:
    """One that comes back."""
    return LocalRuntime(data_dir=tmp_path)


def stored(client: sw.Client) -> list[str]:
    return [row.fragment_id for row in client.tiers.list().rows]


def test_lost_reply_is_asked_for_again(stepwell_runtime: LocalRuntime, client: sw.Client) -> None:
    """The request has taken effect, and does so once."""
    with stepwell_runtime.faults.drop_reply() as fault:
        placed = client.tiers.store(fragment())
    assert fault.hits == 1
    assert (placed.revision, client.status().revision, stored(client)) == (1, 1, ["a"])


def test_lost_request_is_sent_again(stepwell_runtime: LocalRuntime, client: sw.Client) -> None:
    """Nothing has happened when it is."""
    with stepwell_runtime.faults.drop_request():
        client.tiers.store(fragment())
    assert client.status().revision == 1


@pytest.mark.parametrize("lost, found", [("drop_request", []), ("drop_reply", ["a"])])
def test_lost_twice_is_unknown(stepwell_runtime: LocalRuntime, client: sw.Client, lost: str, found: list[str]) -> None:
    """Whoever asks cannot tell which of the two it was."""
    arm: Callable[..., Fault] = getattr(stepwell_runtime.faults, lost)
    with arm(times=2), pytest.raises(sw.OutcomeUnknown, match="may have taken effect"):
        client.tiers.store(fragment())
    assert stored(client) == found


def test_what_came_behind_a_lost_one_is_lost(stepwell_runtime: LocalRuntime, client: sw.Client) -> None:
    """A stream has two frames under way: with the connection goes the second, and both are sent again."""
    with stepwell_runtime.faults.drop_request():
        client.tiers.store_many([fragment(str(number)) for number in range(1_000)])
    assert client.tiers.metrics().hot.entries == 1_000
    assert client.status().revision == 1_000


def test_busy(stepwell_runtime: LocalRuntime, client: sw.Client) -> None:
    """So many are refused, each command of a batch by itself, and nothing has happened."""
    stepwell_runtime.faults.refuse(times=3)
    with pytest.raises(sw.Busy, match="try again"):
        client.tiers.store(fragment())
    with client.batch() as batch:
        pending = [batch.tiers.store(fragment(name)) for name in "ab"]
    for each in pending:
        with pytest.raises(sw.Busy):
            each.result()
    with pytest.raises(sw.Busy), client.transaction() as transaction:
        transaction.tiers.store(fragment())
    client.tiers.store(fragment())
    assert client.status().revision == 1


def test_reply_that_is_held(stepwell_runtime: LocalRuntime, stepwell_clock: Clock, client: sw.Client) -> None:
    """It has happened, everybody else is served, time may pass, and it comes when it is released."""
    held = stepwell_runtime.faults.hold_reply()
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(client.tiers.store(fragment()).revision))
    thread.start()
    held.wait()
    other = stepwell_runtime.client(projects=["p"])
    assert stored(other) == ["a"]
    stepwell_clock.advance(100)
    assert results == []
    held.release()
    thread.join()
    assert results == [1]


def test_reply_that_is_held_at_the_end() -> None:
    """Whoever still waits has its reply before the runtime ends; what is released before it came is not held."""
    with LocalRuntime() as runtime:
        client = runtime.client(projects=["p"])
        runtime.faults.hold_reply().release()
        assert client.tiers.store(fragment()).revision == 1
        held = runtime.faults.hold_reply()
        thread = threading.Thread(target=lambda: client.tiers.store(fragment()))
        thread.start()
        held.wait()
    thread.join()


def test_killed_without_a_directory(client: sw.Client, stepwell_runtime: LocalRuntime) -> None:
    """The state is gone with it: whoever asks later is told so, and whoever was asking cannot know."""
    client.tiers.store(fragment())
    with stepwell_runtime.faults.kill_at_reply(), pytest.raises(sw.OutcomeUnknown):
        client.tiers.get("a")
    with pytest.raises(sw.RuntimeLost):
        client.tiers.get("a")
    assert not stepwell_runtime.is_alive()
    stepwell_runtime.kill()


@pytest.mark.parametrize("moment", ["kill_at_request", "kill_at_reply"])
def test_killed_with_a_directory(kept: LocalRuntime, moment: str) -> None:
    """Another one takes its place, what was acknowledged is there, and the request takes effect once."""
    with kept:
        client = kept.client(projects=["p"])
        client.tiers.store(fragment("before"))
        arm: Callable[[], Fault] = getattr(kept.faults, moment)
        with arm():
            assert client.tiers.store(fragment("a")).revision == 2
        assert (stored(client), kept.restarts, client.status().revision) == (["before", "a"], 1, 2)


def test_which_request(stepwell_runtime: LocalRuntime, client: sw.Client) -> None:
    """Counted are the requests that are meant: by their command, by their client, from the nth on."""
    other = stepwell_runtime.client(projects=["p"])
    faults = stepwell_runtime.faults
    faults.refuse(nth=2, of="StoreFragment", by=client)
    client.tiers.metrics()
    client.tiers.store(fragment())
    other.tiers.store(fragment())
    client.tiers.metrics()
    with pytest.raises(sw.Busy):
        client.tiers.store(fragment())
    other.tiers.store(fragment())


def test_one_that_does_not_happen() -> None:
    """The test has not tested what it says: its runtime fails, unless it fails already."""
    with pytest.raises(AssertionError, match=re.escape("drop_reply(nth=2, times=1, of='GetPlan') happened 0 times")):
        with LocalRuntime() as runtime:
            runtime.faults.drop_reply(nth=2, of="GetPlan")
    with pytest.raises(ZeroDivisionError), LocalRuntime() as runtime:
        runtime.faults.drop_reply()
        raise ZeroDivisionError


def test_block_in_which_it_does_not_happen(stepwell_runtime: LocalRuntime, client: sw.Client) -> None:
    """A block fails as a runtime does, and what was armed in it does not happen behind it."""
    with pytest.raises(AssertionError, match="refuse"), stepwell_runtime.faults.refuse():
        pass
    with pytest.raises(ZeroDivisionError), stepwell_runtime.faults.refuse():
        raise ZeroDivisionError
    client.tiers.metrics()
    with stepwell_runtime.faults.hold_reply() as held:
        with pytest.raises(AssertionError, match="did not happen within"):
            held.wait(0.001)
        held.release()
        client.tiers.metrics()


def test_refuses_what_can_never_happen(stepwell_runtime: LocalRuntime) -> None:
    for nth, times in ((0, 1), (1, 0)):
        with pytest.raises(sw.InvalidArgument, match="counted from 1"):
            stepwell_runtime.faults.refuse(nth, times=times)
    with pytest.raises(sw.InvalidArgument, match=r"no command 'Store'.*StoreFragment"):
        stepwell_runtime.faults.refuse(of="Store")
