"""Watchers: told everything of theirs, in order, once; as fast as they read, and at nobody else's expense."""

from collections.abc import Sequence
from itertools import count

import pytest

from stepwell import limits
from stepwell.domain.commands import AnyCommand
from stepwell.domain.events import AnyEvent, FragmentStored
from stepwell.domain.plans.commands import CreateAction, UseAction
from stepwell.domain.plans.model import ProjectLink
from stepwell.domain.tiers.commands import DeleteFragment, SetBudget
from stepwell.domain.tiers.model import TierBudget
from stepwell.protocol.messages import (
    AskStatus,
    Events,
    ManagerMessage,
    Refusal,
    Rejected,
    Response,
    TransactionRequest,
    WatchEvents,
    WatchLagged,
)
from tests.support.manager.peers import ORIGIN, Clock, answered, ask, connection_of, gone, joined, results
from tests.support.managers import Stage
from tests.support.peers import RawPeer, store

numbers = count()


def watching(
    stage: Stage,
    since: int | None = None,
    projects: tuple[str, ...] | None = None,
    scope: tuple[str, ...] | None = None,
) -> RawPeer:
    """A peer that has been told where its watch begins."""
    peer = joined(stage, f"watcher-{next(numbers)}", scope)
    peer.send(WatchEvents(7, since, projects))
    assert answered(stage, peer) == Events((), stage.requests.revision if since is None else since)
    return peer


def do(stage: Stage, *commands: AnyCommand) -> None:
    """Behind the loop's back: nothing of a turn is used up."""
    for command in commands:
        stage.owner.execute(command, ORIGIN)
    stage.owner.journal.commit()


def told(stage: Stage, peer: RawPeer) -> list[ManagerMessage]:
    """All that a watcher is told before it knows everything."""
    messages: list[ManagerMessage] = []
    while not messages or _upto(messages[-1]) < stage.requests.revision:
        message = answered(stage, peer)
        assert message is not None
        messages.append(message)
    return messages


def _upto(message: ManagerMessage) -> int:
    assert isinstance(message, Events | WatchLagged), message
    return message.revision if isinstance(message, Events) else message.resume


def events(messages: list[ManagerMessage]) -> list[AnyEvent]:
    return [event for message in messages if isinstance(message, Events) for event in message.events]


def ids(messages: list[ManagerMessage]) -> list[str]:
    return [event.fragment_id for event in events(messages) if isinstance(event, FragmentStored)]


def silent(stage: Stage, peer: RawPeer) -> bool:
    """Whether it is told nothing, however the loop turns."""
    stage.turn(5)
    peer.socket.settimeout(0)
    try:
        peer.receive()
    except BlockingIOError:
        return True
    return False


def test_told_what_happens_from_now_on(stage: Stage) -> None:
    """What was before is not told, and what comes is told as it is answered."""
    do(stage, store("before"))
    with watching(stage) as watcher, joined(stage, "writer") as writer:
        ask(stage, writer, store("a"))
        (message,) = told(stage, watcher)
        assert isinstance(message, Events)
        assert ids([message]) == ["a"]
        assert message.revision == stage.requests.revision


def test_told_from_a_revision_on(stage: Stage) -> None:
    """Behind `since`, not at it."""
    do(stage, *(store(f"{number}") for number in range(5)))
    with watching(stage, since=2) as watcher:
        assert ids(told(stage, watcher)) == ["2", "3", "4"]
        do(stage, store("5"))
        assert ids(told(stage, watcher)) == ["5"]


def test_nothing_is_told_where_nothing_happens(stage: Stage) -> None:
    with watching(stage) as watcher:
        assert silent(stage, watcher)
        assert not stage.loop._watchers.has_more


def test_transaction_is_told_as_one(stage: Stage) -> None:
    """In one frame, at one revision."""
    with watching(stage) as watcher, joined(stage, "writer") as writer:
        results(
            stage,
            writer,
            TransactionRequest(2, tuple(store(f"{number}") for number in range(limits.EVENTS_PER_FRAME * 2))),
        )
        (message,) = told(stage, watcher)
        assert len(events([message])) == limits.EVENTS_PER_FRAME * 2
        assert {event.revision for event in events([message])} == {stage.requests.revision}


def test_late_watcher_is_told_in_parts(stage: Stage) -> None:
    """A bounded number of events a turn, so that nobody waits for it, until it has all of them."""
    amount = limits.EVENTS_SENT_PER_TURN * 2 + 50
    do(stage, *(store(f"{number}") for number in range(amount)))
    watcher = joined(stage, "late")
    with watcher:
        watcher.send(WatchEvents(1, 0))
        place = stage.loop._watchers
        stage.turn_until(lambda: len(place))
        first = place._queue[0].scanned
        assert 0 < first <= limits.EVENTS_SENT_PER_TURN + limits.EVENTS_PER_FRAME
        assert place.has_more
        messages = told(stage, watcher)
        assert ids(messages) == [f"{number}" for number in range(amount)]
        assert all(len(events([message])) <= limits.EVENTS_PER_FRAME for message in messages)
        assert not place.has_more


def test_a_watcher_that_does_not_read(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outbox stays small, the loop does not spin for it, others are told all; once it reads, so is it."""
    monkeypatch.setattr(limits, "EVENTS_BUFFERED", 1_000)
    with watching(stage) as sleeper, watching(stage) as reader:
        connection = stage.loop._watchers._queue[0].connection
        seen: list[str] = []
        for number in range(12_000):
            do(stage, store(f"{number % 100}-{'x' * 100}"))
            if number % 100 == 99:
                seen += ids(told(stage, reader))
                assert len(connection.peer.outbox) < limits.WATCHER_OUTBOX_BYTES * 2
        assert len(seen) == 12_000
        assert len(connection.peer.outbox) >= limits.WATCHER_OUTBOX_BYTES
        assert not stage.loop._watchers.has_more
        messages = told(stage, sleeper)
        missed = [message for message in messages if isinstance(message, WatchLagged)]
        assert missed
        assert revisions_are_complete(messages, stage.requests.revision)


def revisions_are_complete(messages: list[ManagerMessage], upto: int) -> bool:
    """Every revision was told once, in order, or lies in a stretch that was said to be missed."""
    revision = next(iter(events(messages))).revision - 1
    for message in messages:
        if isinstance(message, WatchLagged):
            revision = message.resume
        for event in events([message]):
            if event.revision != revision + 1:
                return False
            revision = event.revision
    return revision == upto


def test_stalled_watcher_is_cut_off(stage: Stage, clock: Clock) -> None:
    """Like anybody who does not read; it comes back if it wants to."""
    with watching(stage) as sleeper:
        while len(stage.loop._watchers._queue[0].connection.peer.outbox) < limits.WATCHER_OUTBOX_BYTES:
            do(stage, *(store(f"{number}-{'x' * 200}") for number in range(500)))
            stage.turn()
        clock.forward(limits.STALL_SECONDS_MAX + 1)
        stage.turn_until(lambda: not stage.peers)
        assert len(stage.loop._watchers) == 0
        sleeper.socket.settimeout(60)


def test_past_the_floor(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told what it missed, and goes on from there without a gap."""
    monkeypatch.setattr(limits, "EVENTS_BUFFERED", 10)
    do(stage, *(store(f"{number}") for number in range(30)))
    with watching(stage, since=3) as watcher:
        first, *rest = told(stage, watcher)
        assert first == WatchLagged(20)
        assert ids(rest) == [f"{number}" for number in range(20, 30)]


def test_only_what_is_in_scope(stage: Stage) -> None:
    """A session is told of what it may see: all of a plan's projects have to be its own."""
    with watching(stage, scope=("p",)) as watcher:
        do(
            stage,
            store("a", project="p"),
            store("b", project="q"),
            CreateAction("act", "", "", "planner", "coder"),
            UseAction("p-plan", "act", (ProjectLink("p"),)),
            UseAction("pq-plan", "act", (ProjectLink("p"), ProjectLink("q"))),
            SetBudget(TierBudget(hot_tokens=1_000)),
        )
        assert [type(event).__name__ for event in events(told(stage, watcher))] == [
            "FragmentStored",
            "ActionCreated",
            "ActionUsed",
            "PlanCreated",
            "ActionUsed",
            "BudgetChanged",
        ]


def test_only_what_was_asked_for(stage: Stage) -> None:
    """Of an unrestricted session's projects, those that it names; a plan on one of them is among it."""
    with watching(stage, projects=("p",)) as watcher:
        do(
            stage,
            store("a", project="p"),
            store("b", project="q"),
            CreateAction("act", "", "", "planner", "coder"),
            UseAction("q-plan", "act", (ProjectLink("q"),)),
            UseAction("pq-plan", "act", (ProjectLink("p"), ProjectLink("q"))),
        )
        scopes = [event.scope for event in events(told(stage, watcher)) if event.scope]
        assert scopes == [("p",), ("p", "q")]


def test_told_how_far_even_if_nothing_concerns_it(stage: Stage, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it resumes from there; not at every turn, because it is no news."""
    monkeypatch.setattr(limits, "WATCHER_POSITION_SECONDS", 10.0)
    with watching(stage, projects=("p",)) as watcher:
        do(stage, store("a", project="q"))
        assert silent(stage, watcher)
        clock.forward(limits.WATCHER_POSITION_SECONDS)
        do(stage, store("b", project="q"))
        assert told(stage, watcher) == [Events((), stage.requests.revision)]


@pytest.mark.parametrize(
    "message, kind",
    [
        pytest.param(WatchEvents(7, None, ("q",)), "OutOfScope", id="another project"),
        pytest.param(WatchEvents(7, 1_000), "InvalidArgument", id="a revision that is not there yet"),
    ],
)
def test_refused(stage: Stage, message: WatchEvents, kind: str) -> None:
    """With its reason; the connection is as it was, and can be used."""
    with joined(stage, "watcher", ("p",)) as peer:
        peer.send(message)
        answer = answered(stage, peer)
        assert isinstance(answer, Response)
        (refusal,) = answer.results
        assert isinstance(refusal, Refusal)
        assert (answer.request_id, refusal.kind) == (7, kind)
        assert not connection_of(stage, "watcher").is_watching
        assert len(ask(stage, peer, store("a"))) == 1


def test_too_many(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Busy, until one of the others leaves."""
    monkeypatch.setattr(limits, "WATCHERS_MAX", 1)
    with joined(stage, "second") as second:
        with watching(stage):
            second.send(WatchEvents(1))
            answer = answered(stage, second)
            assert isinstance(answer, Response)
            assert [each.kind for each in answer.results if isinstance(each, Refusal)] == ["Busy"]
        stage.turn_until(lambda: not len(stage.loop._watchers))
        second.send(WatchEvents(2))
        assert answered(stage, second) == Events((), 0)


def test_whoever_watches_asks_nothing(stage: Stage) -> None:
    with watching(stage) as watcher:
        watcher.send(AskStatus(1))
        rejected = answered(stage, watcher)
        assert isinstance(rejected, Rejected)
        assert rejected.refusal.kind == "ProtocolError"
        stage.turn_until(lambda: not stage.peers)
        assert gone(watcher)
        assert len(stage.loop._watchers) == 0


def test_a_step_that_does_not_fit_in_a_frame(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is missed, by those whom it concerns, and everything behind it is told."""
    with watching(stage) as watcher, watching(stage, projects=("q",)) as other:
        do(stage, store("a"))
        assert ids(told(stage, watcher)) == ["a"]
        with monkeypatch.context() as patched:
            patched.setattr(limits, "FRAME_BYTES_MAX", 50)
            do(stage, DeleteFragment("p", "a"), store("b"))
            (message,) = told(stage, watcher)
            assert message == WatchLagged(3)
        do(stage, store("c", project="q"))
        assert ids(told(stage, watcher)) == ["c"]
        assert ids(told(stage, other)) == ["c"]


def test_what_cannot_be_told_costs_one_watcher(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect, or a store that cannot be read, ends the connection that came upon it; all others go on."""
    do(stage, store("a"))
    with joined(stage, "late") as late, watching(stage) as watcher:
        after = stage.owner.journal.feed.events_after

        def broken(revision: int, limit: int, committed: int) -> tuple[Sequence[AnyEvent], int]:
            if revision == 0:
                raise OSError("the disk is gone")
            return after(revision, limit, committed)

        monkeypatch.setattr(stage.owner.journal.feed, "events_after", broken)
        late.send(WatchEvents(1, 0))
        assert answered(stage, late) == Events((), 0)
        rejected = answered(stage, late)
        assert isinstance(rejected, Rejected)
        assert rejected.refusal.kind == "ManagerFault"
        stage.turn_until(lambda: stage.peers == 1)
        do(stage, store("b"))
        assert ids(told(stage, watcher)) == ["b"]
        assert len(stage.loop._watchers) == 1
