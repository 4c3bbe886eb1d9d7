"""Fragments that expire, in the loop: deleted at the beginning of a turn, in steps, and in no view."""

import os
from collections.abc import Sequence

import pytest

from stepwell import limits
from stepwell.domain.replies import FragmentFound
from stepwell.domain.tiers.commands import GetFragment, StoreFragment, StoreOptions
from stepwell.domain.tiers.model import Writer
from stepwell.domain.verdict import Origin
from stepwell.manager.state_owner import StateOwner
from stepwell.protocol.handles import CatalogueEnd
from stepwell.protocol.messages import VERSION, AskView, CommandResult, Hello, ViewOpened, Welcome
from tests.support.manager.peers import ORIGIN, answered, ask, connection_of, joined, refusals, told
from tests.support.managers import Stage
from tests.support.peers import RawPeer, store
from tests.unit.manager.test_deferred import sleeps

PAST = StoreOptions(expires_at_ms=1)


def expired(*names: str) -> list[StoreFragment]:
    return [StoreFragment("p", name, name.encode(), 1, options=PAST) for name in names]


def count(stage: Stage) -> int:
    return len(stage.owner._state.fragments)


def test_deleted_at_the_beginning_of_a_turn(stage: Stage) -> None:
    """Without any request; a turn in which nothing expires makes no revision."""
    for command in (*expired("a", "b"), store("stays")):
        stage.owner.execute(command, ORIGIN)
    revision = stage.requests.revision
    stage.turn(3)
    assert (count(stage), stage.requests.revision) == (1, revision + 1)


def test_turns_follow_each_other_until_all_are_deleted(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn deletes more than its bound, and the loop does not sleep between them."""
    monkeypatch.setattr(limits, "EXPIRED_PER_STEP_MAX", 2)
    for command in expired(*"abcdef"):
        stage.owner.execute(command, ORIGIN)
    assert sleeps(stage, monkeypatch, 3) == 0
    assert count(stage) == 0
    assert sleeps(stage, monkeypatch, 2) > 0


def test_view_has_nothing_that_has_expired(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is opened when the last of them is deleted, and nothing has to wake the loop for that."""
    monkeypatch.setattr(limits, "EXPIRED_PER_STEP_MAX", 1)
    with joined(stage, "viewer") as viewer:
        for command in (*expired("a", "b", "c"), store("stays")):
            stage.owner.execute(command, ORIGIN)
        viewer.send(AskView(1, ("p",)))
        opened = told(stage, viewer)
        while not isinstance(opened, ViewOpened):
            opened = told(stage, viewer)
        assert count(stage) == 1


def test_view_is_asked_for_in_the_moment_of_expiry(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fragment that expires behind the beginning of the turn: the next turn follows at once."""
    with joined(stage, "viewer") as viewer:
        stage.owner.execute(store("stays"), ORIGIN)
        open_view = StateOwner.open_view
        moments: list[float] = []

        def expiring(
            owner: StateOwner, projects: Sequence[str], origin: Origin, now_s: float
        ) -> list[CatalogueEnd] | None:
            if not moments:
                moments.append(now_s)
                for command in expired("a"):
                    owner.execute(command, ORIGIN)
            return open_view(owner, projects, origin, now_s)

        monkeypatch.setattr(StateOwner, "open_view", expiring)
        viewer.send(AskView(1, ("p",)))
        stage.turn_until(lambda: connection_of(stage, "viewer").deferred)
        assert stage.owner.next_fragment_expiry_ms is not None
        assert sleeps(stage, monkeypatch, 2) == 0
        assert count(stage) == 1


def test_deletion_is_seen_by_requests_of_the_same_turn(stage: Stage, client: RawPeer) -> None:
    """A request is refused whether or not the fragment is still in the table."""
    assert refusals(ask(stage, client, *expired("a"), GetFragment("p", "a"))) == ["", "NotFound"]
    assert refusals(ask(stage, client, GetFragment("p", "a"))) == ["NotFound"]


def test_writer_is_the_session_of_the_connection(stage: Stage) -> None:
    """Its process is known from the operating system, its label from its first message."""
    with RawPeer(stage.address) as peer:
        peer.send(Hello(VERSION, "alice", None, (), "planner"))
        assert isinstance(answered(stage, peer), Welcome)
        for command in (store("a"), StoreFragment("p", "b", b"body", 1, expected_revision=0)):
            result, found = ask(stage, peer, command, GetFragment("p", command.fragment_id))
            assert isinstance(result, CommandResult)
            assert isinstance(found, CommandResult)
            assert isinstance(found.reply, FragmentFound)
            assert found.reply.row.writer == Writer("alice", os.getpid(), "planner")
