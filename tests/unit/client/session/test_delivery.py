"""Deliveries: each phase, each event and each decision, without a socket; then any events in any order."""

import itertools
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace

import stepwell as sw
from stepwell import limits
from stepwell.client.session.calls import NoEviction
from stepwell.client.session.delivery import (
    Delivery,
    DeliveryPhase,
    GiveUp,
    IllegalEvent,
    RequestFactory,
    Retry,
    is_granted,
    require_not_rejected,
)
from stepwell.client.session.session_rules import Observation, SessionRules, Unreachable
from stepwell.protocol.messages import (
    AskStatus,
    OfferUpload,
    Refusal,
    Rejected,
    Request,
    Response,
    TransactionRequest,
    UploadGranted,
)
from tests.support.client.session_machine import DURABLE, QUIET, IdleConnection, read, session, write
from tests.support.measurement import untraced
from tests.support.peers import store

GENERATION = DURABLE.generation
CAUSE = sw.StoreFailed("the disk is full: make room")
REJECTED = Rejected(Refusal.of(sw.Busy("full"), 0))
ANSWER = Response(1, (Refusal(12, "NotFound", "no"),))


def broken(kind: type[sw.RuntimeLost] | type[sw.OutcomeUnknown] = sw.RuntimeLost) -> sw.RuntimeLost | sw.OutcomeUnknown:
    """The error of a connection that broke."""
    error = kind("broken")
    error.__cause__ = ConnectionError()
    return error


def away() -> Unreachable:
    error = sw.RuntimeLost("no manager is there")
    error.__cause__ = ConnectionError()
    return Unreachable(error, is_final=False)


def in_phase(phase: DeliveryPhase, rules: SessionRules | None = None, build: RequestFactory = write) -> Delivery:
    """A delivery that has come so far."""
    delivery = Delivery(rules or session(), build)
    if phase in {DeliveryPhase.CONNECTED, DeliveryPhase.SENDING}:
        assert delivery.connected(IdleConnection()) is None
    if phase is DeliveryPhase.SENDING:
        delivery.message()
    if phase is DeliveryPhase.ENDED:
        delivery.closed()
    return delivery


EVENTS: dict[str, Callable[[Delivery], object]] = {
    "connected": lambda delivery: delivery.connected(IdleConnection()),
    "message": lambda delivery: delivery.message(),
    "sent": lambda delivery: delivery.sent(),
    "answered": lambda delivery: delivery.answered(ANSWER),
    "rejected": lambda delivery: delivery.answered(REJECTED),
    "interrupted": lambda delivery: delivery.interrupted(),
    "failed": lambda delivery: delivery.failed(broken(), QUIET),
    "short of descriptors": lambda delivery: delivery.failed(sw.OutcomeUnknown("x", shortage="descriptors"), QUIET),
    "unreachable": lambda delivery: delivery.unreachable(away(), QUIET),
    "unreachable for good": lambda delivery: delivery.unreachable(Unreachable(CAUSE, is_final=True), QUIET),
    "give_up": lambda delivery: delivery.give_up(CAUSE, QUIET),
    "closed": lambda delivery: delivery.closed(),
    "end": lambda delivery: delivery.end(),
}

W, C, S, E = DeliveryPhase.WAITING, DeliveryPhase.CONNECTED, DeliveryPhase.SENDING, DeliveryPhase.ENDED
TRANSITIONS: dict[str, dict[DeliveryPhase, DeliveryPhase]] = {
    "connected": {W: C},
    "message": {C: S},
    "sent": {S: S},
    "answered": {S: E},
    "rejected": {S: E},
    "interrupted": {C: W, S: W},
    "failed": {C: W, S: W},
    "short of descriptors": {C: W, S: E},
    "unreachable": {W: W},
    "unreachable for good": {W: E},
    "give_up": {W: E, C: E, S: E},
    "closed": {W: E, C: E, S: E},
    "end": {W: E, C: E, S: E, E: E},
}


@pytest.mark.parametrize("phase, event", [*itertools.product(DeliveryPhase, EVENTS)])
def test_transition(phase: DeliveryPhase, event: str) -> None:
    """Each event in each phase leads where the table says. One that cannot happen raises, and changes nothing."""
    delivery = in_phase(phase)
    before = {name: getattr(delivery, name, None) for name in Delivery.__slots__}
    expected = TRANSITIONS[event].get(phase)
    if expected is not None:
        EVENTS[event](delivery)
        assert delivery.phase is expected
        return
    with pytest.raises(IllegalEvent, match=phase.name):
        EVENTS[event](delivery)
    assert {name: getattr(delivery, name, None) for name in Delivery.__slots__} == before


def test_expired_write_ends() -> None:
    """It may have taken effect in the generation that is gone."""
    delivery = in_phase(DeliveryPhase.SENDING)
    delivery.failed(broken(sw.OutcomeUnknown), QUIET)
    expired = delivery.connected(IdleConnection(GENERATION + 1))
    assert expired is not None
    assert isinstance(expired.error, sw.SessionExpired)
    assert delivery.phase is DeliveryPhase.ENDED


def transaction(number: int, answered: int) -> TransactionRequest:
    return TransactionRequest(number, (store("a"),), answered)


def read_and_write(number: int, answered: int) -> Request:
    return Request(number, read(1, 1).commands + write(1, 1).commands, answered)


@pytest.mark.parametrize(
    "build, has_effect",
    [(write, True), (transaction, True), (read_and_write, True), (read, False)],
    ids=["write", "transaction", "both", "read"],
)
@pytest.mark.parametrize("is_sent", [True, False], ids=["sent", "not sent"])
@pytest.mark.parametrize("generation", [GENERATION, GENERATION + 1], ids=["same", "another"])
def test_only_a_write_that_was_sent_expires(
    build: RequestFactory, generation: int, *, has_effect: bool, is_sent: bool
) -> None:
    """Only in another generation, too: the same one remembers its answer."""
    delivery = in_phase(DeliveryPhase.SENDING, build=build)
    first = delivery.number
    delivery.failed(broken(sw.OutcomeUnknown if is_sent else sw.RuntimeLost), QUIET)
    expired = delivery.connected(IdleConnection(generation))
    assert (expired is not None) is (has_effect and is_sent and generation != GENERATION)
    if expired is None:
        message = delivery.message()
        assert isinstance(message, Request | TransactionRequest)
        assert message.request_id == delivery.number == first


def test_question_never_expires() -> None:
    """It changes nothing, so it may be asked of any generation."""
    delivery = Delivery(session(), message=AskStatus(1))
    for generation in (GENERATION, GENERATION + 1, GENERATION + 2):
        assert delivery.connected(IdleConnection(generation)) is None
        assert delivery.message() == AskStatus(1)
        delivery.failed(broken(sw.OutcomeUnknown), QUIET)
    assert delivery.number is None


def test_message_stays_the_same() -> None:
    """Sent again, a request is the same message, whatever was answered meanwhile."""
    rules = session()
    other, delivery = in_phase(DeliveryPhase.SENDING, rules), in_phase(DeliveryPhase.CONNECTED, rules)
    first = delivery.message()
    assert first == write(2, 1)
    other.end()
    delivery.failed(broken(), QUIET)
    delivery.connected(IdleConnection())
    assert delivery.message() is first


def test_number_is_assigned_late_and_removed_at_the_end() -> None:
    """Waiting for a connection holds nothing back; a call that is over does not either, however it ended."""
    rules = session()
    delivery = in_phase(DeliveryPhase.CONNECTED, rules)
    assert (delivery.number, len(rules.numbers)) == (None, 0)
    delivery.message()
    assert (delivery.number, len(rules.numbers)) == (1, 1)
    delivery.end()
    delivery.end()
    assert len(rules.numbers) == 0


@pytest.mark.parametrize("phase", [DeliveryPhase.CONNECTED, DeliveryPhase.SENDING])
@pytest.mark.parametrize("is_used", [True, False])
@pytest.mark.parametrize("kind", [sw.RuntimeLost, sw.OutcomeUnknown])
def test_first_failure_is_followed_by_an_attempt_at_once(
    phase: DeliveryPhase, kind: type[sw.RuntimeLost] | type[sw.OutcomeUnknown], *, is_used: bool
) -> None:
    """Only an error that says so, behind the message, means that the message was sent."""
    delivery = Delivery(session(is_durable=False), write)
    delivery.connected(IdleConnection(is_used=is_used))
    if phase is DeliveryPhase.SENDING:
        delivery.message()
    assert delivery.failed(broken(kind), QUIET) == Retry(0.0)
    is_sent = phase is DeliveryPhase.SENDING and kind is sw.OutcomeUnknown
    assert delivery.sent_in == (GENERATION if is_sent else None)


@pytest.mark.parametrize("is_used", [True, False])
def test_connections_that_died_while_they_were_idle(*, is_used: bool) -> None:
    """However many there are, no failure is counted. A new connection that breaks is one."""
    delivery = Delivery(session(is_durable=False), write)
    decisions = []
    for _ in range(3):
        if delivery.phase is DeliveryPhase.WAITING:
            delivery.connected(IdleConnection(is_used=is_used))
            decisions.append(delivery.failed(broken(), QUIET))
    assert [type(decision) for decision in decisions] == ([Retry] * 3 if is_used else [Retry, GiveUp])


def test_process_without_descriptors() -> None:
    """No further attempt changes that; and the answer may have been that of a write."""
    delivery, error = in_phase(DeliveryPhase.SENDING), sw.OutcomeUnknown("none left", shortage="descriptors")
    assert delivery.failed(error, QUIET) == GiveUp(error)
    assert delivery.sent_in == GENERATION


def test_pauses_grow_up_to_their_limit() -> None:
    """The first attempt comes at once, later ones less and less often; jitter makes them shorter."""
    for jitter in (1.0, 0.5):
        delivery = Delivery(session())
        decisions = [delivery.unreachable(away(), QUIET._replace(jitter=jitter)) for _ in range(100)]
        pauses = [decision.pause_s for decision in decisions if isinstance(decision, Retry)]
        assert len(pauses) == 100
        assert pauses[:2] == [0, limits.RECONNECT_PAUSE_SECONDS * jitter]
        assert pauses == sorted(pauses)
        assert pauses[-1] == limits.RECONNECT_PAUSE_SECONDS_MAX * jitter


def test_attempts_end() -> None:
    """The time counts from the first failure, not from the beginning of the call."""
    delivery = Delivery(session())
    last_s = 1000.0 + limits.RECONNECT_SECONDS_MAX
    for now_s in (1000.0, 1000.1, last_s - 0.1):
        assert isinstance(delivery.unreachable(away(), QUIET._replace(now_s=now_s)), Retry)
    assert isinstance(delivery.unreachable(away(), QUIET._replace(now_s=last_s)), GiveUp)


BUSY = Unreachable(sw.Busy("full"), is_final=False)


@pytest.mark.parametrize(
    "is_welcomed, unreachable, seen, is_tried_again",
    [
        (True, away(), QUIET, True),
        (True, away(), QUIET._replace(cause=CAUSE), False),
        (True, away(), QUIET._replace(is_given_up=True), False),
        (True, BUSY, QUIET, True),
        (True, Unreachable(sw.RuntimeLost("replaced"), is_final=True), QUIET, False),
        (True, Unreachable(OSError(24, "too many open files"), is_final=True), QUIET, False),
        (False, away(), QUIET, False),
        (False, away(), QUIET._replace(is_restarting=True), True),
        (False, BUSY, QUIET._replace(is_restarting=True), False),
    ],
)
def test_manager_that_cannot_be_reached(
    unreachable: Unreachable, seen: Observation, *, is_welcomed: bool, is_tried_again: bool
) -> None:
    """It is tried again only where a restart is expected; a first connection that a busy manager refuses is not."""
    rules = session() if is_welcomed else SessionRules("/run/s", None, "me")
    decision = Delivery(rules, write).unreachable(unreachable, seen)
    assert isinstance(decision, Retry if is_tried_again else GiveUp)


def test_manager_that_does_not_come_back_is_tried_once_more() -> None:
    """It may have closed this connection only, and be there."""
    delivery = in_phase(DeliveryPhase.SENDING, session(is_durable=False))
    assert delivery.failed(broken(sw.OutcomeUnknown), QUIET) == Retry(0.0)
    assert isinstance(delivery.unreachable(away(), QUIET), GiveUp)


STATEMENT = sw.RuntimeLost("the manager was replaced")
LOST = sw.HistoryLost("the manager has lost writes")


@pytest.mark.parametrize(
    "error, is_sent, ended_by, kind, texts, details",
    [
        (STATEMENT, False, CAUSE, sw.RuntimeLost, ("was replaced",), {}),
        (STATEMENT, True, CAUSE, sw.OutcomeUnknown, ("may have taken effect",), {}),
        (broken(), False, None, sw.RuntimeLost, ("broken",), {}),
        (broken(), True, None, sw.OutcomeUnknown, ("may have taken effect",), {}),
        (broken(), False, CAUSE, sw.RuntimeLost, ("the manager ended: ", CAUSE.message), {"cause": "StoreFailed"}),
        (broken(), True, CAUSE, sw.OutcomeUnknown, ("may have taken", CAUSE.message), {"cause": "StoreFailed"}),
        (sw.Busy("full"), False, CAUSE, sw.Busy, ("full",), {}),
        (sw.Busy("full"), True, CAUSE, sw.OutcomeUnknown, ("may have taken effect",), {}),
        (LOST, False, CAUSE, sw.HistoryLost, ("lost writes",), {}),
        (LOST, True, CAUSE, sw.OutcomeUnknown, ("may have taken effect", "lost writes"), {}),
    ],
)
@pytest.mark.parametrize("is_told_by_manager", [True, False])
def test_final_error(
    error: sw.StepwellError,
    ended_by: sw.StepwellError | None,
    kind: type[sw.StepwellError],
    texts: tuple[str, ...],
    details: dict[str, str],
    *,
    is_sent: bool,
    is_told_by_manager: bool,
) -> None:
    """It is never called failed if it may have happened; the reason for the manager's end is named, and the cause."""
    rules = session()
    delivery = in_phase(DeliveryPhase.SENDING, rules)
    if is_sent:
        delivery.sent()
    if ended_by is not None and is_told_by_manager:
        rules.manager_ended(Refusal.of(ended_by, 0))
    seen = QUIET if is_told_by_manager else QUIET._replace(cause=ended_by)
    final = delivery.give_up(error, seen).error
    assert isinstance(final, sw.StepwellError)
    assert (type(final), final.details) == (kind, details)
    assert all(text in final.message for text in texts)
    if details:
        assert isinstance(final.__cause__, sw.StoreFailed)
    elif is_sent:
        assert final.__cause__ is error
    else:
        assert final is error


@pytest.mark.parametrize("is_sent, kind", [(True, sw.OutcomeUnknown), (False, sw.RuntimeLost)])
def test_client_that_is_closed(kind: type[sw.StepwellError], *, is_sent: bool) -> None:
    """A call that waits ends with it, as what it is."""
    delivery = in_phase(DeliveryPhase.SENDING)
    delivery.failed(broken(sw.OutcomeUnknown if is_sent else sw.RuntimeLost), QUIET)
    with pytest.raises(kind) as caught:
        delivery.closed().raise_error()
    assert "is closed" in str(caught.value.__cause__ if is_sent else caught.value)


def test_answer_ends_a_delivery() -> None:
    """The session notes its revision; a rejection is an error of the caller instead."""
    rules, connection = session(), IdleConnection()
    assert in_phase(DeliveryPhase.SENDING, rules).answered(ANSWER) is None
    rejected = in_phase(DeliveryPhase.SENDING, rules).answered(REJECTED)
    assert rejected is not None
    assert isinstance(rejected.error, sw.Busy)
    rules.hello(connection, ())
    assert connection.seen_before == 12


def test_stream_that_breaks_counts_no_failure() -> None:
    """What was sent in it stays sent, and is tried again at once."""
    delivery = in_phase(DeliveryPhase.SENDING, session(is_durable=False))
    delivery.sent()
    delivery.interrupted()
    assert delivery.sent_in == GENERATION
    delivery.connected(IdleConnection())
    delivery.message()
    assert delivery.failed(broken(), QUIET) == Retry(0.0)


def test_bodies_are_offered_in_every_attempt() -> None:
    """Uploads belong to their connection; `NoEviction` is part of the offer."""
    delivery = Delivery(session(), write, [b"one", NoEviction(b"three")])
    expected = [(OfferUpload(0, 3, no_eviction=False), b"one"), (OfferUpload(1, 5, no_eviction=True), b"three")]
    assert [*delivery.offers()] == expected
    assert [*delivery.offers()] == expected


def test_grants() -> None:
    """A body is sent only if the manager accepts it."""
    assert is_granted(UploadGranted(0, accepted=True))
    assert not is_granted(UploadGranted(0, accepted=False))
    assert require_not_rejected(ANSWER) is ANSWER
    for answer, kind in ((REJECTED, sw.Busy), (ANSWER, sw.ProtocolError)):
        with pytest.raises(kind):
            is_granted(answer)


class Life:
    """A delivery of the machine below, and its history."""

    def __init__(self, rules: SessionRules, *, is_write: bool) -> None:
        self.is_write = is_write
        self.announced: list[int] = []
        self.delivery = Delivery(rules, self.build)
        self.connection: IdleConnection | None = None
        self.may_be_done_in: set[int] = set()  # the generations in which the manager may have executed it
        self.outcomes = 0

    def build(self, number: int, answered: int) -> Request:
        self.announced.append(answered)
        return (write if self.is_write else read)(number, answered)

    def decided(self, decision: Retry | GiveUp | None) -> None:
        self.outcomes += isinstance(decision, GiveUp)


UNDER_WAY = (DeliveryPhase.WAITING, DeliveryPhase.CONNECTED, DeliveryPhase.SENDING)
PICKS = st.integers(0, 11)
Rule = TypeVar("Rule", bound=Callable[..., None])


def needs(*phases: DeliveryPhase) -> Callable[[Rule], Rule]:
    """A rule that needs a delivery in one of these phases."""
    return precondition(lambda machine: isinstance(machine, AnyEvents) and bool(machine.lives_in(*phases)))


class AnyEvents(RuleBasedStateMachine):
    """Many deliveries of one session, whose connections break, and whose manager forgets it now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.session = session()
        self.generation = GENERATION
        self.now_s = 0.0
        self.lives: list[Life] = []
        self.numbers: list[int] = []
        self.pending: set[int] = set()

    def lives_in(self, *phases: DeliveryPhase) -> list[Life]:
        return [life for life in self.lives if life.delivery.phase in phases]

    def observe(self) -> Observation:
        return QUIET._replace(now_s=self.now_s)

    @precondition(lambda machine: isinstance(machine, AnyEvents) and len(machine.lives_in(*UNDER_WAY)) < 4)
    @rule(is_write=st.sampled_from([True, True, False]))
    def call(self, *, is_write: bool) -> None:
        self.lives.append(Life(self.session, is_write=is_write))

    @rule(seconds=st.sampled_from([0.1, 1.0, limits.RECONNECT_SECONDS_MAX / 2]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def forget_the_session(self) -> None:
        self.generation += 1

    @needs(DeliveryPhase.WAITING)
    @rule(pick=PICKS, is_used=st.booleans(), is_sent=st.sampled_from([True, True, False]))
    def connect(self, pick: int, *, is_used: bool, is_sent: bool) -> None:
        life = picked(pick, self.lives_in(DeliveryPhase.WAITING))
        self.connect_life(life, is_used=is_used)
        if is_sent and life.delivery.phase is DeliveryPhase.CONNECTED:
            self.send_life(life)

    def connect_life(self, life: Life, *, is_used: bool) -> None:
        connection = IdleConnection(is_used=is_used)
        self.session.hello(connection, ())
        self.session.welcomed(connection, replace(DURABLE, revision=12, generation=self.generation))
        expired = life.delivery.connected(connection)
        life.decided(expired)
        life.connection = connection
        is_gone = bool(life.may_be_done_in - {self.generation})
        assert (expired is not None) is (life.is_write and is_gone)

    @needs(DeliveryPhase.CONNECTED)
    @rule(pick=PICKS)
    def send(self, pick: int) -> None:
        self.send_life(picked(pick, self.lives_in(DeliveryPhase.CONNECTED)))

    def send_life(self, life: Life) -> None:
        is_first = life.delivery.number is None
        life.delivery.message()
        assert life.connection is not None
        assert not life.is_write or life.may_be_done_in <= {life.connection.generation}, "it could be done twice"
        number = life.delivery.number
        assert number is not None
        if is_first:
            assert number > max(self.numbers, default=0)
            self.numbers.append(number)
            self.pending.add(number)
            assert life.announced == [min(self.pending)]
        assert number in self.numbers

    @needs(DeliveryPhase.CONNECTED, DeliveryPhase.SENDING)
    @rule(pick=PICKS, is_sent=st.booleans())
    def break_the_connection(self, pick: int, *, is_sent: bool) -> None:
        life = picked(pick, self.lives_in(DeliveryPhase.CONNECTED, DeliveryPhase.SENDING))
        assert life.connection is not None
        if is_sent and life.delivery.phase is DeliveryPhase.SENDING:
            life.may_be_done_in.add(life.connection.generation)
        error = broken(sw.OutcomeUnknown if is_sent else sw.RuntimeLost)
        life.decided(life.delivery.failed(error, self.observe()))

    @needs(DeliveryPhase.SENDING)
    @rule(pick=PICKS, is_sent=st.booleans())
    def break_the_stream(self, pick: int, *, is_sent: bool) -> None:
        life = picked(pick, self.lives_in(DeliveryPhase.SENDING))
        assert life.connection is not None
        if is_sent:
            life.may_be_done_in.add(life.connection.generation)
            life.delivery.sent()
        life.delivery.interrupted()

    @needs(DeliveryPhase.WAITING)
    @rule(pick=PICKS, is_final=st.sampled_from([False, False, True]))
    def fail_to_connect(self, pick: int, *, is_final: bool) -> None:
        life = picked(pick, self.lives_in(DeliveryPhase.WAITING))
        life.decided(life.delivery.unreachable(Unreachable(away().error, is_final=is_final), self.observe()))

    @needs(DeliveryPhase.SENDING)
    @rule(pick=PICKS, is_rejected=st.sampled_from([False, False, True]))
    def answer(self, pick: int, *, is_rejected: bool) -> None:
        life = picked(pick, self.lives_in(DeliveryPhase.SENDING))
        life.delivery.answered(REJECTED if is_rejected else ANSWER)
        life.outcomes += 1

    @needs(*DeliveryPhase)
    @rule(pick=PICKS, is_closed=st.booleans())
    def leave(self, pick: int, *, is_closed: bool) -> None:
        """The call returns: with its outcome, because the client is closed, or cancelled without an outcome."""
        life = picked(pick, self.lives)
        if is_closed and life.delivery.phase is DeliveryPhase.WAITING:
            life.decided(life.delivery.closed())
        self.leave_life(life)

    def leave_life(self, life: Life) -> None:
        life.delivery.end()
        self.pending.discard(life.delivery.number or 0)

    @invariant()
    def answered_never_passes_a_pending_number(self) -> None:
        announced = max((number for life in self.lives for number in life.announced), default=0)
        assert announced <= min(self.pending, default=announced)
        assert len(self.session.numbers) == len(self.pending)

    @invariant()
    def each_has_one_outcome(self) -> None:
        for life in self.lives:
            assert life.outcomes <= 1
            assert life.outcomes == 0 or life.delivery.phase is DeliveryPhase.ENDED

    def teardown(self) -> None:
        """All calls that are still under way end if connections can be made and answers come."""
        for life in self.lives:
            if life.delivery.phase is DeliveryPhase.WAITING:
                self.connect_life(life, is_used=False)
            if life.delivery.phase is DeliveryPhase.CONNECTED:
                self.send_life(life)
            if life.delivery.phase is DeliveryPhase.SENDING:
                life.delivery.answered(ANSWER)
            assert life.delivery.phase is DeliveryPhase.ENDED
            self.leave_life(life)
        assert len(self.session.numbers) == 0


def picked(pick: int, lives: list[Life]) -> Life:
    return lives[pick % len(lives)]


@untraced()
def test_any_events() -> None:
    """A write that expires takes at least six steps of the right kind, and an example is cheap: there are many."""
    examples, steps = max(200, settings().max_examples), max(50, settings().stateful_step_count)
    run_state_machine_as_test(AnyEvents, settings=settings(max_examples=examples, stateful_step_count=steps))
