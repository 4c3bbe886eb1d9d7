"""The seeds' races, across processes: one winner, and nothing in the wrong place."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from multiprocess.connection import Connection

import stepwell as sw
from tests.support.processes import CONTEXT, spawned
from tests.support.programs.competitors import create_same, record_changes, start_same, store_same
from tests.support.programs.storm import create_action

PROCESSES = 4
ROUNDS = 50


@contextmanager
def rivals(target: Callable[[str, int, Connection], None], address: str) -> Iterator[list[Connection]]:
    """Processes that take turns from us, all at the same moment, until they are told None."""
    with ExitStack() as stack:
        turns: list[Connection] = []
        for number in range(PROCESSES):
            ours, theirs = CONTEXT.Pipe()
            stack.enter_context(ours)
            stack.enter_context(theirs)
            stack.enter_context(spawned(target, address, number, theirs))
            turns.append(ours)
        yield turns
        for turn in turns:
            turn.send(None)


def play(turns: list[Connection], prize: object) -> int:
    """How many won."""
    for turn in turns:
        turn.send(prize)
    return sum(turn.recv() for turn in turns)


def test_one_creator_of_a_name_wins() -> None:
    """Seed 003: of N processes that create one name, one wins and N-1 get AlreadyExists."""
    with (
        sw.Runtime.start(workers=0) as runtime,
        runtime.client() as client,
        rivals(create_same, runtime.address) as turns,
    ):
        assert [play(turns, f"action-{number}") for number in range(ROUNDS)] == [1] * ROUNDS
        assert len(client.plans.list_actions().actions) == ROUNDS


def test_one_starter_of_a_plan_wins() -> None:
    """Of N processes that start one plan, one gets the lease and N-1 a typed refusal."""
    with (
        sw.Runtime.start(workers=0) as runtime,
        runtime.client() as client,
        rivals(start_same, runtime.address) as turns,
    ):
        create_action(client, "act")
        plan_ids = [client.plans.use_action("act", projects=["p"]).plan_id for _ in range(ROUNDS)]
        assert [play(turns, plan_id) for plan_id in plan_ids] == [1] * ROUNDS
        assert {client.plans.get_plan(each).version for each in plan_ids} == {2}


def test_one_receipt_of_an_id_is_stored() -> None:
    """The same from everybody is one receipt and nobody is refused; of different ones under one id, one wins."""
    with (
        sw.Runtime.start(workers=0) as runtime,
        runtime.client() as client,
        rivals(store_same, runtime.address) as turns,
    ):
        assert [play(turns, f"round-{number}") for number in range(ROUNDS)] == [1] * ROUNDS
        assert len(client.receipts.list(limit=1_000).receipts) == 2 * ROUNDS
        assert client.receipts.get("round-7-same") == b"round-7"


def test_changes_go_to_their_own_changeset() -> None:
    """Seed 004: contexts of many threads and processes interleave, and every entry is in its context's changeset."""
    rounds = 10
    with (
        sw.Runtime.start(workers=0) as runtime,
        runtime.client() as client,
        rivals(record_changes, runtime.address) as turns,
    ):
        create_action(client, "act")
        plan_id = client.plans.use_action("act", projects=["p"]).plan_id
        client.plans.start_strategize(plan_id)
        client.plans.complete_strategize(plan_id)
        client.plans.execute_plan(plan_id)
        lease = client.plans.start_execute(plan_id).lease
        assert lease is not None
        for turn in turns:
            turn.send((plan_id, lease.token, rounds))
        expected: dict[str, list[str]] = {}
        for turn in turns:
            expected |= turn.recv()
        assert len(expected) == PROCESSES * 4 * rounds
        context = client.execution(plan_id)
        for changeset_id, paths in expected.items():
            assert [entry.path for entry in context.entries(changeset_id)] == paths
        with pytest.raises(sw.NoActiveChangeset, match="start_changeset"):
            context.record_change(sw.Change(path="a", after=b""))
