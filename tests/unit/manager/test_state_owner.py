"""The state has one owner, one process and one thread; everybody else is told what to do instead."""

import os
import threading
import time
from collections.abc import Iterator

import pytest

from stepwell.clock import StateClock
from stepwell.domain.state import State
from stepwell.domain.tiers.commands import DeleteFragment, GetFragment, StoreFragment
from stepwell.domain.verdict import Origin
from stepwell.errors import NotFound, NotOwner, TransactionAborted
from stepwell.manager.state_owner import StateBroken, StateOwner
from stepwell.protocol.messages import CommandResult
from tests.support.processes import in_forked_child

ORIGIN = Origin("session", 1_000)


@pytest.fixture
def owner() -> Iterator[StateOwner]:
    made = StateOwner()
    yield made
    made.close()


def body(owner: StateOwner, answer: CommandResult) -> bytes:
    """The body that an answer refers to."""
    (handle,) = answer.handles.values()
    return owner.bodies.segment(handle.segment).read(handle.offset, handle.stored)


def uses(owner: StateOwner) -> list[str]:
    """What each way to use the state is told: nothing, or to send requests instead."""
    told = []
    for use in (
        lambda: owner.execute(StoreFragment("p", "a", b"x", 1), ORIGIN),
        lambda: owner.execute_all([StoreFragment("p", "a", b"x", 1)], ORIGIN),
        lambda: owner.tasks,
        lambda: owner.revision,
        lambda: owner.next_expiry_ms,
        lambda: owner.bodies,
        lambda: owner.reserve(1 << 20, 0, ORIGIN),
        lambda: owner.open_view(["p"], ORIGIN, 0.0),
        owner.work,
        lambda: owner.housekeep(0.0),
    ):
        try:
            use()
            told.append("")
        except NotOwner as error:
            told.append(error.message)
    return told


def test_owner_may_do_everything(owner: StateOwner) -> None:
    """The thread that made it is its owner."""
    assert uses(owner) == [""] * 10


def test_other_thread_is_refused(owner: StateOwner) -> None:
    """Another thread changes nothing, and is told how to ask."""
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.extend(uses(owner)), name="intruder")
    thread.start()
    thread.join()
    assert len(told) == 10
    assert all("'intruder'" in each and "stepwell.connect(address)" in each for each in told)
    assert owner.revision == 0


def test_forked_process_is_refused(owner: StateOwner) -> None:
    """A forked child has a copy of the state, and must not believe in it."""

    def child() -> None:
        told = uses(owner)
        assert len(told) == 10
        assert all(f"this is process {os.getpid()}" in each for each in told)

    in_forked_child(child)
    assert owner.revision == 0


def test_bodies_follow_the_references(owner: StateOwner) -> None:
    """A body is held while a fragment refers to it, and not after; a refused transaction leaves none."""
    owner.execute(StoreFragment("p", "a", b"one", 1), ORIGIN)
    owner.execute(StoreFragment("p", "b", b"one", 1), ORIGIN)
    assert len(owner.bodies) == 1
    owner.execute(StoreFragment("p", "a", b"two", 1), ORIGIN)
    assert len(owner.bodies) == 2
    owner.execute(DeleteFragment("p", "b"), ORIGIN)
    assert len(owner.bodies) == 1
    with pytest.raises(TransactionAborted):
        owner.execute_all([StoreFragment("p", "c", b"three", 1), DeleteFragment("p", "absent")], ORIGIN)
    with pytest.raises(NotFound):
        owner.execute(DeleteFragment("p", "absent"), ORIGIN)
    assert len(owner.bodies) == 1
    answer = owner.execute(GetFragment("p", "a"), ORIGIN)
    assert body(owner, answer) == b"two"


def test_transaction_that_replaces_a_body_twice_holds_the_last(owner: StateOwner) -> None:
    """What was stored and replaced within one transaction is not held."""
    owner.execute_all([StoreFragment("p", "a", b"first", 1), StoreFragment("p", "a", b"second", 1)], ORIGIN)
    assert len(owner.bodies) == 1
    owner.execute_all([DeleteFragment("p", "a"), StoreFragment("p", "a", b"second", 1)], ORIGIN)
    answer = owner.execute(GetFragment("p", "a"), ORIGIN)
    assert body(owner, answer) == b"second"


def test_run_of_replacements_holds_the_bodies_that_rows_refer_to(owner: StateOwner) -> None:
    """A body that an earlier command of the batch has released comes again; the others are freed."""
    for name in "ab":
        owner.execute(StoreFragment("p", name, name.encode() * 9, 1), ORIGIN)
    commands = [
        StoreFragment("p", "a", b"new", 1),
        StoreFragment("p", "b", b"b" * 9, 2),
        StoreFragment("p", "c", b"a" * 9, 1),
    ]
    assert len(owner.execute_simple(commands, ORIGIN)) == 2
    assert len(owner.execute_simple(commands[2:], ORIGIN)) == 1
    found = {name: body(owner, owner.execute(GetFragment("p", name), ORIGIN)) for name in "abc"}
    assert found == {"a": b"new", "b": b"b" * 9, "c": b"a" * 9}
    assert len(owner.bodies) == 3


def test_defect_in_a_transaction_ends_the_owner_too(owner: StateOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    """What may be half changed is not served, whether one command did it or several."""

    def broken(*_: object) -> None:
        raise KeyError("defect")

    monkeypatch.setattr(State, "make", broken)
    with pytest.raises(StateBroken, match="defect"):
        owner.execute_all([StoreFragment("p", "a", b"x", 1)], ORIGIN)


@pytest.fixture
def machine_clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The machine's clocks, in milliseconds: `wall`, which may be set, and `monotonic`."""
    now = {"wall": 5.0, "monotonic": 1_000.0}
    monkeypatch.setattr(time, "time_ns", lambda: int(now["wall"] * 1_000_000))
    monkeypatch.setattr(time, "monotonic", lambda: now["monotonic"] / 1000)
    return now


def test_clock_never_goes_back(machine_clock: dict[str, float]) -> None:
    """Whatever happens to the machine's clock."""
    clock = StateClock()
    shown = [clock.now_ms()]
    for wall in (3.0, 6.0):
        machine_clock["wall"] = wall
        shown.append(clock.now_ms())
    assert shown == [5, 5, 6]


def test_clock_never_stands_still(machine_clock: dict[str, float]) -> None:
    """A machine's clock that was set back an hour delays no lease and no deadline."""
    clock = StateClock(latest_ms=3_600_000)
    assert clock.now_ms() == 3_600_000
    machine_clock["monotonic"] += 250
    machine_clock["wall"] += 250
    assert clock.now_ms() == 3_600_250
    machine_clock["wall"] = 4_000_000
    assert clock.now_ms() == 4_000_000
    machine_clock["monotonic"] += 10
    assert clock.now_ms() == 4_000_010
