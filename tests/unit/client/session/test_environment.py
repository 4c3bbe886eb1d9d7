"""The environment: a client takes sockets, time and ids from the one that it was given, and from nowhere else."""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import TypeVar

import pytest

import stepwell as sw
from stepwell import aio, limits
from stepwell.aio.threads import Threads
from stepwell.client.client import unconnected
from stepwell.client.session.environment import SYSTEM, Environment
from stepwell.testing import LocalRuntime
from tests.support.event_loops import run

R = TypeVar("R")


class CountedEnvironment(Environment):
    """The operating system, with ids that can be foreseen, and with a list of the dials."""

    def __init__(self) -> None:
        self.dials: list[float | None] = []
        self._numbers = count(1)

    def dial(self, address: str, timeout_s: float | None) -> socket.socket:
        self.dials.append(timeout_s)
        return super().dial(address, timeout_s)

    def new_id(self) -> str:
        return f"id-{next(self._numbers)}"


class InlineThreads(Threads):
    """No threads: the work is done where it is asked for."""

    def start(self, function: Callable[[], R]) -> Future[R]:
        done: Future[R] = Future()
        done.set_result(function())
        return done

    async def close(self, release: Callable[[], None]) -> None:
        release()


def test_blocking_client_in_another_environment() -> None:
    """It dials there, and its session, plans and changesets have the ids of that environment."""
    environment = CountedEnvironment()
    with LocalRuntime() as runtime, unconnected(runtime.address, ["p"], environment) as client:
        assert client.session_id == "id-1"
        client.plans.create_action(
            "a", description="d", definition_of_done="t", strategy_actor="s", execution_actor="e"
        )
        plan = client.plans.begin("a", projects=["p"])
        assert plan.plan_id == "id-2"
        context = client.execution(plan.plan_id)
        assert (context.context_id, context.start_changeset()) == ("id-3-id-1", "id-4")
    assert environment.dials == [None]


def test_asynchronous_client_in_another_environment() -> None:
    """It dials without blocking there, and it has no threads if it is given none."""

    async def main(address: str) -> None:
        async with aio.Client(unconnected(address, ["p"], environment), InlineThreads) as client:
            await client.open()
            assert client.session_id == "id-1"
            await client.tiers.store(sw.Fragment(fragment_id="a", body="x" * limits.BUILT_BYTES_MAX))
            assert (await client.view()).revision > 0
            assert threading.active_count() == before

    environment = CountedEnvironment()
    with LocalRuntime() as runtime:
        before = threading.active_count()
        run(main(runtime.address))
    assert environment.dials == [0.0, None]  # the view's is a blocking connection


class EmptyEnvironment(Environment):
    """A world without a manager, in which a program restarts one. Each look at the clock takes a tenth of the time."""

    def __init__(self) -> None:
        self.dials = 0
        self._now_s = 0.0

    def dial(self, address: str, timeout_s: float | None) -> socket.socket:
        self.dials += 1
        raise sw.RuntimeLost(f"nothing is at {address!r} for {timeout_s}") from ConnectionRefusedError()

    def monotonic(self) -> float:
        self._now_s += limits.RECONNECT_SECONDS_MAX / 10
        return self._now_s

    def jitter(self) -> float:
        return 0.0

    def is_restarting(self, address: str) -> bool:
        return address == "/nowhere"

    def read_cause(self, address: str) -> sw.StepwellError | None:
        return sw.StoreFailed(f"no disk at {address!r}")


def test_both_drivers_follow_the_clock_of_their_environment() -> None:
    """They wait for a manager that is being restarted until that clock says it is too late, and name the cause."""

    async def main() -> None:
        async with aio.Client(unconnected("/nowhere", None, asynchronous), InlineThreads) as client:
            with pytest.raises(sw.RuntimeLost, match="no disk at '/nowhere'"):
                await client.open()

    blocking, asynchronous = EmptyEnvironment(), EmptyEnvironment()
    with (
        unconnected("/nowhere", None, blocking) as client,
        pytest.raises(sw.RuntimeLost, match="no disk at '/nowhere'"),
    ):
        client.open()
    run(main())
    assert blocking.dials == 11  # the first attempt, and one for each tenth
    assert 1 < asynchronous.dials <= blocking.dials  # its dials look at the clock, too


def test_jitter_makes_no_pause_longer() -> None:
    """It is a factor that shortens a pause by a half at most."""
    assert all(0.5 <= SYSTEM.jitter() <= 1.0 for _ in range(1_000))


def test_clock_and_ids_of_the_system() -> None:
    """The clock does not go back, and no id comes twice."""
    assert SYSTEM.monotonic() <= SYSTEM.monotonic()
    assert len({SYSTEM.new_id() for _ in range(100)}) == 100
