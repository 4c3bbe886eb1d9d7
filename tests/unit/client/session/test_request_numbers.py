"""Numbers of requests: unique, in order, and removed whatever ends a call."""

import threading

from stepwell.client.session.request_numbers import RequestNumbers
from tests.support.client.sessions import in_threads


class Ticket:
    """A request, as far as its number is concerned."""

    number: int | None = None


def test_answered_is_the_smallest_number_on_its_way() -> None:
    """It stays behind the slowest, and then overtakes all that are over."""
    numbers = RequestNumbers()
    slow, quick, last = Ticket(), Ticket(), Ticket()
    assert numbers.assign(slow) == (1, 1)
    assert numbers.assign(quick) == (2, 1)
    numbers.end(quick)
    assert numbers.assign(Ticket()) == (3, 1)
    numbers.end(slow)
    assert numbers.assign(last) == (4, 3)


def test_ending_is_harmless() -> None:
    """Of what was never numbered, and twice."""
    numbers, ticket = RequestNumbers(), Ticket()
    numbers.end(ticket)
    numbers.assign(ticket)
    numbers.end(ticket)
    numbers.end(ticket)
    assert len(numbers) == 0


def test_question_is_not_waited_for() -> None:
    """A view can take long, and nothing of it is remembered."""
    numbers = RequestNumbers()
    assert numbers.next_number() == 1
    assert numbers.assign(Ticket()) == (2, 2)


def test_forked_child_goes_on_behind_its_parent() -> None:
    """It waits for none of the parent's requests, and gives none of their numbers to a request of its own."""
    numbers, inherited = RequestNumbers(), Ticket()
    numbers.assign(inherited)
    numbers.in_forked_child()
    assert len(numbers) == 0
    assert numbers.assign(Ticket()) == (2, 2)
    numbers.end(inherited)
    assert len(numbers) == 1


def test_threads_never_say_answered_too_early() -> None:
    """No request is sent whose number another thread has said to be answered already."""
    numbers = RequestNumbers()
    lock = threading.Lock()
    seen: set[int] = set()

    def deed(_: int) -> None:
        for _ in range(500):
            ticket = Ticket()
            number, answered = numbers.assign(ticket)
            assert number == ticket.number
            assert answered <= number
            with lock:
                assert number not in seen
                seen.add(number)
            numbers.end(ticket)

    in_threads(8, deed)
    assert len(numbers) == 0
    assert seen == {*range(1, 4_001)}
