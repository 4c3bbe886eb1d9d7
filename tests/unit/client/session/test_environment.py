"""The environment: a client takes sockets, time and ids from the one that it was given, and from nowhere else."""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import TypeVar

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


def test_jitter_makes_no_pause_longer() -> None:
    """It is a factor that shortens a pause by a half at most."""
    assert all(0.5 <= SYSTEM.jitter() <= 1.0 for _ in range(1_000))


def test_clock_and_ids_of_the_system() -> None:
    """The clock does not go back, and no id comes twice."""
    assert SYSTEM.monotonic() <= SYSTEM.monotonic()
    assert len({SYSTEM.new_id() for _ in range(100)}) == 100
