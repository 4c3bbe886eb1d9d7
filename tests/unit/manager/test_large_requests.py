"""Large requests, turned by hand: small requests come first, slices are short, and a resent batch repeats nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell import limits
from stepwell.domain.replies import FragmentFound, FragmentPlaced
from stepwell.domain.tiers.commands import GetFragment, GetMetrics, StoreFragment
from stepwell.manager import large_requests
from stepwell.manager.request_handler import LargeRequest
from stepwell.manager.sessions import SessionRecord
from stepwell.protocol.codec import decode_results
from stepwell.protocol.messages import (
    VERSION,
    CommandResult,
    Goodbye,
    Hello,
    Refusal,
    Rejected,
    Request,
    Response,
    TransactionRequest,
    Welcome,
)
from stepwell.storage.files.directory import DATABASE
from stepwell.storage.load import load
from tests.support.manager.peers import Clock, answered, ask, connection_of, granted, joined, pour, read
from tests.support.managers import Stage, staged
from tests.support.peers import LARGE_METADATA, RawPeer, frame, framed, request_ids, store
from tests.support.storage.state import staged_on

LARGE = limits.SMALL_REQUEST_COMMANDS + 1


class Spent:
    """A budget that is spent after each step."""

    def __init__(self, _seconds: float) -> None:
        pass

    def is_spent(self) -> bool:
        return True


@pytest.fixture
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice is one step, of three simple commands at the most."""
    monkeypatch.setattr(limits, "COMMANDS_PER_RUN", 3)
    monkeypatch.setattr(large_requests, "TimeBudget", Spent)


@pytest.fixture(params=["in memory", "on disk"])
def stage(request: pytest.FixtureRequest, tmp_path: Path, short_slices: None) -> Iterator[Stage]:  # noqa: ARG001
    with staged() if request.param == "in memory" else staged_on(tmp_path) as made:
        yield made


def stores(count: int = LARGE, body: bytes = b"") -> tuple[StoreFragment, ...]:
    return tuple(store(f"f{number}", body or b"body %d" % number) for number in range(count))


def batch_of(stage: Stage, session_id: str) -> LargeRequest:
    """The large request that a session's connection waits for."""
    request = connection_of(stage, session_id).deferred
    assert isinstance(request, LargeRequest)
    return request


def begun(stage: Stage, peer: RawPeer, session_id: str, message: Request, results: int = 6) -> LargeRequest:
    """Send a batch, and turn until it has some results."""
    peer.send(message)
    stage.turn_until(lambda: connection_of(stage, session_id).deferred is not None)
    request = batch_of(stage, session_id)
    stage.turn_until(lambda: len(request.results) >= results)
    assert not request.is_complete
    return request


def session_of(stage: Stage, session_id: str) -> SessionRecord:
    return stage.loop._sessions._by_id[session_id]


def placed(response: object) -> list[int]:
    """The revisions at which the stores of a response took effect."""
    assert isinstance(response, Response)
    assert all(isinstance(each, CommandResult) and isinstance(each.reply, FragmentPlaced) for each in response.results)
    return [each.revision for each in response.results]


# Order within a turn, and over turns.


def test_small_requests_are_answered_before_large_ones(stage: Stage) -> None:
    """A get of another connection is answered in its own turn, whatever the number of batches under way."""
    peers = [joined(stage, f"large-{number}") for number in range(8)]
    with joined(stage, "small") as small:
        ask(stage, small, store("a"))
        for number, peer in enumerate(peers):
            peer.send(Request(1, stores(50, b"of %d" % number)))
        stage.turn_until(lambda: all(connection_of(stage, f"large-{number}").deferred for number in range(8)))
        for _ in range(10):
            small.send(Request(next(request_ids), (GetFragment("p", "a"),)))
            stage.turn(2)  # its own, perhaps behind one that was about to give a slice
            small.socket.settimeout(0)
            assert isinstance(small.receive(), Response)
        assert any(connection_of(stage, f"large-{number}").deferred for number in range(8))
        for peer in peers:
            assert len(placed(answered(stage, peer))) == 50
            peer.close()


def test_small_requests_do_not_starve_large_ones(stage: Stage) -> None:
    """With a small request in each turn, the batch has a slice in every other one."""
    with joined(stage, "large") as large, joined(stage, "small") as small:
        begun(stage, large, "large", Request(1, stores(90)))
        before = len(batch_of(stage, "large").results)
        for _ in range(10):
            small.send(Request(next(request_ids), (GetMetrics(),)))
            stage.turn()
        assert len(batch_of(stage, "large").results) - before == 5 * 3


def test_large_requests_take_turns(stage: Stage) -> None:
    """A slice goes to one after the other: none is more than a slice ahead."""
    with joined(stage, "one") as one, joined(stage, "two") as two:
        first = begun(stage, one, "one", Request(1, (GetMetrics(),) * 90), results=0)
        second = begun(stage, two, "two", Request(1, (GetMetrics(),) * 90), results=0)
        ahead = len(first.results) - len(second.results)
        for _ in range(40):
            stage.turn()
            assert abs(len(first.results) - len(second.results) - ahead) <= 1
        assert all(isinstance(answered(stage, peer), Response) for peer in (one, two))


def test_slices_are_longer_without_small_requests(stage: Stage, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """And short again with the first small one."""
    given: list[float] = []

    def noted(seconds: float) -> Spent:
        given.append(seconds)
        return Spent(seconds)

    monkeypatch.setattr(large_requests, "TimeBudget", noted)
    with joined(stage, "large") as large, joined(stage, "small") as small:
        begun(stage, large, "large", Request(1, stores(90)), results=1)
        assert {*given} == {limits.LARGE_SECONDS_ALONE}
        ask(stage, small, GetMetrics())
        given.clear()
        stage.turn()
        assert given == [limits.LARGE_SECONDS_PER_TURN]
        clock.forward(2 * limits.ALONE_SECONDS)
        stage.turn()
        assert given[-1] == limits.LARGE_SECONDS_ALONE
        assert len(placed(answered(stage, large))) == 90


def test_requests_of_one_connection_stay_in_order(stage: Stage) -> None:
    """A small request behind a batch of the same connection waits for it, and sees what it did."""
    with joined(stage, "a") as peer:
        peer.send(
            Request(1, stores()),
            Request(2, (GetFragment("p", f"f{LARGE - 1}"),)),
            Request(3, (GetMetrics(),) * LARGE),
            Request(4, (GetMetrics(),)),
        )
        responses = [answered(stage, peer) for _ in range(4)]
        assert [each.request_id for each in responses if isinstance(each, Response)] == [1, 2, 3, 4]
        assert isinstance(responses[1], Response)
        assert isinstance(responses[1].results[0], CommandResult)
        assert isinstance(responses[1].results[0].reply, FragmentFound)


def test_reply_that_fits_in_no_frame_is_an_unknown_outcome(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each result says so, of reads as of writes."""
    with joined(stage, "a") as peer:
        ask(stage, peer, store("large", metadata=LARGE_METADATA))
        monkeypatch.setattr(limits, "FRAME_BYTES_MAX", 20_000)
        for commands in ((), stores(1)):
            results = ask(stage, peer, *commands, *(GetFragment("p", "large"),) * LARGE)
            assert [each.kind for each in results if isinstance(each, Refusal)] == ["OutcomeUnknown"] * len(results)


def test_transaction_is_one_step(stage: Stage) -> None:
    """It waits with the batches, and is then executed at once, at one revision."""
    with joined(stage, "a") as peer:
        peer.send(TransactionRequest(1, stores()))
        assert len({*placed(answered(stage, peer))}) == 1
        peer.send_raw(framed(["TransactionRequest", 2, [["GetMetrics"]] * LARGE, 0]))
        refused = answered(stage, peer)
        assert isinstance(refused, Response)
        assert [each.kind for each in refused.results if isinstance(each, Refusal)] == ["InvalidArgument"]


def test_peer_with_a_large_request_is_not_evicted(stage: Stage, clock: Clock) -> None:
    """It waits for the manager, with half of its next frame sent: that is not its fault."""
    with joined(stage, "a") as peer:
        begun(stage, peer, "a", Request(1, stores()))
        peer.send_raw(frame(Request(2, (GetMetrics(),)))[:7])
        clock.forward(limits.STALL_SECONDS_MAX + limits.FRAME_SECONDS_MAX + 1)
        assert len(placed(answered(stage, peer))) == LARGE
        peer.send_raw(frame(Request(2, (GetMetrics(),)))[7:])
        assert isinstance(answered(stage, peer), Response)


def test_upload_waits_for_its_command(stage: Stage) -> None:
    """A batch that refers to an uploaded body in its last command finds it there, and nothing is left of it."""
    body = bytes(limits.INLINE_BODY_BYTES_MAX + 1)
    with joined(stage, "a") as peer:
        assert granted(stage, peer, 7, len(body))
        pour(stage, peer, body)
        peer.send(Request(1, (*stores(), store("uploaded", 7))))
        assert len(placed(answered(stage, peer))) == LARGE + 1
        assert read(stage, "uploaded") == body
        assert connection_of(stage, "a").uploads.held == {}


# Resent.


def resent(stage: Stage, message: Request) -> Response:
    """The response to a request that is sent again, on a new connection of its session."""
    with RawPeer(stage.address) as peer:
        peer.send(Hello(VERSION, "a"))
        assert isinstance(answered(stage, peer), Welcome)
        peer.send(message)
        response = answered(stage, peer)
        assert isinstance(response, Response)
        return response


def test_batch_is_continued_after_a_lost_connection(stage: Stage) -> None:
    """What was done is not done again: each command has one revision, and the results are complete."""
    message = Request(1, stores())
    with joined(stage, "a") as peer:
        done = [each.revision for each in begun(stage, peer, "a", message).results]
    stage.turn_until(lambda: stage.peers == 0)
    revision = stage.requests.revision
    stage.turn(5)
    assert stage.requests.revision == revision, "the rest waits until it is sent again"
    found = placed(resent(stage, message))
    assert found[: len(done)] == done
    assert found == [*range(found[0], found[0] + LARGE)]
    assert stage.requests.revision == found[-1]
    assert placed(resent(stage, message)) == found  # the whole reply is remembered now


def test_batch_moves_to_the_connection_that_sends_it_again(stage: Stage) -> None:
    """The first connection is still open, half-way through the batch: it is closed, and nothing happens twice."""
    message = Request(1, stores())
    with joined(stage, "a") as first:
        begun(stage, first, "a", message)
        found = placed(resent(stage, message))
        assert found == [*range(found[0], found[0] + LARGE)]
        assert answered(stage, first) is None


def test_resent_batch_has_its_commands(stage: Stage) -> None:
    """One with fewer commands than were executed is another one under the same number."""
    with joined(stage, "a") as peer:
        begun(stage, peer, "a", Request(1, stores(60)), results=LARGE + 1)
    with joined(stage, "a") as peer:
        peer.send(Request(1, stores(LARGE)))
        rejected = answered(stage, peer)
        assert isinstance(rejected, Rejected)
        assert rejected.refusal.kind == "ProtocolError"


def test_reads_are_executed_again(stage: Stage) -> None:
    """Nothing is remembered of a batch that only reads."""
    message = Request(1, (GetMetrics(),) * LARGE)
    with joined(stage, "a") as peer:
        begun(stage, peer, "a", message)
    stage.turn_until(lambda: stage.peers == 0)
    assert session_of(stage, "a").unfinished == {}
    assert len(resent(stage, message).results) == LARGE


def test_acknowledged_batch_is_forgotten(stage: Stage) -> None:
    """A client that does not want the rest says so with its next request, and gets OutcomeUnknown afterwards."""
    message = Request(1, stores())
    with joined(stage, "a") as peer:
        begun(stage, peer, "a", message)
    stage.turn_until(lambda: stage.peers == 0)
    session = session_of(stage, "a")
    assert session.remembered_bytes > 0
    with joined(stage, "a") as peer:
        peer.send(Request(2, (GetMetrics(),), answered=2))
        assert isinstance(answered(stage, peer), Response)
    assert (session.unfinished, session.remembered_bytes) == ({}, 0)
    (refusal,) = resent(stage, message).results
    assert isinstance(refusal, Refusal)
    assert refusal.kind == "OutcomeUnknown"


def test_unfinished_batches_are_bounded(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that begins batches and leaves them loses the oldest."""
    monkeypatch.setattr(limits, "REPLIES_REMEMBERED_MAX", 2)
    for number in range(1, 4):
        with joined(stage, "a") as peer:
            begun(stage, peer, "a", Request(number, stores(body=b"%d" % number)))
        stage.turn_until(lambda: stage.peers == 0)
    assert [*session_of(stage, "a").unfinished] == [2, 3]


def test_end_of_the_session_forgets_its_batches(stage: Stage) -> None:
    """On another connection, a Goodbye; the batch goes on while its connection is open."""
    with joined(stage, "a") as other, joined(stage, "a") as peer:
        begun(stage, peer, "a", Request(1, stores()))
        other.send(Goodbye())
        assert len(placed(answered(stage, peer))) == LARGE
    stage.turn_until(lambda: stage.sessions == 0)


def test_stop_completes_what_is_under_way(stage: Stage) -> None:
    """A manager that is asked to end answers the batch first."""
    with joined(stage, "a") as peer:
        begun(stage, peer, "a", Request(1, stores()))
        stage.loop.stop("test")
        assert not stage.loop._is_drained()
        stage.loop.run()
        assert len(placed(peer.receive())) == LARGE


# After a crash.


def stored_results(directory: Path) -> int:
    """The number of results of unfinished batches in the store."""
    found = load(directory / DATABASE)
    assert found is not None
    return sum(len(decode_results(part.results)) for part in found.reply_parts)


@pytest.mark.parametrize("slices", range(7))
@pytest.mark.usefixtures("short_slices")
def test_batch_is_continued_by_the_next_manager(tmp_path: Path, slices: int) -> None:
    """Killed behind any slice: a fragment is stored once, and every result comes, those from before the crash too."""
    message = Request(1, (*stores(), GetFragment("p", "f0"), store("f0", b"another body")))
    with staged_on(tmp_path) as stage, joined(stage, "a") as peer:
        peer.send(message)
        stage.turn_until(lambda: connection_of(stage, "a").deferred is not None)
        done = [*batch_of(stage, "a").results]
        for _ in range(slices):
            stage.turn()
            if (request := connection_of(stage, "a").deferred) is not None:
                assert isinstance(request, LargeRequest)
                done = [*request.results]
        assert len(done) - 1 <= stored_results(tmp_path) <= len(done)  # the read alone stores nothing
    with staged_on(tmp_path) as stage:
        response = resent(stage, message)
        assert [*response.results[: len(done)]] == done
        assert len(response.results) == LARGE + 2
        assert stage.requests.revision == LARGE + 1  # each store once
        assert [each.revision for each in response.results] == [*range(1, LARGE + 1), LARGE, LARGE + 1]
        assert read(stage, "f0") == b"another body"
        assert stored_results(tmp_path) == 0
        assert resent(stage, message) == response


@pytest.mark.usefixtures("short_slices")
def test_parts_end_with_their_session(tmp_path: Path, clock: Clock) -> None:
    """Nothing is left in the store of a batch whose client never comes back."""
    with staged_on(tmp_path) as stage:
        with joined(stage, "a") as peer:
            begun(stage, peer, "a", Request(1, stores()))
        stage.turn_until(lambda: stage.peers == 0)
        assert stored_results(tmp_path) > 0
        clock.forward(limits.SESSION_GRACE_SECONDS + 1)
        stage.turn_until(lambda: stage.sessions == 0)
        assert stored_results(tmp_path) == 0


@pytest.mark.usefixtures("short_slices")
def test_acknowledged_parts_are_deleted(tmp_path: Path, clock: Clock) -> None:
    """With the next tidying behind the acknowledgement."""
    with staged_on(tmp_path) as stage, joined(stage, "a") as keeper:
        with joined(stage, "a") as peer:
            begun(stage, peer, "a", Request(1, stores()))
        stage.turn_until(lambda: stage.peers == 1)
        keeper.send(Request(2, (GetMetrics(),), answered=2))
        assert isinstance(answered(stage, keeper), Response)
        assert stored_results(tmp_path) > 0
        clock.forward(limits.TIDY_SECONDS + 1)
        stage.turn(2)
        assert stored_results(tmp_path) == 0
