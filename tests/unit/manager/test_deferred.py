"""What cannot be answered yet waits, and its peer with it, and nobody else: views being listed, offers without room."""

import errno
import os

import pytest

from stepwell import limits
from stepwell.domain.tiers.commands import GetMetrics
from stepwell.domain.verdict import Origin
from stepwell.limits import MIB
from stepwell.manager.state_owner import StateOwner
from stepwell.memory.writer.upload import Upload
from stepwell.protocol.messages import (
    AskStatus,
    AskView,
    OfferUpload,
    Refusal,
    Request,
    Response,
    SegmentsAdded,
    Status,
    UploadGranted,
    ViewOpened,
)
from stepwell.transport.kernel import Poller
from tests.support.manager.peers import (
    ORIGIN,
    Clock,
    answered,
    ask,
    connection_of,
    gone,
    joined,
    noise,
    pour,
    read,
    refusals,
    told,
    upload,
)
from tests.support.managers import EPOCH, Stage
from tests.support.peers import RawPeer, frame, store


class Patient:
    """Stands before the epoll: keeps how long the loop would have slept and what it found, and never sleeps."""

    def __init__(self, epoll: Poller) -> None:
        self._epoll = epoll
        self.polls: list[tuple[float, int]] = []
        self.register, self.modify, self.unregister = epoll.register, epoll.modify, epoll.unregister
        self.close = epoll.close

    def poll(self, seconds: float) -> list[tuple[int, int]]:
        found = self._epoll.poll(0)
        self.polls.append((seconds, len(found)))
        return found


def sleeps(stage: Stage, monkeypatch: pytest.MonkeyPatch, turns: int) -> int:
    """In how many of so many turns the loop would go to sleep, with nothing to wake it."""
    with monkeypatch.context() as patch:
        patient = Patient(stage.loop._epoll)
        patch.setattr(stage.loop, "_epoll", patient)
        stage.turn(turns)
    return sum(seconds > 0 and not found for seconds, found in patient.polls)


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every offer waits."""

    def never(_owner: StateOwner, _size: int, _own: int, _origin: Origin, **_how: object) -> Upload | None:
        return None

    monkeypatch.setattr(StateOwner, "reserve", never)


def deferred(stage: Stage, session_id: str) -> RawPeer:
    """A peer whose offer cannot be answered yet."""
    peer = joined(stage, session_id)
    peer.send(OfferUpload(0, MIB))
    stage.turn_until(lambda: connection_of(stage, session_id).deferred)
    return peer


# Views.


def test_view_waits_until_its_catalogue_is_listed(stage: Stage) -> None:
    """Rows are listed in slices, others are served meanwhile; then it opens, the segments announced before."""
    count = 4 * limits.CATALOGUE_ROWS_PER_SLICE
    for number in range(count):
        stage.owner.execute(store(str(number), str(number).encode()), ORIGIN)
    with joined(stage, "viewer") as viewer, joined(stage, "other") as other:
        viewer.send(AskView(3, ("p",)))
        stage.turn_until(lambda: connection_of(stage, "viewer").deferred)
        assert refusals(ask(stage, other, GetMetrics())) == [""]
        assert connection_of(stage, "viewer").deferred
        segments, opened = told(stage, viewer), told(stage, viewer)
        assert isinstance(segments, SegmentsAdded)
        assert isinstance(opened, ViewOpened)
        assert (opened.request_id, opened.epoch, opened.revision) == (3, EPOCH, count)
        assert {each.number for each in segments.segments} == {*stage.owner.bodies.arena.segments}
        (end,) = opened.catalogues
        assert {number for number, _ in end.segments} <= {each.number for each in segments.segments}
        viewer.send(AskStatus(4))
        status = answered(stage, viewer)
        assert isinstance(status, Status)
        assert status.memory.catalogues == 1
        assert not stage.loop._deferred.connections


def test_what_follows_a_view_waits_behind_it(stage: Stage) -> None:
    """Answers come in the order of the questions, however long one of them takes."""
    for number in range(2 * limits.CATALOGUE_ROWS_PER_SLICE):
        stage.owner.execute(store(str(number)), ORIGIN)
    with joined(stage, "viewer") as viewer:
        viewer.send(AskView(1, ("p",)), Request(2, (store("late"),)), AskView(3, ("p",)))
        first, second, third = (answered(stage, viewer) for _ in range(3))
        assert isinstance(first, ViewOpened)
        assert isinstance(second, Response)
        assert isinstance(third, ViewOpened)
        assert (first.request_id, second.request_id, third.request_id) == (1, 2, 3)
        assert third.revision == first.revision + 1


def test_view_out_of_scope_is_refused(stage: Stage) -> None:
    """No catalogue is made for it, and the connection stays."""
    stage.owner.execute(store("a", project="theirs"), ORIGIN)
    with joined(stage, "viewer", ("mine",)) as viewer:
        viewer.send(AskView(1, ("mine", "theirs")))
        response = answered(stage, viewer)
        assert isinstance(response, Response)
        assert refusals(response.results) == ["OutOfScope"]
        assert stage.owner.catalogues == 0
        assert refusals(ask(stage, viewer, GetMetrics())) == [""]


def test_view_without_room_is_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory for the catalogue, and none to be made: that is said, what is stored stays, and later it opens."""

    def none_left(_number: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    stage.owner.execute(store("a"), ORIGIN)
    with joined(stage, "viewer") as viewer:
        with monkeypatch.context() as patch:
            patch.setattr(stage.owner.bodies.arena, "_make", none_left)
            viewer.send(AskView(1, ("p",)))
            response = answered(stage, viewer)
        assert isinstance(response, Response)
        (refused,) = response.results
        assert isinstance(refused, Refusal)
        assert refused.kind == "ResourceExhausted"
        assert "No space left" in refused.message
        assert (stage.owner.catalogues, read(stage, "a")) == (0, b"body")
        viewer.send(AskView(2, ("p",)))
        assert isinstance(answered(stage, viewer), ViewOpened)


def test_view_that_cannot_be_opened_in_time_is_busy(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Nobody waits for ever, whatever others do with the memory."""
    monkeypatch.setattr(StateOwner, "open_view", lambda *_: None)
    with joined(stage, "viewer") as viewer:
        viewer.send(AskView(1, ("p",)))
        stage.turn_until(lambda: connection_of(stage, "viewer").deferred)
        clock.forward(limits.GRANT_SECONDS_MAX + 1)
        response = answered(stage, viewer)
        assert isinstance(response, Response)
        (refused,) = response.results
        assert isinstance(refused, Refusal)
        assert refused.kind == "Busy"


def test_peer_that_hangs_up_before_its_view_opens(stage: Stage) -> None:
    """The listing goes on for whoever asks next; nobody is left waiting."""
    for number in range(4 * limits.CATALOGUE_ROWS_PER_SLICE):
        stage.owner.execute(store(str(number)), ORIGIN)
    viewer = joined(stage, "viewer")
    viewer.send(AskView(1, ("p",)))
    stage.turn_until(lambda: connection_of(stage, "viewer").deferred)
    viewer.close()
    stage.turn_until(lambda: stage.peers == 0)
    assert not stage.loop._deferred.connections
    with joined(stage, "next") as following:
        following.send(AskView(2, ("p",)))
        assert isinstance(answered(stage, following), ViewOpened)


# Parked.


@pytest.mark.usefixtures("no_room")
def test_parked_peer_that_hangs_up_is_noticed(stage: Stage) -> None:
    """Although nothing is read of it meanwhile. Its session has the grace of a lost connection."""
    peer = deferred(stage, "a")
    (session,) = stage.loop._sessions
    peer.close()
    stage.turn_until(lambda: stage.peers == 0)
    assert (stage.loop._deferred.connections, stage.loop._backlog, session.connections) == ({}, {}, 0)
    assert session.ends_at_s is not None


@pytest.mark.usefixtures("no_room", "clock")
def test_parked_peer_that_keeps_sending_waits_in_its_socket(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its buffer does not grow, and the loop sleeps all the same."""
    with deferred(stage, "restless") as peer:
        connection = connection_of(stage, "restless")
        peer.socket.settimeout(0)
        before = connection.peer._framer.pending
        questions = frame(AskStatus(1)) * 1_000
        with pytest.raises(BlockingIOError):
            while True:
                peer.socket.send(questions)
                stage.loop.housekeeping.due_at_s = 0
                stage.turn()
        assert connection.peer._framer.pending == before
        assert sleeps(stage, monkeypatch, 50) >= 48  # one more for housekeeping


@pytest.mark.usefixtures("no_room", "clock")
def test_parked_peer_does_not_keep_the_loop_awake(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be done for it before something changes; others are served as before."""
    with deferred(stage, "waiting"), joined(stage, "other") as other:
        assert sleeps(stage, monkeypatch, 50) >= 48
        assert refusals(ask(stage, other, store("a"), GetMetrics())) == ["", ""]


def test_what_a_parked_peer_sent_is_served_when_it_is_its_turn(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes behind the offer are the body's: none of them is lost or taken for a frame."""
    with monkeypatch.context() as patch:
        patch.setattr(StateOwner, "prepare", lambda *_: False)
        with deferred(stage, "eager") as peer:
            body = noise(MIB)
            peer.socket.settimeout(0)
            sent = peer.socket.send(body)
            stage.turn(3)
            patch.undo()
            assert answered(stage, peer) == UploadGranted(0, accepted=True)
            pour(stage, peer, body[sent:])
            assert refusals(ask(stage, peer, store("a", 0))) == [""]
            assert read(stage, "a") == body


@pytest.mark.usefixtures("no_room")
def test_parked_peer_does_not_hold_up_the_end(stage: Stage) -> None:
    """A manager that is told to stop does not wait for room."""
    with deferred(stage, "waiting"):
        stage.loop.stop("test")
        stage.loop.run()
        assert stage.loop._drain_until_s is not None


@pytest.mark.usefixtures("no_room")
def test_parked_peer_is_not_stalled(stage: Stage, clock: Clock) -> None:
    """It waits for us: nobody is cut off for that before the offer itself is overdue."""
    with deferred(stage, "waiting") as peer:
        clock.forward(limits.GRANT_SECONDS_MAX - 1)
        stage.turn(3)
        assert stage.peers == 1
        clock.forward(2)
        assert answered(stage, peer) == UploadGranted(0, accepted=False)


def test_peer_that_is_evicted_in_the_turn_in_which_it_asks(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Nothing is waited for on a connection that is gone, and nobody else notices."""
    with joined(stage, "late") as peer, joined(stage, "other") as other:
        upload(stage, peer, 0, noise(MIB))
        connection = connection_of(stage, "late")
        stage.turn_until(lambda: connection.uploads.held)
        clock.forward(2 * limits.UPLOAD_SECONDS_MAX + 1)
        monkeypatch.setattr(StateOwner, "reserve", lambda *_: None)
        peer.send(OfferUpload(1, MIB))
        stage.turn()
        assert connection.deferred == OfferUpload(1, MIB)
        assert gone(peer)
        assert (stage.peers, stage.loop._deferred.connections, stage.loop._backlog) == (1, {}, {})
        assert refusals(ask(stage, other, GetMetrics())) == [""]
