"""Fragments, plans and threads for the tests of the client."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import stepwell as sw
from stepwell import limits


def fragment(fragment_id: str = "a", body: str | bytes | memoryview = b"body", tokens: int = 1) -> sw.Fragment:
    """A fragment of the session's only project."""
    return sw.Fragment(fragment_id=fragment_id, body=body, tokens=tokens)


def act(client: sw.Client, name: str) -> str:
    """An action of which only the name matters."""
    action = client.plans.create_action(
        name, description="", definition_of_done="", strategy_actor="planner", execution_actor="coder"
    )
    return action.name


def executing(client: sw.Client, name: str, project: str, lease_ms: int = limits.LEASE_MS) -> sw.Plan:
    """A plan that this client is executing."""
    plans = client.plans
    plan_id = plans.use_action(act(client, name), projects=[project]).plan_id
    plans.start_strategize(plan_id)
    plans.complete_strategize(plan_id)
    plans.execute_plan(plan_id)
    return plans.start_execute(plan_id, lease_ms=lease_ms)


@contextmanager
def unchanged(client: sw.Client) -> Iterator[None]:
    """Assert that the block does not change the revision."""
    before = client.status().revision
    yield
    assert client.status().revision == before, "a refused request has changed something"


@contextmanager
def refused(client: sw.Client, kind: type[sw.StepwellError], advice: str) -> Iterator[None]:
    """Assert that the block raises this refusal with this advice, and changes nothing."""
    with unchanged(client), pytest.raises(kind, match=advice) as caught:
        yield
    assert type(caught.value) is kind


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run the function in many threads at once; the first failure is raised here."""
    failures: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait(60)
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
