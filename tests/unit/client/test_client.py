"""A client: one object for any number of threads, which survives a fork, a pickle and a lost connection."""

import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.client.session.channel import Channel
from stepwell.protocol.messages import Welcome
from stepwell.testing import Clock, LocalRuntime
from tests.support.client.sessions import act, executing, fragment, in_threads
from tests.support.managers import served
from tests.support.peers import kernel_socket
from tests.support.processes import in_forked_child, run_all
from tests.support.wait import eventually

pytestmark = pytest.mark.usefixtures("processes_unmeasured")


@pytest.fixture(scope="module")
def runtime() -> Iterator[sw.Runtime]:
    """A manager in a process of its own, because forks, pickles and signals are about processes."""
    with sw.Runtime.start(workers=0, log_level="error") as started:
        yield started


def test_client_is_shared_by_threads(client: sw.Client) -> None:
    """Sixteen threads on one client: every answer comes to the thread that asked."""

    def deed(number: int) -> None:
        for count in range(50):
            body = f"{number} {count}"
            client.tiers.store(fragment(str(number), body))
            assert client.tiers.get(str(number)).text == body

    in_threads(16, deed)
    assert client.tiers.metrics().hot.entries == 16


def test_connections_are_bounded_and_waited_for(client: sw.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """More threads than connections wait for one another, and all are served."""
    monkeypatch.setattr(limits, "CONNECTIONS_PER_CLIENT_MAX", 2)

    def deed(number: int) -> None:
        for _ in range(20):
            client.tiers.store(fragment(str(number)))
            assert len(client._channel.connections._open) + client._channel.connections._opening <= 2

    in_threads(12, deed)
    assert len(client._channel.connections._open) == 2


def test_connections_are_used_again(client: sw.Client) -> None:
    """One thread needs one connection, however often it calls, refusals included."""
    for _ in range(10):
        with pytest.raises(sw.NotFound):
            client.tiers.get("absent")
        with pytest.raises(sw.InvalidArgument):
            client.tiers.get("\ud800")
    assert len(client._channel.connections._open) == 1


def test_forked_child_has_a_session_of_its_own(client: sw.Client, runtime: sw.Runtime) -> None:
    """In the child the client goes on as another session, and the parent's connections and leases are untouched."""
    plan = executing(client, "forking", (client.projects or ("",))[0])
    client.tiers.store(fragment("a", "parent"))
    parent = client.session_id
    connections = [connection.fileno() for connection in client._channel.connections._open]

    def child() -> None:
        assert client.session_id != parent
        assert not client._channel.connections._open
        for descriptor in connections:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)
        assert client.tiers.get("a").text == "parent"
        client.tiers.store(fragment("a", "child"))
        with pytest.raises(sw.LeaseLost):
            client.plans.complete_execute(plan.plan_id)
        client.close()

    in_forked_child(child, is_measured=True)
    assert client.session_id == parent
    assert client.tiers.get("a").text == "child"
    assert str(client.plans.complete_execute(plan.plan_id).position) == "execute/complete"
    assert runtime.is_alive()


def look(client: sw.Client) -> None:
    client.tiers.metrics()


def look_and_close(client: sw.Client) -> None:
    client.tiers.metrics()
    client.close()


def test_fork_while_threads_are_calling(client: sw.Client) -> None:
    """Locks that other threads hold at the moment of the fork do not hang the child."""
    over = threading.Event()

    def busy() -> None:
        while not over.is_set():
            client.tiers.store(fragment("busy"))

    threads = [threading.Thread(target=busy) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            in_forked_child(lambda: look_and_close(client))
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_closed_client_stays_closed_in_a_child(runtime: sw.Runtime) -> None:
    """A fork does not reopen what was closed."""
    client = runtime.client()
    client.close()
    client.close()

    def child() -> None:
        with pytest.raises(sw.RuntimeLost, match="connect anew"):
            client.tiers.metrics()

    in_forked_child(child, is_measured=True)
    child()


def use_pickled(client: sw.Client, session_id: str) -> None:
    """In another process: the same manager and scope, another session."""
    assert client.session_id != session_id
    assert client.projects == ("pickled",)
    client.tiers.store(fragment("from the child"))
    client.close()


def test_pickled_client_connects_from_where_it_arrives(runtime: sw.Runtime) -> None:
    """Sent to a spawned process, a client connects from there with the same scope, as a session of its own."""
    with runtime.client(projects=["pickled"]) as client:
        run_all(use_pickled, [(client, client.session_id)])
        assert client.tiers.get("from the child").tier is sw.Tier.HOT
        with pickle.loads(pickle.dumps(client)) as copy:  # noqa: S301 - our own
            assert copy.address == client.address
        assert runtime.address in repr(client)


def test_connection_lost_while_idle_is_replaced() -> None:
    """The manager ended idle connections: the next calls open others, in the same session, and nobody notices."""
    with served() as stage, sw.connect(stage.address, projects=["p"]) as client:
        in_threads(3, lambda _: look(client))
        session_id = client.session_id
        for lose in (
            lambda: client.tiers.store(fragment("a")),
            lambda: client.tiers.store_many([fragment("b")]),
            lambda: client.tiers.get_many(["a", "b"]),
            client.status,
        ):
            for connection in [*stage.loop._connections.values()]:
                kernel_socket(connection.peer).shutdown(2)
            eventually(lambda: stage.peers == 0)
            lose()
            assert client.session_id == session_id


def test_lease_survives_a_lost_connection() -> None:
    """A plan lease belongs to the session, and goes on when the client is back within the grace."""
    with served() as stage, sw.connect(stage.address, projects=["p"]) as client:
        plan = executing(client, "act", "p")
        for connection in [*stage.loop._connections.values()]:
            kernel_socket(connection.peer).shutdown(2)
        eventually(lambda: stage.peers == 0)
        assert client.plans.get_plan(plan.plan_id).lease == plan.lease
        assert str(client.plans.complete_execute(plan.plan_id).position) == "execute/complete"


def test_lease_ends_with_the_grace(stepwell_clock: Clock) -> None:
    """Nobody came back: the plan is queued again, its loss is recorded, its token refused."""
    with LocalRuntime(clock=stepwell_clock) as local, local.client() as owner, local.client() as other:
        plan = executing(owner, "act", "p")
        assert plan.lease is not None
        token = plan.lease.token
        for connection in owner._channel.connections._open:
            connection._socket.shutdown(2)
        stepwell_clock.advance(limits.SESSION_GRACE_SECONDS - 1)
        assert other.plans.get_plan(plan.plan_id).state is sw.PlanState.PROCESSING
        stepwell_clock.advance(1)
        assert other.plans.get_plan(plan.plan_id).state is sw.PlanState.QUEUED
        found = other.plans.get_plan(plan.plan_id)
        assert (found.attempt, len(found.errors)) == (2, 1)
        with pytest.raises(sw.LeaseLost):
            owner.plans.complete_execute(plan.plan_id)
        with pytest.raises(sw.LeaseLost):
            other.plans.complete_execute(plan.plan_id, lease=token)


def test_encoding_failure_keeps_the_connection() -> None:
    """What could not be encoded was not sent: the connection stays, and with it the session's leases."""
    with served() as stage, sw.connect(stage.address, projects=["p"]) as client:
        executing(client, "act", "p")
        (before,) = client._channel.connections._open
        with pytest.raises(sw.InvalidArgument, match="lone surrogate"):
            client.tiers.get("\ud800")
        assert client._channel.connections._open == {before: None}
        assert client.tiers.metrics().hot.entries == 0
        assert client._channel.connections._open == {before: None}


def test_closing_gives_up_the_leases_at_once() -> None:
    """`close` says goodbye: no grace for who will not come back."""
    with served() as stage, sw.connect(stage.address) as other:
        owner = sw.connect(stage.address)
        plan_id = other.plans.use_action(act(other, "act"), projects=["p"]).plan_id
        owner.plans.start_strategize(plan_id)
        owner.close()
        eventually(lambda: other.plans.get_plan(plan_id).state is sw.PlanState.QUEUED, 60)
        eventually(lambda: stage.sessions == 1)


def test_closing_without_a_connection_gives_up_the_leases() -> None:
    """A client that was cut off comes back to say goodbye."""
    with served() as stage, sw.connect(stage.address) as other:
        owner = sw.connect(stage.address)
        plan_id = other.plans.use_action(act(other, "act"), projects=["p"]).plan_id
        owner.plans.start_strategize(plan_id)
        owner._channel.connections.discard(owner._channel.connections.acquire_live())
        assert other.plans.get_plan(plan_id).state is sw.PlanState.PROCESSING
        owner.close()
        eventually(lambda: other.plans.get_plan(plan_id).state is sw.PlanState.QUEUED, 60)


def test_other_manager_at_the_same_address_is_a_lost_runtime(tmp_path: Path) -> None:
    """Nobody goes on with what a manager said whose state is gone."""
    tmp_path.chmod(0o700)
    address = str(tmp_path / "manager.sock")
    with sw.Runtime.start(workers=0, address=address):
        client = sw.connect(Path(address))
        client.tiers.store(sw.Fragment(fragment_id="a", project="p", body="x"))
    with sw.Runtime.start(workers=0, address=address), client:
        with pytest.raises(sw.RuntimeLost, match="connect anew"):
            client.tiers.store(sw.Fragment(fragment_id="a", project="p", body="y"), expected_revision=1)
        with pytest.raises(sw.RuntimeLost):
            client.open()


def test_burst_of_threads_leaves_few_connections(client: sw.Client) -> None:
    """What many calls at once opened is closed again."""
    taken = [client._channel.connections.acquire_live() for _ in range(limits.IDLE_CONNECTIONS_MAX + 5)]
    for connection in taken:
        client._channel.connections.release(connection)
    assert len(client._channel.connections._idle) == limits.IDLE_CONNECTIONS_MAX


def test_closing_while_a_thread_is_calling_gives_up_the_leases() -> None:
    """The call that is under way still gets its answer; the last one out says goodbye."""
    with served() as stage, sw.connect(stage.address) as other:
        owner = sw.connect(stage.address)
        plan_id = other.plans.use_action(act(other, "act"), projects=["p"]).plan_id
        owner.plans.start_strategize(plan_id)
        taken = owner._channel.connections.acquire_live()
        owner.close()
        assert other.plans.get_plan(plan_id).state is sw.PlanState.PROCESSING
        owner._channel.connections.release(taken)
        eventually(lambda: other.plans.get_plan(plan_id).state is sw.PlanState.QUEUED, 60)


def test_waiting_thread_is_told_that_the_client_closed(runtime: sw.Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a connection that will never be there."""
    monkeypatch.setattr(limits, "CONNECTIONS_PER_CLIENT_MAX", 1)
    client = runtime.client()
    taken = client._channel.connections.acquire_live()
    told: list[BaseException] = []

    def wait() -> None:
        try:
            client.tiers.metrics()
        except sw.RuntimeLost as error:
            told.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: client._channel.connections._waiting)
    client.close()
    thread.join(60)
    assert "closed" in str(told[0])
    client._channel.connections.release(taken)


def test_wrong_address_is_said_at_once() -> None:
    """`connect` does not return a client that cannot work."""
    for address, kind in (
        ("/nonexistent/s", sw.RuntimeLost),
        ("", sw.InvalidArgument),
        ("x" * 200, sw.InvalidArgument),
    ):
        with pytest.raises(kind):
            sw.connect(address)


def test_connect_without_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of the environment comes first, then the one at which `stepwell serve` listens by default."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("STEPWELL_ADDRESS", raising=False)
    served_by_default = tmp_path / "stepwell" / "manager.sock"
    with pytest.raises(sw.RuntimeLost, match=r"no manager at .*: start one with `stepwell serve`,"):
        sw.connect()
    with LocalRuntime(workers=0) as first, LocalRuntime(workers=0) as second:
        served_by_default.parent.mkdir()
        served_by_default.symlink_to(first.address)
        with sw.connect(projects=["p"]) as client, first.client() as other:
            assert (client.address, client.projects) == (str(served_by_default), ("p",))
            assert client.epoch == other.epoch
        monkeypatch.setenv("STEPWELL_ADDRESS", second.address)
        with sw.connect() as client, second.client() as other:
            assert client.epoch == other.epoch
        with sw.connect(first.address) as client, second.client() as other:  # an argument comes before both
            assert client.epoch != other.epoch


@pytest.mark.parametrize("address", [["p"], 5, b"/m.sock"])
def test_address_is_a_path(address: str) -> None:
    """Also for a caller that has no type checker, and gives the projects first."""
    with pytest.raises(sw.InvalidArgument, match="address is the path of a manager's socket"):
        sw.connect(address)


def test_open_shows_whom_we_talk_to(runtime: sw.Runtime) -> None:
    """The welcome names the epoch and the process."""
    channel = Channel(runtime.address, None)
    welcome = channel.open()
    assert isinstance(welcome, Welcome)
    assert welcome.manager_pid == runtime.pid
    channel.close()


def test_status_counts(client: sw.Client) -> None:
    """What `stepwell status` shows."""
    before = client.status()
    client.tiers.store(fragment())
    after = client.status()
    assert (after.revision, after.requests) == (before.revision + 1, before.requests + 1)
    assert after.metrics.hot.entries == 1
    assert after.epoch == before.epoch == client.epoch


@pytest.mark.parametrize("part", ["tiers", "plans"])
def test_service_says_that_it_stays(client: sw.Client, part: str) -> None:
    """What cannot travel says what can."""
    with pytest.raises(sw.InvalidArgument, match="send the client, or its address"):
        pickle.dumps(getattr(client, part))


def test_client_keeps_its_runtime() -> None:
    """A program that only holds the client still has a manager."""
    with sw.Runtime.start(workers=0).client() as client:
        assert client.tiers.metrics().hot.entries == 0
        runtime = client.runtime
    assert isinstance(runtime, sw.Runtime)
    runtime.close()
