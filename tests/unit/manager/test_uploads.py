"""Uploads: large bodies straight into the arena, in slices, and refused as what refers to them."""

import errno
import os
from collections.abc import Iterator

import pytest

from stepwell import limits
from stepwell.domain.commands import AnyWrite
from stepwell.domain.replies import TierMetrics
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.commands import GetFragment, GetMetrics
from stepwell.domain.tiers.model import TierBudget
from stepwell.domain.verdict import Origin
from stepwell.errors import TierFull
from stepwell.limits import KIB, MIB
from stepwell.manager.state_owner import StateOwner
from stepwell.manager.uploads import Uploads
from stepwell.memory.writer.arena import OutOfRoom
from stepwell.memory.writer.upload import Upload
from stepwell.protocol.messages import (
    CommandResult,
    OfferUpload,
    Refusal,
    Rejected,
    Request,
    Response,
    TransactionRequest,
    UploadGranted,
)
from tests.support.domain.world import image
from tests.support.manager.peers import (
    ORIGIN,
    Clock,
    answered,
    ask,
    connection_of,
    gone,
    granted,
    joined,
    noise,
    pins,
    pour,
    read,
    refusals,
    results,
    upload,
)
from tests.support.managers import Stage, staged
from tests.support.peers import RawPeer, frame, store


@pytest.fixture
def small() -> Iterator[Stage]:
    """A manager whose arena is soon full."""
    with staged(budget=TierBudget(arena_bytes=8 * MIB)) as made:
        yield made


def transact(stage: Stage, peer: RawPeer, *commands: AnyWrite) -> list[CommandResult | Refusal]:
    """The results of one transaction."""
    return results(stage, peer, TransactionRequest(2, commands))


def taken(stage: Stage) -> tuple[int, int, int]:
    """What uploads could leave behind: live bytes, pins, bodies."""
    return stage.owner.bodies.arena.live, pins(stage), len(stage.owner.bodies)


def test_upload_is_received_where_it_stays(stage: Stage) -> None:
    """Bounded slices, straight into the place that was reserved; nothing waits in a buffer, and others are served."""
    body = noise(3 * MIB)
    with joined(stage, "sender") as sender, joined(stage, "other") as other:
        assert granted(stage, sender, 0, len(body))
        connection = connection_of(stage, "sender")
        current = connection.uploads._current
        assert current is not None
        sender.socket.settimeout(0)
        sent = turns = seen = 0
        while sent < len(body):
            sent += sender.socket.send(body[sent : sent + 128 * KIB])
            if not turns % 4:
                assert isinstance(ask(stage, other, GetMetrics())[0], CommandResult)
            stage.turn()
            turns += 1
            assert current._written - seen <= 2 * limits.RECEIVE_BYTES_PER_TURN
            assert connection.peer._framer.pending == 0
            seen = current._written
        assert turns >= len(body) // limits.RECEIVE_BYTES_PER_TURN
        stage.turn_until(lambda: 0 in connection.uploads.held)
        (placed, found) = ask(stage, sender, store("large", 0), GetFragment("p", "large"))
        assert isinstance(placed, CommandResult)
        assert isinstance(found, CommandResult)
        (handle,) = found.handles.values()
        assert (handle.segment, handle.offset, handle.size) == (current.place.segment, current.place.offset, len(body))
        assert (read(stage, "large"), pins(stage)) == (body, 0)


def test_request_right_behind_the_last_byte(stage: Stage) -> None:
    """What follows the body in the same bytes is the next frame, also when the whole came with the offer's turn."""
    body = noise(100 * KIB)
    with joined(stage, "a") as peer:
        peer.send_raw(frame(OfferUpload(7, len(body))) + body + frame(Request(1, (store("a", 7),))))
        assert answered(stage, peer) == UploadGranted(7, accepted=True)
        response = answered(stage, peer)
        assert isinstance(response, Response)
        assert refusals(response.results) == [""]
        assert read(stage, "a") == body


def test_upload_of_what_is_there_already(stage: Stage) -> None:
    """An equal body is kept once, where it was; the second copy's room comes back."""
    body = noise(MIB)
    with joined(stage, "a") as peer:
        upload(stage, peer, 0, body)
        assert refusals(ask(stage, peer, store("one", 0))) == [""]
        before = taken(stage)
        upload(stage, peer, 0, body)
        assert refusals(ask(stage, peer, store("two", 0))) == [""]
        assert taken(stage) == before
        assert read(stage, "one") == read(stage, "two") == body


def test_two_uploads_of_the_same_body_at_once(stage: Stage) -> None:
    """Each is held by its own connection: one that gives it up does not take it from the other."""
    body = noise(MIB)
    with joined(stage, "a") as first, joined(stage, "b") as second:
        upload(stage, first, 0, body)
        upload(stage, second, 0, body)
        stage.turn_until(lambda: 0 in connection_of(stage, "b").uploads.held)
        assert refusals(ask(stage, first, GetMetrics())) == [""]  # takes nothing
        assert refusals(ask(stage, second, store("b", 0))) == [""]
        assert read(stage, "b") == body


def test_one_upload_for_several_commands(stage: Stage) -> None:
    """A number stands for the body in every command of the next request, and in none after it."""
    body = noise(MIB)
    with joined(stage, "a") as peer:
        upload(stage, peer, 3, body)
        assert refusals(ask(stage, peer, store("one", 3), store("two", 3))) == ["", ""]
        assert len(stage.owner.bodies) == 1
        (refused,) = ask(stage, peer, store("three", 3))
        assert isinstance(refused, Refusal)
        assert (refused.kind, refused.details) == ("InvalidArgument", {"upload": 3})


def test_unknown_number_costs_its_command_only(stage: Stage) -> None:
    """It was never offered: what to do is said, the others of the batch happen."""
    with joined(stage, "a") as peer:
        results = ask(stage, peer, store("a", 5), store("b"))
        assert refusals(results) == ["InvalidArgument", ""]
        assert isinstance(results[0], Refusal)
        assert "offer it and send its bytes first" in results[0].message


def test_what_no_command_takes_is_not_kept(stage: Stage) -> None:
    """Room of an upload that the request does not refer to, or whose command is refused, comes back with the answer."""
    with joined(stage, "a", ("p",)) as peer:
        before = taken(stage)
        for command in (GetMetrics(), store("a", 0, project="not mine")):
            upload(stage, peer, 0, noise(MIB))
            ask(stage, peer, command)
            assert taken(stage) == before


# Refused.


def test_upload_that_cannot_fit_is_refused_as_its_command(small: Stage) -> None:
    """No byte is sent; in a batch only what refers to it is refused, and nobody's fragments went down for it."""
    with joined(small, "a") as peer:
        for number in range(4):
            small.owner.execute(store(str(number), noise(MIB, number)), ORIGIN)
        before = image(small.owner._state)
        assert not granted(small, peer, 0, 16 * MIB)
        assert image(small.owner._state) == before
        results = ask(small, peer, store("small"), store("large", 0), store("other"))
        assert refusals(results) == ["", "TierFull", ""]
        assert isinstance(results[1], Refusal)
        assert "raise arena_bytes" in results[1].message
        assert [read(small, str(number)) for number in range(4)] == [noise(MIB, number) for number in range(4)]


def test_upload_that_cannot_fit_aborts_its_transaction(small: Stage) -> None:
    """Nothing of it happens, and the cause is named."""
    with joined(small, "a") as peer:
        assert not granted(small, peer, 0, 16 * MIB)
        before = image(small.owner._state)
        (refused,) = transact(small, peer, store("small"), store("large", 0))
        assert isinstance(refused, Refusal)
        assert (refused.kind, refused.details) == ("TransactionAborted", {"index": 1, "cause": "TierFull"})
        assert image(small.owner._state) == before


def test_uploads_of_a_transaction_that_is_aborted_leave_nothing(stage: Stage) -> None:
    """Their room comes back with the refusal."""
    with joined(stage, "a") as peer:
        before = taken(stage)
        upload(stage, peer, 0, noise(MIB))
        assert refusals(transact(stage, peer, store("large", 0), store("absent", 1))) == ["TransactionAborted"]
        assert taken(stage) == before


def test_system_without_memory_refuses_the_upload(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the first part of its memory was there: the part is given back, and what was stored stays readable."""
    kept = noise(MIB)
    with joined(stage, "a") as peer:
        upload(stage, peer, 0, kept)
        ask(stage, peer, store("kept", 0))
        before, was = taken(stage), image(stage.owner._state)
        allocate, left = os.posix_fallocate, [2]

        def short(descriptor: int, offset: int, length: int) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            allocate(descriptor, offset, length)

        monkeypatch.setattr(os, "posix_fallocate", short)
        assert not granted(stage, peer, 0, 30 * MIB)
        assert left[0] == -1
        monkeypatch.setattr(os, "posix_fallocate", allocate)
        assert (taken(stage), image(stage.owner._state)) == (before, was)
        (refused,) = ask(stage, peer, store("large", 0))
        assert isinstance(refused, Refusal)
        assert refused.kind == "ResourceExhausted"
        assert "No space left" in refused.message
        upload(stage, peer, 0, kept[1:])
        assert refusals(ask(stage, peer, store("again", 0))) == [""]
        assert (read(stage, "kept"), read(stage, "again")) == (kept, kept[1:])


# Waiting for room.


def test_upload_waits_while_room_is_made(small: Stage) -> None:
    """The least recently used go to disk, others are served meanwhile, then it is granted; nothing is lost."""
    bodies = {str(number): noise(MIB, number) for number in range(5)}
    with joined(small, "a") as peer, joined(small, "other") as other:
        for name, body in bodies.items():
            small.owner.execute(store(name, body), ORIGIN)
        large = noise(4 * MIB, 99)
        peer.send(OfferUpload(0, len(large)))
        connection = connection_of(small, "a")
        small.turn_until(lambda: connection.deferred)
        (answer,) = ask(small, other, GetMetrics())
        assert isinstance(answer, CommandResult)
        assert isinstance(answer.reply, TierMetrics)
        assert answer.reply.hot.entries < 5
        assert answered(small, peer) == UploadGranted(0, accepted=True)
        assert connection.deferred is None
        pour(small, peer, large)
        assert refusals(ask(small, peer, store("large", 0))) == [""]
        assert {name: read(small, name) for name in bodies} == bodies
        assert read(small, "large") == large


def test_memory_of_a_large_upload_is_had_in_parts(stage: Stage) -> None:
    """The kernel is asked for a bounded number of bytes a turn, before the bytes may come."""
    with joined(stage, "a") as peer:
        peer.send(OfferUpload(0, 3 * limits.PREPARED_BYTES_PER_TURN))
        connection = connection_of(stage, "a")
        stage.turn_until(lambda: connection.deferred)
        before = allocated(connection.uploads)
        stage.turn()
        assert before < allocated(connection.uploads) <= before + limits.PREPARED_BYTES_PER_TURN
        assert answered(stage, peer) == UploadGranted(0, accepted=True)


def test_preparing_does_not_wait_for_anything(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its parts the loop does not go to sleep: nobody would wake it."""
    slept: list[float] = []
    epoll = stage.loop._epoll

    class Watched:
        def poll(self, seconds: float) -> list[tuple[int, int]]:
            slept.append(seconds)
            return epoll.poll(seconds)

        def __getattr__(self, name: str) -> object:
            return getattr(epoll, name)

    with joined(stage, "a") as peer:
        peer.send(OfferUpload(0, 3 * limits.PREPARED_BYTES_PER_TURN))
        connection = connection_of(stage, "a")
        stage.turn_until(lambda: connection.deferred)
        monkeypatch.setattr(stage.loop, "_epoll", Watched())
        stage.turn_until(lambda: not connection.deferred)
        assert slept
        assert not any(slept)
        monkeypatch.undo()


def test_uploads_cannot_take_all_of_the_arena(small: Stage) -> None:
    """What is offered past half of it waits until the others are done; small bodies find room meanwhile."""
    half = limits.UPLOADS_PERCENT_MAX * small.owner.bodies.arena.limit // 100
    with joined(small, "first") as first, joined(small, "second") as second, joined(small, "other") as other:
        first.send(OfferUpload(0, half - MIB))
        assert answered(small, first) == UploadGranted(0, accepted=True)
        second.send(OfferUpload(0, 2 * MIB))
        connection = connection_of(small, "second")
        small.turn_until(lambda: connection.deferred)
        assert refusals(ask(small, other, store("small", b"x"))) == [""]
        assert connection.deferred
        first.close()
        assert answered(small, second) == UploadGranted(0, accepted=True)


def test_store_while_uploads_hold_the_memory_can_be_tried_again(small: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The room comes back by itself, so that it is Busy and not TierFull."""
    with joined(small, "a") as peer, joined(small, "other") as other:
        peer.send(OfferUpload(0, MIB))
        assert answered(small, peer) == UploadGranted(0, accepted=True)

        def fail(_needed: int) -> None:
            raise OutOfRoom("taken")

        monkeypatch.setattr(small.owner.bodies.arena, "ensure_room", fail)
        (refused,) = ask(small, other, store("small", b"x"))
        assert isinstance(refused, Refusal)
        assert refused.kind == "Busy"


def allocated(uploads: Uploads) -> int:
    """Bytes that the kernel has given for the upload under way."""
    current = uploads._current
    assert current is not None
    segment = current._arena.segments[current.place.segment]
    return os.fstat(segment.descriptor).st_blocks * 512


def test_room_that_does_not_come_in_time_is_busy(stage: Stage, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """An offer waits a bounded time; what refers to it is then told to try again, which can help."""

    def never(_owner: StateOwner, _size: int, _own: int, _origin: Origin, **_how: object) -> Upload | None:
        return None

    monkeypatch.setattr(StateOwner, "reserve", never)
    with joined(stage, "a") as peer:
        peer.send(OfferUpload(0, MIB))
        connection = connection_of(stage, "a")
        stage.turn_until(lambda: connection.deferred)
        clock.forward(limits.GRANT_SECONDS_MAX + 1)
        assert answered(stage, peer) == UploadGranted(0, accepted=False)
        assert refusals(ask(stage, peer, store("large", 0))) == ["Busy"]
        peer.send(OfferUpload(0, MIB))  # another offer has its own time
        stage.turn(2)
        assert connection.deferred


# Bad manners, and the end.


def test_same_number_twice_is_no_protocol(stage: Stage) -> None:
    """Which of the two a request would mean is not guessed; the room of the first comes back."""
    with joined(stage, "a") as peer:
        before = taken(stage)
        upload(stage, peer, 0, noise(MIB))
        peer.send(OfferUpload(0, MIB))
        rejected = answered(stage, peer)
        assert isinstance(rejected, Rejected)
        assert rejected.refusal.kind == "ProtocolError"
        assert "offered already" in rejected.refusal.message
        stage.turn_until(lambda: stage.peers == 0)
        assert taken(stage) == before


def test_uploads_before_a_request_are_bounded(small: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than a request may refer to ends the connection; those that were refused count too."""
    monkeypatch.setattr(limits, "UPLOADS_PER_REQUEST_MAX", 2)
    with joined(small, "a") as peer:
        upload(small, peer, 0, noise(100 * KIB))
        assert not granted(small, peer, 1, 16 * MIB)
        assert refusals(ask(small, peer, store("a", 0), store("b", 1))) == ["", "TierFull"]
        upload(small, peer, 0, noise(100 * KIB))
        upload(small, peer, 1, noise(100 * KIB))
        peer.send(OfferUpload(2, 1))
        rejected = answered(small, peer)
        assert isinstance(rejected, Rejected)
        assert "send the request that refers to them first" in rejected.refusal.message


def test_offer_needs_a_hello_first(stage: Stage) -> None:
    """Nobody gets memory without saying who they are."""
    with RawPeer(stage.address) as stranger:
        stranger.send(OfferUpload(0, MIB))
        assert isinstance(answered(stage, stranger), Rejected)
        assert stage.owner.bodies.arena.bytes == 0


def hang_up_in_the_middle(stage: Stage, peer: RawPeer) -> None:
    assert granted(stage, peer, 0, 2 * MIB)
    pour(stage, peer, noise(MIB))


def hang_up_before_the_first_byte(stage: Stage, peer: RawPeer) -> None:
    assert granted(stage, peer, 0, 2 * MIB)


def hang_up_before_the_request(stage: Stage, peer: RawPeer) -> None:
    upload(stage, peer, 0, noise(2 * MIB))
    stage.turn_until(lambda: 0 in connection_of(stage, "a").uploads.held)


def hang_up_before_the_grant(stage: Stage, peer: RawPeer) -> None:
    peer.send(OfferUpload(0, limits.BODY_BYTES_MAX))
    stage.turn_until(lambda: connection_of(stage, "a").deferred)


ENDS = {
    each.__name__: each
    for each in (
        hang_up_in_the_middle,
        hang_up_before_the_first_byte,
        hang_up_before_the_request,
        hang_up_before_the_grant,
    )
}


@pytest.mark.parametrize("name", ENDS)
def test_peer_that_dies_gives_its_room_back(stage: Stage, name: str) -> None:
    """At every stage of an upload: no live byte and no pin is left, and its segment can be closed."""
    peer = joined(stage, "a")
    ENDS[name](stage, peer)
    assert taken(stage)[0] > 0
    peer.close()
    stage.turn_until(lambda: stage.peers == 0)
    assert taken(stage) == (0, 0, 0)
    assert not stage.loop._deferred.connections


@pytest.mark.parametrize("name", ENDS)
def test_manager_can_end_in_the_middle_of_an_upload(name: str) -> None:
    """Whatever is on its way, the memory can be let go of."""
    with staged() as stage, joined(stage, "a") as peer:
        ENDS[name](stage, peer)
        stage.loop.stop("test")
        stage.turn(2)


def test_upload_that_nobody_comes_back_for_is_given_up(stage: Stage, clock: Clock) -> None:
    """A peer that uploads and never asks does not hold memory for ever; one that asks in time is left alone."""
    with joined(stage, "a") as peer:
        upload(stage, peer, 0, noise(MIB))
        stage.turn_until(lambda: 0 in connection_of(stage, "a").uploads.held)
        clock.forward(2 * limits.UPLOAD_SECONDS_MAX - 5)
        stage.turn(2)
        assert stage.peers == 1
        ask(stage, peer, store("a", 0))
        clock.forward(10)
        stage.turn(2)
        assert stage.peers == 1
        upload(stage, peer, 0, noise(2 * MIB))
        before = taken(stage)
        clock.forward(2 * limits.UPLOAD_SECONDS_MAX + 1)
        stage.turn(3)
        assert gone(peer)
        assert (stage.peers, stage.loop._evicted) == (0, 1)
        assert taken(stage)[0] < before[0]
        assert taken(stage)[1:] == (0, 1)


def test_upload_that_stalls_is_given_up(stage: Stage, clock: Clock) -> None:
    """Half a body and then nothing: cut off like half a frame, and its room comes back."""
    with joined(stage, "a") as peer:
        hang_up_in_the_middle(stage, peer)
        stage.turn(5)
        clock.forward(limits.STALL_SECONDS_MAX + 1)
        stage.turn(3)
        assert gone(peer)
        assert taken(stage) == (0, 0, 0)


def test_refusal_is_another_error_each_time(stage: Stage) -> None:
    """What is raised keeps the frames that it went through: the one that is remembered is never raised itself."""
    uploads = Uploads(stage.owner)
    remembered = TierFull("no room", limit=7)
    uploads.held[0] = remembered
    origin = Origin("s", 1, uploads=uploads.held)
    for _ in range(2):
        with pytest.raises(TierFull, match="no room") as caught:
            origin.resolve_body(0)
        assert caught.value is not remembered
        assert caught.value.details == {"limit": 7}
    assert remembered.__traceback__ is None


def test_digest_is_that_of_the_bytes(stage: Stage) -> None:
    """It is taken from what arrived, not from what a peer says."""
    body = noise(MIB)
    with joined(stage, "a") as peer:
        upload(stage, peer, 0, body)
        ask(stage, peer, store("a", 0))
        assert stage.owner.execute(GetFragment("p", "a"), ORIGIN).handles.keys() == {digest_of(body)}
