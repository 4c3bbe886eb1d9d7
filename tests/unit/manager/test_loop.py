"""The loop, turned by hand: order, fairness, backpressure, and peers that come, stall, die and say goodbye."""

import contextlib
import errno
import os
import socket
from pathlib import Path

import pytest

from stepwell import limits
from stepwell.domain import machine
from stepwell.domain.commands import Command
from stepwell.domain.plans.commands import CreateAction, GetPlan, StartPhase, UseAction
from stepwell.domain.plans.model import Phase, Plan, PlanState, ProjectLink
from stepwell.domain.replies import FragmentPlaced, PlanFound, Reply
from stepwell.domain.state import State
from stepwell.domain.tiers.commands import DeleteFragment, GetFragment, GetMetrics, ListFragments, StoreFragment
from stepwell.domain.verdict import DECIDERS, Decider, Origin, Verdict
from stepwell.errors import StoreFailed
from stepwell.manager.state_owner import StateBroken
from stepwell.memory.reader.index_reader import IndexReader
from stepwell.memory.reader.mappings import Mappings
from stepwell.protocol.framing import HEADER, Framer
from stepwell.protocol.messages import (
    VERSION,
    AskStatus,
    ClientMessage,
    CommandResult,
    Goodbye,
    Hello,
    Refusal,
    Rejected,
    Request,
    Response,
    Status,
    Welcome,
)
from stepwell.storage.store import CommitBatch
from stepwell.transport.address import Credentials
from stepwell.transport.kernel import Kernel
from tests.support.manager.peers import ORIGIN, Clock, answered, ask, gone, joined
from tests.support.managers import ENCODING, EPOCH, Stage, staged
from tests.support.measurement import untraced
from tests.support.memory.fragment_index import FOR_EVER_NS
from tests.support.peers import LARGE_METADATA, RawPeer, frame, framed, request_ids, store
from tests.support.processes import descriptors, fork
from tests.support.storage.state import staged_on


def started_plan(stage: Stage, peer: RawPeer) -> Plan:
    """A plan whose lease this peer's session holds."""
    (_, _, result) = ask(
        stage,
        peer,
        CreateAction("act", "", "", "planner", "coder"),
        UseAction("plan", "act", (ProjectLink("p"),)),
        StartPhase("plan", Phase.STRATEGIZE),
    )
    assert isinstance(result, CommandResult)
    assert isinstance(result.reply, PlanFound)
    return result.reply.plan


def plan_of(stage: Stage, peer: RawPeer) -> Plan:
    (result,) = ask(stage, peer, GetPlan("plan"))
    assert isinstance(result, CommandResult)
    assert isinstance(result.reply, PlanFound)
    return result.reply.plan


# Requests.


def test_requests_of_one_connection_are_answered_in_order(stage: Stage) -> None:
    """Pipelined requests come back in the order in which they were sent, each at the next revision."""
    with joined(stage, "a") as peer:
        peer.send(*(Request(number, (store(str(number)),)) for number in range(200)))
        responses = [answered(stage, peer) for _ in range(200)]
    assert [each.request_id for each in responses if isinstance(each, Response)] == [*range(200)]
    revisions = [each.results[0].revision for each in responses if isinstance(each, Response)]
    assert revisions == [*range(1, 201)]


def test_one_peer_does_a_bounded_number_of_commands_a_turn(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer with a thousand requests waiting lets another in after its share of the turn."""
    monkeypatch.setattr(limits, "TURN_SECONDS_MAX", 60.0)  # on a busy machine, its time may be over before its share
    with joined(stage, "greedy") as greedy, joined(stage, "modest") as modest:
        greedy.send(*(Request(number, (GetMetrics(),)) for number in range(1_000)))
        before = stage.requests.served
        stage.turn()
        assert stage.requests.served - before == limits.COMMANDS_PER_TURN
        modest.send(AskStatus(7))
        stage.turn()
        modest.socket.settimeout(0)
        assert isinstance(modest.receive(), Status)
        assert stage.requests.served - before == 2 * limits.COMMANDS_PER_TURN


def test_batches_count_by_their_commands(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many pipelined batches are not one turn: the one that reaches the bound is the last of its turn."""
    monkeypatch.setattr(limits, "TURN_SECONDS_MAX", 60.0)  # on a busy machine, its time may be over before its share
    per_turn = limits.COMMANDS_PER_TURN // limits.SMALL_REQUEST_COMMANDS
    with joined(stage, "greedy") as greedy:
        batch = (GetMetrics(),) * limits.SMALL_REQUEST_COMMANDS
        greedy.send(*(Request(number, batch) for number in range(3 * per_turn)))
        before = stage.requests.served
        for turn in range(1, 4):
            stage.turn()
            assert stage.requests.served - before == turn * per_turn


@untraced()
def test_waiting_frames_are_not_added_to(stage: Stage) -> None:
    """While a peer has frames waiting nothing more is read of it: what it has in memory is bounded."""
    with joined(stage, "greedy") as greedy:
        greedy.socket.settimeout(0)
        tiny = frame(AskStatus(1)) * 1_000
        worst = 0
        for _ in range(300):
            with contextlib.suppress(BlockingIOError):
                greedy.socket.send(tiny)
            stage.turn()
            with contextlib.suppress(BlockingIOError):
                greedy.socket.recv(1 << 20)
            (connection,) = stage.loop._connections.values()
            worst = max(worst, connection.peer._framer.pending)
        assert worst <= limits.RECEIVE_BYTES_PER_TURN + len(tiny)


def test_peer_that_does_not_read_is_held_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past its outbox its requests wait, unread; when it reads, every one is answered, in order."""
    monkeypatch.setattr(limits, "OUTBOX_BYTES_MAX", 100_000)
    with joined(stage, "deaf") as deaf, joined(stage, "other") as other:
        stage.owner.execute(store("large", metadata=LARGE_METADATA), ORIGIN)
        deaf.send(*(Request(number, (GetFragment("p", "large"),)) for number in range(60)))
        (connection,) = (
            each for each in stage.loop._connections.values() if each.session and each.session.session_id == "deaf"
        )
        stage.turn_until(lambda: connection.peer.is_full)
        stage.turn(3)
        assert connection.peer.is_full
        assert len(connection.peer.outbox) < limits.OUTBOX_BYTES_MAX + 20_000
        assert isinstance(ask(stage, other, GetMetrics())[0], CommandResult)
        responses = [answered(stage, deaf) for _ in range(60)]
        assert [each.request_id for each in responses if isinstance(each, Response)] == [*range(60)]


def test_outbox_that_empties_at_once_does_not_forget_what_waits(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small outbox that the socket takes whole: the frames that waited behind it are served without new bytes."""
    monkeypatch.setattr(limits, "OUTBOX_BYTES_MAX", 10)
    with joined(stage, "a") as peer:
        peer.send(*(Request(number, (GetMetrics(),)) for number in range(20)))
        responses = [answered(stage, peer) for _ in range(20)]
        assert [each.request_id for each in responses if isinstance(each, Response)] == [*range(20)]


def test_full_reply_refuses_the_reads_behind_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """One large row, or a page of small ones; the writes of the batch happen all the same."""
    monkeypatch.setattr(limits, "REPLY_BYTES_MAX", 10_000)
    with joined(stage, "a") as peer:
        ask(stage, peer, store("large", metadata=LARGE_METADATA), *(store(str(number)) for number in range(100)))
        for read in (GetFragment("p", "large"), ListFragments("p")):
            first, *_, last, written = ask(stage, peer, *[read] * 100, store("written"))
            assert isinstance(first, CommandResult)
            assert isinstance(last, Refusal)
            assert last.kind == "Busy"
            assert isinstance(written, CommandResult)


def test_bodies_take_nothing_of_a_reply(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What travels is where they are: reads of large ones behind one another are all answered."""
    body = bytes(limits.INLINE_BODY_BYTES_MAX)
    monkeypatch.setattr(limits, "REPLY_BYTES_MAX", 3 * len(body))
    with joined(stage, "a") as peer:
        ask(stage, peer, store("large", body))
        results = ask(stage, peer, *[GetFragment("p", "large")] * 50)
        assert [type(each) for each in results] == [CommandResult] * 50


def test_results_that_fit_in_no_frame_are_unknown_not_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands took effect: the peer is told that it does not know, and keeps its connection."""
    with joined(stage, "a") as peer:
        ask(stage, peer, store("one", metadata=LARGE_METADATA), store("two", metadata=LARGE_METADATA))
        monkeypatch.setattr(limits, "FRAME_BYTES_MAX", 20_000)
        results = ask(stage, peer, store("written"), GetFragment("p", "one"), GetFragment("p", "two"))
        assert [each.kind for each in results if isinstance(each, Refusal)] == ["OutcomeUnknown"] * 3
        (found,) = ask(stage, peer, GetFragment("p", "written"))
        assert isinstance(found, CommandResult)


def test_salvaged_requests_are_answered(stage: Stage) -> None:
    """A bad command in a request is refused, its neighbours happen; in a transaction none does."""
    with joined(stage, "a") as peer:
        bad = DeleteFragment("p", "")
        good, refused = ask(stage, peer, store("a"), bad)
        assert isinstance(good, CommandResult)
        assert isinstance(refused, Refusal)
        assert refused.kind == "InvalidArgument"
        before = stage.requests.revision
        for commands, problem in (([store("b"), bad], "fragment_id"), ([store("b"), GetMetrics()], "no reads")):
            peer.send_raw(framed(["TransactionRequest", next(request_ids), commands]))
            response = answered(stage, peer)
            assert isinstance(response, Response)
            (refused,) = response.results
            assert isinstance(refused, Refusal)
            assert problem in refused.message
        assert stage.requests.revision == before


def test_status_tells(stage: Stage) -> None:
    """Peers, sessions, requests, revision, and what the session may see of the tiers."""
    with joined(stage, "a", ("p",)) as peer, joined(stage, "b", ("q",)) as other:
        ask(stage, peer, store("a"))
        other.send(AskStatus(9))
        status = answered(stage, other)
        assert isinstance(status, Status)
        assert (status.request_id, status.peers, status.sessions, status.revision) == (9, 2, 2, 1)
        assert (status.epoch, status.pid, status.evicted, status.encoding) == (EPOCH, os.getpid(), 0, ENCODING)
        arena = stage.owner.bodies.arena
        assert (status.memory.arena_bytes, status.memory.arena_limit) == (arena.bytes, limits.ARENA_BYTES)
        assert (status.memory.live_bytes, status.memory.segments) == (arena.live, 1)
        assert status.metrics.hot.entries == 0


def test_defect_costs_its_request_only(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that meets a defect changed nothing, says so, and the peer keeps its connection."""

    def defective(_state: State, _command: Command[Reply], _origin: Origin) -> Verdict:
        raise ZeroDivisionError

    deciders: dict[type, Decider[Command[Reply]]] = {StoreFragment: defective}
    monkeypatch.setattr(machine, "DECIDERS", {**DECIDERS, **deciders})
    with joined(stage, "a") as peer:
        (refused,) = ask(stage, peer, store("a"))
        (answer,) = ask(stage, peer, GetMetrics())
        assert isinstance(refused, Refusal)
        assert (refused.kind, refused.revision) == ("ManagerFault", 0)
        assert "ZeroDivisionError" in refused.message
        assert isinstance(answer, CommandResult)


# Who may come in.


@pytest.mark.parametrize(
    "first, problem",
    [
        (Request(1, (GetMetrics(),)), "first message"),
        (Hello(VERSION + 1, "a"), "install the same stepwell"),
        (Goodbye(), "first message"),
    ],
    ids=["a request", "a wrong version", "a goodbye"],
)
def test_connection_begins_with_a_hello(stage: Stage, first: ClientMessage, problem: str) -> None:
    """Anything else is told so, and the connection ends."""
    with RawPeer(stage.address) as peer:
        peer.send(first)
        rejected = answered(stage, peer)
        assert isinstance(rejected, Rejected)
        assert problem in rejected.refusal.message
        assert stage.peers == 0


def test_hello_is_said_once(stage: Stage) -> None:
    """Nobody becomes somebody else; who it was may come back, as after any lost connection."""
    with joined(stage, "a") as peer:
        peer.send(Hello(VERSION, "b"))
        rejected = answered(stage, peer)
        assert isinstance(rejected, Rejected)
        assert "already" in rejected.refusal.message
        assert stage.peers == 0
        assert [each.session_id for each in stage.loop._sessions] == ["a"]


def test_other_users_are_turned_away(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says whose process it is, and a stranger gets no word."""
    monkeypatch.setattr(Kernel, "credentials", lambda *_: Credentials(1, os.geteuid() + 1, 0))
    with RawPeer(stage.address) as stranger:
        stranger.send(Hello(VERSION, "stranger"))
        stage.turn()
        stage.turn()
        assert gone(stranger)
        assert stage.peers == 0


def test_peers_past_the_limit_are_told_busy(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than the limit is told why; when one leaves there is room again."""
    monkeypatch.setattr(stage.loop._acceptor, "peers_max", 1)
    with joined(stage, "a") as first:
        with RawPeer(stage.address) as second:
            rejected = answered(stage, second)
            assert isinstance(rejected, Rejected)
            assert rejected.refusal.kind == "Busy"
        assert stage.peers == 1
        first.close()
        stage.turn_until(lambda: stage.peers == 0)
        joined(stage, "c").close()


def test_sessions_past_the_limit_are_told_busy(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions are bounded too, but a known one may have one connection more."""
    monkeypatch.setattr(limits, "SESSIONS_MAX", 1)
    with joined(stage, "a"), RawPeer(stage.address) as second:
        second.send(Hello(VERSION, "b"))
        rejected = answered(stage, second)
        assert isinstance(rejected, Rejected)
        assert rejected.refusal.kind == "Busy"
        joined(stage, "a").close()


class FullListener:
    """A listener whose process has no descriptor left, for some calls."""

    def __init__(self, listener: socket.socket, failures: int, number: int = errno.EMFILE) -> None:
        self._number = number
        self._listener = listener
        self.failures = failures
        self.fileno = listener.fileno

    def accept(self) -> object:
        if self.failures:
            self.failures -= 1
            raise OSError(self._number, os.strerror(self._number))
        return self._listener.accept()


def test_no_descriptor_left_is_told_busy(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spare descriptor is given up for the answer, and is there again for the next peer."""
    monkeypatch.setattr(stage.loop._acceptor, "_listener", FullListener(stage.listener, 1))
    before = descriptors(os.getpid())
    with RawPeer(stage.address) as peer:
        rejected = answered(stage, peer)
        assert isinstance(rejected, Rejected)
        assert rejected.refusal.kind == "Busy"
        assert "no descriptor left" in rejected.refusal.message
        assert gone(peer)
    assert stage.peers == 0
    assert stage.loop._acceptor._spare is not None
    assert descriptors(os.getpid()) == before
    joined(stage, "a").close()


def test_not_even_the_spare_descriptor_is_no_end(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed accept is tried again after a while, and meanwhile does not keep the loop busy."""
    full = FullListener(stage.listener, 1_000)
    monkeypatch.setattr(stage.loop._acceptor, "_listener", full)
    with RawPeer(stage.address) as peer:
        peer.send(Hello(VERSION, "a"))
        stage.turn(3)
        assert stage.peers == 0
        full.failures = 0
        stage.loop.housekeeping.due_at_s = 0
        assert isinstance(answered(stage, peer), Welcome)


def test_peer_that_is_gone_before_it_is_accepted(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs no spare descriptor, and the next one is accepted."""
    monkeypatch.setattr(stage.loop._acceptor, "_listener", FullListener(stage.listener, 1, errno.ECONNABORTED))
    with RawPeer(stage.address) as peer:
        peer.send(Hello(VERSION, "a"))
        stage.turn(2)
        stage.loop.housekeeping.due_at_s = 0
        assert isinstance(answered(stage, peer), Welcome)


def test_connection_that_cannot_be_polled_is_closed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may bound what is polled; the descriptor comes back."""

    class Epoll:
        """An epoll that has no room for another descriptor."""

        modify = stage.loop._epoll.modify

        def register(self, _fd: int, _events: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    before = descriptors(os.getpid())
    monkeypatch.setattr(stage.loop._acceptor, "_epoll", Epoll())
    with RawPeer(stage.address) as peer:
        stage.turn(2)
        assert gone(peer)
    assert stage.peers == 0
    assert descriptors(os.getpid()) == before


def test_bad_connections_do_not_fill_the_log(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Some are logged at once; the next one that is, later, says how many were left out."""
    now_s = 0.0
    monkeypatch.setattr(stage.loop._peer_log, "_now_s", lambda: now_s)
    for number in range(limits.LOG_EVENTS_BURST + 11):
        if number == limits.LOG_EVENTS_BURST + 10:
            now_s = limits.LOG_EVENT_SECONDS
        with RawPeer(stage.address) as peer:
            peer.send_raw(b"GET / HTTP/1.0")
            assert isinstance(answered(stage, peer), Rejected)
    lines = [line for line in capfd.readouterr().err.splitlines() if "peer.rejected" in line]
    assert len(lines) == limits.LOG_EVENTS_BURST + 1
    assert "suppressed=10" in lines[-1]


# Who goes, and how.


def test_who_never_says_hello_is_evicted(stage: Stage, clock: Clock) -> None:
    """A connection has a bounded time to say who it is."""
    with RawPeer(stage.address) as shy:
        stage.turn()
        clock.forward(limits.HELLO_SECONDS_MAX - 5)
        stage.turn(2)
        assert not gone(shy)
        clock.forward(6)
        stage.turn(2)
        assert gone(shy)
        assert stage.loop._evicted == 1


@pytest.mark.parametrize("debt", ["half a frame", "unread replies"])
def test_who_stalls_is_evicted(stage: Stage, clock: Clock, debt: str) -> None:
    """Half a frame, or replies that it does not read: cut off after a while; others, idle ones too, are not."""
    with joined(stage, "stalled") as stalled, joined(stage, "idle") as idle:
        if debt == "half a frame":
            stalled.send_raw(frame(AskStatus(1))[:-1])
        else:
            stage.owner.execute(store("large", metadata=LARGE_METADATA), ORIGIN)
            stalled.send(Request(2, (GetFragment("p", "large"),) * 100))
        stage.turn(5)
        clock.forward(limits.STALL_SECONDS_MAX - 5)
        stage.turn(2)
        assert stage.peers == 2
        clock.forward(6)
        stage.turn(2)
        assert stage.peers == 1
        assert isinstance(ask(stage, idle, GetMetrics())[0], CommandResult)


def test_slow_but_moving_peer_is_not_evicted(stage: Stage, clock: Clock) -> None:
    """A frame may take its time, within its bound."""
    whole = frame(AskStatus(1))
    with joined(stage, "slow") as slow:
        for byte in whole:
            clock.forward(limits.FRAME_SECONDS_MAX / len(whole) - 0.1)
            slow.send_raw(bytes([byte]))
            stage.turn()
        assert isinstance(answered(stage, slow), Status)


def test_peer_that_trickles_is_evicted(stage: Stage, clock: Clock) -> None:
    """A byte now and then keeps nobody's place for ever: a frame has to be whole in time."""
    with joined(stage, "trickling") as trickling:
        for byte in frame(AskStatus(1))[:-1]:
            clock.forward(limits.STALL_SECONDS_MAX - 5)
            trickling.send_raw(bytes([byte]))
            stage.turn()
            if not stage.peers:
                break
        assert stage.peers == 0


def test_large_frame_needs_a_hello_first(stage: Stage) -> None:
    """Whoever has not said who it is gets no more memory than a greeting takes."""
    with RawPeer(stage.address) as stranger:
        stranger.send_raw(HEADER.pack(limits.GREETING_BYTES_MAX + 1))
        rejected = answered(stage, stranger)
        assert isinstance(rejected, Rejected)
        assert str(limits.GREETING_BYTES_MAX) in rejected.refusal.message


def test_defect_on_the_way_to_the_state_costs_its_peer_only(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody thought of ends one connection, and is said."""

    def broken(*_: object, **__: object) -> None:
        raise KeyError("defect")

    with joined(stage, "unlucky") as unlucky, joined(stage, "other") as other:
        monkeypatch.setattr(stage.loop._reply_cache, "report", broken)
        unlucky.send(AskStatus(1))
        rejected = answered(stage, unlucky)
        assert isinstance(rejected, Rejected)
        assert rejected.refusal.kind == "ManagerFault"
        assert isinstance(ask(stage, other, GetMetrics())[0], CommandResult)


def test_frame_without_memory_costs_its_peer_only(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sender is told which limit it is, and may connect again; the others are served."""

    def no_memory(_framer: Framer, _data: memoryview) -> None:
        raise MemoryError

    with joined(stage, "unlucky") as unlucky, joined(stage, "other") as other:
        with monkeypatch.context() as patch:
            patch.setattr(Framer, "feed", no_memory)
            unlucky.send(AskStatus(1))
            stage.turn_until(lambda: stage.peers == 1)
        rejected = unlucky.expect(Rejected)
        assert rejected.refusal.kind == "ResourceExhausted"
        assert "memory" in rejected.refusal.message
        assert isinstance(ask(stage, other, GetMetrics())[0], CommandResult)


@pytest.mark.parametrize("kind, revision", [("ManagerFault", 0), ("OutcomeUnknown", 1)])
def test_defect_behind_the_state_is_an_unknown_outcome(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, kind: str, revision: int
) -> None:
    """What took effect is not called failed, though its answer cannot be given; what did not is."""

    def broken(*_: object, **__: object) -> None:
        raise KeyError("defect")

    with joined(stage, "unlucky") as unlucky, joined(stage, "other") as other:
        with monkeypatch.context() as patch:
            if revision:
                patch.setattr(stage.loop._sharing, "send_segments_for", broken)
            else:
                patch.setattr(stage.requests, "respond", broken)
            unlucky.send(Request(1, (store("a"),)))
            rejected = answered(stage, unlucky)
        assert isinstance(rejected, Rejected)
        assert rejected.refusal.kind == kind
        assert stage.requests.revision == revision
        assert isinstance(ask(stage, other, GetMetrics())[0], CommandResult)


def test_defect_while_the_state_changes_ends_the_manager(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that may be half changed is not served."""

    def broken(*_: object) -> None:
        raise KeyError("defect")

    with joined(stage, "unlucky") as unlucky:
        monkeypatch.setattr(State, "make", broken)
        unlucky.send(Request(1, (StoreFragment("p", "f", b"x", 1),)))
        with pytest.raises(StateBroken, match="defect"):
            stage.turn(10)


def test_commit_that_fails_is_shown_to_no_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader in shared memory goes on with what was committed, although the state of the manager is ahead of it."""

    def fail(_: CommitBatch) -> None:
        raise StoreFailed("the disk is full")

    with staged_on(tmp_path) as stage, joined(stage, "alice") as alice:
        stage.owner.index.is_disabled = False
        ask(stage, alice, store("f"), GetFragment("p", "f"))
        committed = stage.requests.revision
        mappings = Mappings()
        reader = IndexReader(mappings)
        slots, cells = stage.owner.index.segments
        for segment in (slots, cells):
            mappings.map_segment(segment.number, segment.size, os.dup(segment.descriptor))
        reader.open(slots.number, cells.number, stage.owner.index.key)
        monkeypatch.setattr(stage.store, "commit", fail)
        alice.send(Request(next(request_ids), (StoreFragment("p", "f", b"never committed", 1),)))
        with pytest.raises(StoreFailed):
            stage.turn(10)
        found = reader.find(("p", "f"), FOR_EVER_NS)
        assert found is not None
        assert found.row.revision == committed < stage.requests.revision
        reader.close()
        mappings.close()


def test_goodbye_ends_the_session_at_once(stage: Stage) -> None:
    """Its leases go back without a grace."""
    with joined(stage, "owner") as owner, joined(stage, "other") as other:
        started_plan(stage, owner)
        owner.send(Goodbye())
        stage.turn_until(lambda: stage.sessions == 1)
        assert plan_of(stage, other).state is PlanState.QUEUED
        assert stage.peers == 1


def test_goodbye_on_one_of_several_connections(stage: Stage) -> None:
    """The leases are given up; the other connection of the session may still ask."""
    with joined(stage, "owner") as first, joined(stage, "owner") as second:
        assert stage.sessions == 1
        started_plan(stage, first)
        first.send(Goodbye())
        stage.turn_until(lambda: stage.peers == 1)
        assert plan_of(stage, second).state is PlanState.QUEUED
        assert stage.sessions == 1
        second.close()
        stage.turn_until(lambda: stage.sessions == 0)


def test_lease_that_is_taken_after_goodbye_ends_with_its_connection(stage: Stage) -> None:
    """The session is over, and its other connection has taken a lease since: nobody could come back for it."""
    with joined(stage, "owner") as first, joined(stage, "owner") as second, joined(stage, "other") as other:
        first.send(Goodbye())
        stage.turn_until(lambda: stage.peers == 2)
        started_plan(stage, second)
        assert plan_of(stage, other).state is PlanState.PROCESSING
        second.close()
        stage.turn_until(lambda: stage.sessions == 1)
        assert plan_of(stage, other).state is PlanState.QUEUED


def test_lost_connection_has_a_grace(stage: Stage, clock: Clock) -> None:
    """A session with leases outlives its connections by the grace, and coming back ends the countdown."""
    with joined(stage, "other") as other:
        owner = joined(stage, "owner")
        started_plan(stage, owner)
        owner.close()
        stage.turn_until(lambda: stage.peers == 1)
        clock.forward(limits.SESSION_GRACE_SECONDS - 5)
        stage.turn(2)
        with joined(stage, "owner"):
            clock.forward(limits.SESSION_GRACE_SECONDS + 1)
            stage.turn(2)
            assert plan_of(stage, other).state is PlanState.PROCESSING
        stage.turn_until(lambda: stage.peers == 1)
        clock.forward(limits.SESSION_GRACE_SECONDS + 1)
        stage.turn(2)
        found = plan_of(stage, other)
        assert (found.state, found.attempt, len(found.errors)) == (PlanState.QUEUED, 2, 1)
        assert stage.sessions == 1


def test_session_without_leases_has_the_same_grace(stage: Stage, clock: Clock) -> None:
    """What was answered to it is remembered as long: what it sends again when it is back does not happen again."""
    asked = Request(1, (store("a"),))
    first = joined(stage, "a")
    first.send(asked)
    response = answered(stage, first)
    first.close()
    stage.turn_until(lambda: stage.peers == 0)
    clock.forward(limits.SESSION_GRACE_SECONDS - 5)
    stage.turn(2)
    assert stage.sessions == 1
    with joined(stage, "a") as second:
        second.send(asked)
        assert answered(stage, second) == response
        assert stage.requests.revision == 1
    stage.turn_until(lambda: stage.peers == 0)
    clock.forward(limits.SESSION_GRACE_SECONDS - 5)
    stage.turn(2)
    assert stage.sessions == 1
    clock.forward(6)
    stage.turn(2)
    assert stage.sessions == 0


def test_session_keeps_its_scope(stage: Stage) -> None:
    """A second connection of a session cannot widen what the first was opened for."""
    with joined(stage, "a", ("p",)), RawPeer(stage.address) as second:
        second.send(Hello(VERSION, "a", ("p", "q")))
        rejected = answered(stage, second)
        assert isinstance(rejected, Rejected)
        assert rejected.refusal.kind == "Conflict"


def test_dead_process_ends_its_session(stage: Stage) -> None:
    """The pidfd tells, although its connection is still open here."""
    reader, writer = os.pipe()

    def wait_to_be_told() -> None:
        os.read(reader, 1)

    pid = fork(wait_to_be_told)
    with joined(stage, "other") as other, pytest.MonkeyPatch.context() as patch:
        who = Credentials(pid, os.geteuid(), os.getegid())
        patch.setattr(Kernel, "credentials", lambda *_: who)
        first, second = joined(stage, "owner"), joined(stage, "owner")
        started_plan(stage, first)
        os.write(writer, b"x")
        os.waitpid(pid, 0)
        stage.turn_until(lambda: stage.sessions == 1)
        assert plan_of(stage, other).state is PlanState.QUEUED
        for peer in (first, second):
            assert gone(peer)
            peer.close()
    os.close(reader)
    os.close(writer)


def test_process_that_cannot_be_seen_has_a_session_all_the_same(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Without a pidfd the end of its connections is what tells, and the grace behind it."""
    monkeypatch.setattr(Kernel, "credentials", lambda *_: Credentials(2**30, os.geteuid(), 0))
    with joined(stage, "a") as peer:
        assert isinstance(ask(stage, peer, store("a"))[0], CommandResult)
    stage.turn_until(lambda: stage.peers == 0)
    assert stage.sessions == 1
    clock.forward(limits.SESSION_GRACE_SECONDS + 1)
    stage.turn(2)
    assert stage.sessions == 0


def test_expired_lease_is_taken_back(stage: Stage) -> None:
    """Housekeeping does it, whether or not anybody asks."""
    with joined(stage, "owner") as owner:
        ask(
            stage,
            owner,
            CreateAction("act", "", "", "planner", "coder"),
            UseAction("plan", "act", (ProjectLink("p"),)),
            StartPhase("plan", Phase.STRATEGIZE, limits.LEASE_MS_MIN),
        )
        stage.turn_until(lambda: plan_of(stage, owner).state is PlanState.QUEUED)


# The end.


def test_stop_answers_what_has_arrived(stage: Stage) -> None:
    """Requests that are in the socket when the end is announced are served, and their replies sent."""
    with joined(stage, "a") as peer, joined(stage, "half") as half:
        peer.send(*(Request(number, (store(str(number)),)) for number in range(300)))
        half.send_raw(frame(AskStatus(1))[:-1])
        stage.loop.stop("test")
        stage.loop.stop("twice is as good as once")
        stage.loop.run()
        responses = [peer.expect(Response) for _ in range(300)]
        assert [each.request_id for each in responses] == [*range(300)]
        placed = responses[-1].results[0]
        assert isinstance(placed, CommandResult)
        assert isinstance(placed.reply, FragmentPlaced)


def test_stop_accepts_nobody_and_nothing_more(stage: Stage) -> None:
    """What comes after the announcement is not served."""
    with joined(stage, "a") as peer:
        stage.loop.stop("test")
        peer.send(Request(1, (store("late"),)))
        with RawPeer(stage.address) as late:
            late.send(Hello(VERSION, "late"))
            stage.loop.run()
        assert stage.requests.revision == 0


def test_stop_does_not_wait_for_ever(stage: Stage, clock: Clock) -> None:
    """A peer that does not read its replies holds up the end for a bounded time."""
    with joined(stage, "deaf") as deaf:
        stage.owner.execute(store("large", metadata=LARGE_METADATA), ORIGIN)
        deaf.send(Request(2, (GetFragment("p", "large"),) * 100))
        stage.turn(3)
        stage.loop.stop("test")
        stage.turn(3)
        assert not stage.loop._is_drained()
        clock.forward(limits.DRAIN_SECONDS_MAX)
        assert stage.loop._is_drained()


def test_signal_descriptor_stops_the_loop() -> None:
    """A readable descriptor is the reason to end; in the same turn as a connection it comes first."""
    reader, writer = socket.socketpair()
    with reader, writer, staged({reader.fileno(): "told to"}) as stage, RawPeer(stage.address):
        writer.send(b"x")
        stage.loop.run()
        assert stage.loop._drain_until_s is not None


def test_close_lets_go_of_everything() -> None:
    """Whatever was open, in whatever state; the leak check looks for it."""
    with staged() as stage:
        peers = [joined(stage, "a"), joined(stage, "b"), RawPeer(stage.address)]
        stage.turn()
    for peer in peers:
        peer.close()
