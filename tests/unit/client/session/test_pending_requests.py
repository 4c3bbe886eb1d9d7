"""Numbers of requests: unique, in order, and given up whatever ends a call."""

import threading

from stepwell import limits
from stepwell.client.session.environment import SYSTEM
from stepwell.client.session.pending_requests import PendingRequest, PendingRequests
from stepwell.errors import OutcomeUnknown, RuntimeLost, StoreFailed
from stepwell.protocol.messages import Request, TransactionRequest
from tests.support.client.sessions import in_threads
from tests.support.peers import store


def request(number: int, answered: int) -> Request:
    return Request(number, (store("a"),), answered)


def sent(pending_requests: PendingRequests, pending: PendingRequest) -> tuple[int, int]:
    """The number of a request, and what it says is answered."""
    message = pending_requests.message(pending)
    assert isinstance(message, Request | TransactionRequest)
    return message.request_id, message.answered


def test_answered_is_the_smallest_number_on_its_way() -> None:
    """It stays behind the slowest, and then overtakes all that are over."""
    pending_requests = PendingRequests()
    slow, quick, last = PendingRequest(request), PendingRequest(request), PendingRequest(request)
    assert sent(pending_requests, slow) == (1, 1)
    assert sent(pending_requests, quick) == (2, 1)
    pending_requests.end(quick)
    assert sent(pending_requests, PendingRequest(request)) == (3, 1)
    pending_requests.end(slow)
    assert sent(pending_requests, last) == (4, 3)


def test_number_stays_the_same() -> None:
    """Sent again, a request is the same message."""
    pending_requests = PendingRequests()
    pending = PendingRequest(request)
    first = pending_requests.message(pending)
    sent(pending_requests, PendingRequest(request))
    assert pending_requests.message(pending) is first


def test_ending_is_harmless() -> None:
    """Of what was never numbered, and twice."""
    pending_requests = PendingRequests()
    pending = PendingRequest(request)
    pending_requests.end(pending)
    sent(pending_requests, pending)
    pending_requests.end(pending)
    pending_requests.end(pending)
    assert len(pending_requests) == 0


def test_question_is_not_waited_for() -> None:
    """A view can take long, and nothing of it is remembered."""
    pending_requests = PendingRequests()
    assert pending_requests.next_number() == 1
    assert sent(pending_requests, PendingRequest(request)) == (2, 2)


def test_threads_never_say_answered_too_early() -> None:
    """No request is sent whose number somebody has said to be answered already."""
    pending_requests = PendingRequests()
    lock = threading.Lock()
    seen: set[int] = set()

    def deed(_: int) -> None:
        for _ in range(500):
            pending = PendingRequest(request)
            number, answered = sent(pending_requests, pending)
            assert answered <= number
            with lock:
                assert number not in seen
                seen.add(number)
            pending_requests.end(pending)

    in_threads(8, deed)
    assert len(pending_requests) == 0
    assert seen == {*range(1, 4_001)}


def test_pauses_grow_up_to_their_limit() -> None:
    """The first attempt comes at once, later ones less and less often, and all of them end."""
    pending = PendingRequest(request)
    pauses = [pending.pause_s(SYSTEM, expects_restart=True) for _ in range(100)]
    assert pauses[0] == 0
    known = [pause for pause in pauses[1:] if pause is not None]
    assert 0 < known[0] <= limits.RECONNECT_PAUSE_SECONDS
    assert min(known[20:]) >= limits.RECONNECT_PAUSE_SECONDS_MAX / 2
    assert max(known) <= limits.RECONNECT_PAUSE_SECONDS_MAX


def test_manager_that_does_not_come_back_is_tried_once_more() -> None:
    """It may have cut us off, and be there."""
    pending = PendingRequest(request)
    assert pending.pause_s(SYSTEM, expects_restart=False) == 0
    assert pending.pause_s(SYSTEM, expects_restart=False) is None


def test_outcome_is_unknown_only_where_something_was_sent() -> None:
    """Where nothing was, the reason itself is the outcome."""
    pending, lost = PendingRequest(request), RuntimeLost("gone")
    assert pending.final_error(lost) is lost
    pending.sent_in = 1
    unknown = pending.final_error(lost)
    assert isinstance(unknown, OutcomeUnknown)
    assert unknown.__cause__ is lost


def test_reason_for_the_end_of_the_manager_is_named() -> None:
    """It is in the message, in the details and the cause, whether something was sent or not."""
    pending, ended_by = PendingRequest(request), StoreFailed("the disk is full: make room")
    for sent_in, kind in ((None, RuntimeLost), (1, OutcomeUnknown)):
        pending.sent_in = sent_in
        error = pending.final_error(RuntimeLost("gone"), ended_by)
        assert type(error) is kind
        assert "the disk is full: make room" in error.message
        assert error.details == {"cause": "StoreFailed"}
        assert error.__cause__ is ended_by
