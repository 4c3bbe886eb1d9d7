"""A manager goes and another comes: whoever was connected has its session, its answers and its leases, for a while."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepwell import limits
from stepwell.domain.plans.commands import CompletePhase, CreateAction, StartPhase, UseAction
from stepwell.domain.plans.model import Lease, Phase, PlanState, ProjectLink
from stepwell.domain.replies import PlanFound
from stepwell.domain.tiers.commands import DeleteFragment
from stepwell.protocol.messages import Goodbye, Refusal, Request
from stepwell.transport.kernel import Kernel
from tests.support.manager.peers import Clock
from tests.support.managers import Stage
from tests.support.peers import RawPeer, store
from tests.support.storage.peers import answer_bytes, ask, greeted, reply_of
from tests.support.storage.state import kept, staged_on, tamper

GRACE_S = limits.SESSION_GRACE_SECONDS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("time.monotonic", made.monotonic)
    return made


@contextmanager
def joined(directory: Path, session_id: str = "s") -> Iterator[tuple[Stage, RawPeer]]:
    """A manager, and somebody who is connected to it. It ends as by a kill, with nobody's goodbye."""
    with staged_on(directory) as stage, greeted(stage, session_id) as peer:
        yield stage, peer


def start(stage: Stage, peer: RawPeer) -> int:
    """Make a plan and work on it; the token of the lease."""
    ask(stage, peer, CreateAction("act", "", "", "planner", "coder"))
    ask(stage, peer, UseAction("plan", "act", (ProjectLink("p"),)))
    found = reply_of(ask(stage, peer, StartPhase("plan", Phase.STRATEGIZE))).reply
    assert isinstance(found, PlanFound)
    return lease(stage).token


def lease(stage: Stage) -> Lease:
    plan = stage.owner._state.plans.get("plan")
    assert plan is not None
    assert plan.lease is not None
    return plan.lease


def is_processing(stage: Stage) -> bool:
    plan = stage.owner._state.plans.get("plan")
    assert plan is not None
    return plan.state is PlanState.PROCESSING


def numbers(directory: Path) -> list[int]:
    """The requests whose answers are kept."""
    return sorted(number for _, number, _ in kept(directory).replies)


class TestReplies:
    def test_request_that_is_sent_again_gets_the_same_bytes(self, tmp_path: Path) -> None:
        """From the same manager, from the next and from the one after that; and nothing happens again."""
        request = Request(7, (store("a", b"first"),))
        with joined(tmp_path) as (stage, peer):
            first = answer_bytes(stage, peer, request)
            assert answer_bytes(stage, peer, request) == first
            ask(stage, peer, DeleteFragment("p", "a"), number=8)
        for _ in range(2):
            with joined(tmp_path) as (stage, peer):
                revision = stage.owner.revision
                assert answer_bytes(stage, peer, request) == first
                assert stage.owner.revision == revision
                assert len(stage.owner._state.fragments) == 0

    def test_another_session_has_requests_of_its_own(self, tmp_path: Path) -> None:
        """The same number in another session is another request."""
        with joined(tmp_path) as (stage, peer):
            ask(stage, peer, store("a"), number=7)
        with joined(tmp_path, "another") as (stage, peer):
            reply_of(ask(stage, peer, store("b"), number=7))
            assert len(stage.owner._state.fragments) == 2

    def test_answers_that_have_reached_their_caller_go(self, tmp_path: Path, clock: Clock) -> None:
        """Those before the number that it says; and what it asks again below that is not done again."""
        with joined(tmp_path) as (stage, peer):
            for number in range(1, 6):
                ask(stage, peer, store(f"f{number}"), number=number)
            assert numbers(tmp_path) == [1, 2, 3, 4, 5]
            ask(stage, peer, store("f6"), number=6, done=4)
            clock.forward(2 * limits.TIDY_SECONDS)
            stage.turn(2)
            assert numbers(tmp_path) == [4, 5, 6]
        with joined(tmp_path) as (stage, peer):
            (refusal,) = ask(stage, peer, store("g"), number=3).results
            assert isinstance(refusal, Refusal)
            assert refusal.kind == "OutcomeUnknown"
            assert ("p", "g") not in stage.owner._state.fragments.entries

    def test_request_that_changed_nothing_is_not_written(self, tmp_path: Path) -> None:
        """A refusal is the same again, or it is not: nothing of it took effect."""
        with joined(tmp_path) as (stage, peer):
            (refusal,) = ask(stage, peer, DeleteFragment("p", "nothing"), number=1).results
            assert isinstance(refusal, Refusal)
        assert numbers(tmp_path) == []


class TestSessions:
    def test_session_that_says_goodbye_leaves_nothing(self, tmp_path: Path) -> None:
        with joined(tmp_path) as (stage, peer):
            ask(stage, peer, store("a"))
            peer.send(Goodbye())
            stage.turn_until(lambda: stage.sessions == 0)
            stage.turn()
        assert (kept(tmp_path).sessions, kept(tmp_path).replies) == ([], [])

    @pytest.mark.parametrize("how", ["gone", "another under its number", "another boot"])
    def test_session_whose_process_is_gone_is_ended_at_once(self, tmp_path: Path, how: str) -> None:
        """Nobody will come for it: what it worked on is given back, and its answers go."""
        with joined(tmp_path) as (stage, peer):
            start(stage, peer)
        if how == "gone":
            ended = subprocess.Popen([sys.executable, "-c", ""])
            ended.wait()
            tamper(tmp_path, f"UPDATE sessions SET pid = {ended.pid}")  # noqa: S608 - ours
        elif how == "another boot":
            tamper(tmp_path, "UPDATE sessions SET process = 'x' || process")
        else:
            tamper(tmp_path, "UPDATE sessions SET process = process || '1'")
        with staged_on(tmp_path) as stage:
            assert is_processing(stage)
            stage.turn_until(lambda: stage.sessions == 0)
            stage.turn()
            assert not is_processing(stage)
        assert (kept(tmp_path).sessions, kept(tmp_path).replies) == ([], [])

    def test_session_whose_process_ends_meanwhile_is_ended_then(self, tmp_path: Path) -> None:
        """The kernel tells the next manager, too."""
        with joined(tmp_path) as (stage, peer):
            start(stage, peer)
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
            identity = Kernel().process_identity(other.pid)
            tamper(tmp_path, f"UPDATE sessions SET pid = {other.pid}, process = '{identity}'")  # noqa: S608
            with staged_on(tmp_path) as stage:
                stage.turn(3)
                assert is_processing(stage)
                other.communicate(b"\n")
                stage.turn_until(lambda: not is_processing(stage))

    @pytest.mark.parametrize("is_seen", [True, False])
    def test_session_that_lives_has_its_grace(self, tmp_path: Path, clock: Clock, *, is_seen: bool) -> None:
        """And then it is over, like any that does not come back; also one whose process the kernel does not show."""
        with joined(tmp_path) as (stage, peer):
            start(stage, peer)
        if not is_seen:
            tamper(tmp_path, "UPDATE sessions SET process = '', pid = 0")
        with staged_on(tmp_path) as stage:
            clock.forward(GRACE_S - 2)
            stage.turn(3)
            assert is_processing(stage)
            clock.forward(2.5)
            stage.turn_until(lambda: stage.sessions == 0)
            assert not is_processing(stage)

    def test_whoever_comes_back_in_time_goes_on(self, tmp_path: Path, clock: Clock) -> None:
        """With the same lease, and no end to its session."""
        with joined(tmp_path) as (stage, peer):
            token = start(stage, peer)
        with joined(tmp_path) as (stage, peer):
            clock.forward(2 * GRACE_S)
            stage.turn(3)
            reply_of(ask(stage, peer, CompletePhase("plan", Phase.STRATEGIZE, token)))
        assert [row.pid for row in kept(tmp_path).sessions] == [os.getpid()]


class TestLeases:
    def test_lease_that_ran_out_without_a_manager_lasts_for_the_grace(self, tmp_path: Path) -> None:
        """Nobody was there to renew it with."""
        with joined(tmp_path) as (stage, peer):
            token = start(stage, peer)
        tamper(tmp_path, "UPDATE leases SET expires_at_ms = (SELECT clock_ms + 1 FROM store)")
        before_ms = kept(tmp_path).clock_ms
        with joined(tmp_path) as (stage, peer):
            assert 0 <= lease(stage).expires_at_ms - before_ms - GRACE_S * 1000 < 60_000
            stage.turn(3)
            reply_of(ask(stage, peer, CompletePhase("plan", Phase.STRATEGIZE, token)))

    def test_longer_lease_stays_as_it_is(self, tmp_path: Path) -> None:
        with joined(tmp_path) as (stage, peer):
            start(stage, peer)
            until_ms = lease(stage).expires_at_ms
        with staged_on(tmp_path) as stage:
            assert lease(stage).expires_at_ms == until_ms

    def test_lease_that_had_run_out_before_is_not_given_back(self, tmp_path: Path) -> None:
        """Whoever had it is refused, also when somebody else has the plan by then."""
        with joined(tmp_path) as (stage, peer):
            token = start(stage, peer)
        tamper(tmp_path, "UPDATE leases SET expires_at_ms = (SELECT clock_ms FROM store)")
        with joined(tmp_path) as (stage, peer):
            assert refused(stage, peer, token)
            stage.turn_until(lambda: not is_processing(stage))
            reply_of(ask(stage, peer, StartPhase("plan", Phase.STRATEGIZE)))
            assert lease(stage).token > token
            assert refused(stage, peer, token)
        with joined(tmp_path) as (stage, peer):
            assert refused(stage, peer, token)
            reply_of(ask(stage, peer, CompletePhase("plan", Phase.STRATEGIZE, lease(stage).token)))


def refused(stage: Stage, peer: RawPeer, token: int) -> bool:
    (result,) = ask(stage, peer, CompletePhase("plan", Phase.STRATEGIZE, token)).results
    return isinstance(result, Refusal) and result.kind == "LeaseLost"
