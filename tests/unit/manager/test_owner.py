"""The state has one owner, one process and one thread; everybody else is told what to do instead."""

import os
import threading
import time

import pytest

from stepwell.domain.commands.tiers import DeleteFragment, GetFragment, StoreFragment
from stepwell.domain.deciding import Origin
from stepwell.errors import NotFound, NotOwner, TransactionAborted
from stepwell.manager.owner import Clock, StateOwner
from tests.processes import in_forked_child

ORIGIN = Origin("session", 1_000)


def uses(owner: StateOwner) -> list[str]:
    """What each way to use the state is told: nothing, or to send requests instead."""
    told = []
    for use in (
        lambda: owner.execute(StoreFragment("p", "a", b"x", 1), ORIGIN),
        lambda: owner.execute_all([StoreFragment("p", "a", b"x", 1)], ORIGIN),
        lambda: owner.holds_leases("session"),
        lambda: owner.revision,
        lambda: owner.next_expiry_ms,
    ):
        try:
            use()
            told.append("")
        except NotOwner as error:
            told.append(error.message)
    return told


def test_owner_may_do_everything() -> None:
    """The thread that made it is its owner."""
    assert uses(StateOwner()) == [""] * 5


def test_other_thread_is_refused() -> None:
    """Another thread changes nothing, and is told how to ask."""
    owner = StateOwner()
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.extend(uses(owner)), name="intruder")
    thread.start()
    thread.join()
    assert len(told) == 5
    assert all("'intruder'" in each and "stepwell.connect(address)" in each for each in told)
    assert owner.revision == 0


def test_forked_process_is_refused() -> None:
    """A forked child has a copy of the state, and must not believe in it."""
    owner = StateOwner()

    def child() -> None:
        told = uses(owner)
        assert len(told) == 5
        assert all(f"this is process {os.getpid()}" in each for each in told)

    in_forked_child(child)
    assert owner.revision == 0


def test_bodies_follow_the_references() -> None:
    """A body is held while a fragment refers to it, and not after; a refused transaction leaves none."""
    owner = StateOwner()
    owner.execute(StoreFragment("p", "a", b"one", 1), ORIGIN)
    owner.execute(StoreFragment("p", "b", b"one", 1), ORIGIN)
    assert len(owner._heap) == 1
    owner.execute(StoreFragment("p", "a", b"two", 1), ORIGIN)
    assert len(owner._heap) == 2
    owner.execute(DeleteFragment("p", "b"), ORIGIN)
    assert len(owner._heap) == 1
    with pytest.raises(TransactionAborted):
        owner.execute_all([StoreFragment("p", "c", b"three", 1), DeleteFragment("p", "absent")], ORIGIN)
    with pytest.raises(NotFound):
        owner.execute(DeleteFragment("p", "absent"), ORIGIN)
    assert len(owner._heap) == 1
    answer = owner.execute(GetFragment("p", "a"), ORIGIN)
    assert [*answer.bodies.values()] == [b"two"]


def test_transaction_that_replaces_a_body_twice_holds_the_last() -> None:
    """What was stored and replaced within one transaction is not held."""
    owner = StateOwner()
    owner.execute_all([StoreFragment("p", "a", b"first", 1), StoreFragment("p", "a", b"second", 1)], ORIGIN)
    assert len(owner._heap) == 1
    owner.execute_all([DeleteFragment("p", "a"), StoreFragment("p", "a", b"second", 1)], ORIGIN)
    answer = owner.execute(GetFragment("p", "a"), ORIGIN)
    assert [*answer.bodies.values()] == [b"second"]


def test_clock_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to the machine's clock."""
    moments = iter([5_000_000, 3_000_000, 6_000_000])
    monkeypatch.setattr(time, "time_ns", lambda: next(moments))
    clock = Clock()
    assert [clock.now_ms() for _ in range(3)] == [5, 5, 6]
