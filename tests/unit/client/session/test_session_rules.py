"""The rules of a session: what a welcome, an answer and a lost manager mean for it."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

import stepwell as sw
from stepwell import limits
from stepwell.client.session.session_rules import Observation, SessionConnection, SessionRules, Unreachable
from stepwell.protocol.messages import (
    VERSION,
    Events,
    Hello,
    ManagerMessage,
    Refusal,
    Rejected,
    Response,
    UploadGranted,
    ViewOpened,
    Welcome,
)
from tests.support.client.session_machine import DURABLE, QUIET, IdleConnection, session

GENERATION = DURABLE.generation


def refused(error: sw.StepwellError) -> Rejected:
    return Rejected(Refusal.of(error, 0))


def new_session() -> SessionRules:
    return SessionRules("/run/s", ("p",), "me")


def welcome(rules: SessionRules, message: ManagerMessage, connection: SessionConnection | None = None) -> Welcome:
    """Greet on a connection, and be answered."""
    greeted = connection or IdleConnection()
    rules.hello(greeted, ())
    return rules.welcomed(greeted, message)


def test_hello_names_the_session_and_what_is_mapped() -> None:
    """It also notes the revision with which the welcome is compared."""
    rules, connection = session(), IdleConnection()
    rules.answered(response(9))
    assert rules.hello(connection, (4, 5)) == Hello(VERSION, "me", ("p",), (4, 5))
    assert connection.seen_before == 9


def response(*revisions: int) -> Response:
    return Response(1, tuple(Refusal(revision, "NotFound", "no") for revision in revisions))


@pytest.mark.parametrize(
    "answer, seen",
    [
        (response(5, 8), 8),
        (response(), 0),
        (Events((), 6), 6),
        (ViewOpened(1, "epoch", 7, ()), 7),
        (UploadGranted(0, accepted=True), 0),
    ],
    ids=["response", "no results", "events", "view", "grant"],
)
def test_highest_revision_that_was_seen(answer: ManagerMessage, seen: int) -> None:
    """Answers and events raise it; an older answer that comes later does not lower it."""
    rules, connection = session(), IdleConnection()
    rules.answered(answer)
    rules.answered(response(0))
    rules.hello(connection, ())
    assert connection.seen_before == seen


def test_welcome_is_adopted() -> None:
    """The connection has its generation, and the reason for which an earlier manager ended is out of date."""
    rules, connection = session(), IdleConnection(generation=0)
    rules.manager_ended(Refusal.of(sw.StoreFailed("full"), 0))
    again = replace(DURABLE, revision=3)
    assert welcome(rules, again, connection) is again
    assert (rules.welcome, rules.ended_by, connection.generation) == (again, None, GENERATION)


@pytest.mark.parametrize(
    "is_first, message, kind, is_final",
    [
        (True, refused(sw.Busy("full")), sw.Busy, False),
        (True, refused(sw.OutOfScope("not yours")), sw.OutOfScope, True),
        (True, Events((), 0), sw.ProtocolError, True),
        (False, replace(DURABLE, epoch="another"), sw.RuntimeLost, True),
        (False, replace(DURABLE, revision=4), sw.HistoryLost, True),
    ],
    ids=["busy", "refused", "no welcome", "another epoch", "lost writes"],
)
def test_welcome_that_is_none(
    message: ManagerMessage, kind: type[sw.StepwellError], *, is_first: bool, is_final: bool
) -> None:
    """Nothing of it is adopted, and only a busy manager is asked again."""
    rules = new_session()
    if not is_first:
        welcome(rules, DURABLE)
        rules.answered(response(5))
    known = rules.welcome
    with pytest.raises(Unreachable) as caught:
        welcome(rules, message)
    assert type(caught.value.error) is kind
    assert (caught.value.is_final, rules.welcome) == (is_final, known)


def test_session_that_has_seen_lost_writes_is_over() -> None:
    """Also when the manager has caught up; each call gets an error of its own."""
    rules = session()
    rules.answered(response(5))
    errors: list[sw.StepwellError | OSError] = []
    for again in (DURABLE, replace(DURABLE, revision=9)):
        with pytest.raises(Unreachable) as caught:
            welcome(rules, again)
        errors.append(caught.value.error)
    with pytest.raises(Unreachable) as caught:
        rules.require_open()
    errors.append(caught.value.error)
    assert len({*map(id, errors)}) == 3
    for error in errors:
        assert isinstance(error, sw.HistoryLost)
        assert error.details == {"seen": 5, "found": 0, "epoch": "epoch"}


def test_revision_is_compared_with_what_was_seen_before_hello() -> None:
    """Another connection may see a later revision while the welcome is on its way."""
    rules, connection = session(), IdleConnection()
    rules.hello(connection, ())
    rules.answered(response(5))
    rules.welcomed(connection, replace(DURABLE, revision=1))
    rules.hello(connection, ())
    assert connection.seen_before == 5


@pytest.mark.parametrize("generation, left", [(GENERATION, {"plan": 3}), (GENERATION + 1, {})])
def test_leases_end_with_their_generation(generation: int, left: dict[str, int]) -> None:
    """A manager that has forgotten the session has given its leases away."""
    rules = session()
    leases = rules.leases
    leases["plan"] = 3
    welcome(rules, replace(DURABLE, generation=generation))
    assert leases == left
    assert rules.leases is leases


def test_first_welcome_takes_no_lease() -> None:
    """There is no earlier generation that could have ended."""
    rules = new_session()
    rules.leases["plan"] = 3
    welcome(rules, DURABLE)
    assert rules.leases == {"plan": 3}


def test_forked_child_begins_another_session() -> None:
    """Nothing of its parent's is left but the scope, the numbers that are used, and that it was closed."""
    rules = session()
    rules.leases["plan"] = 3
    rules.answered(response(5))
    rules.manager_ended(Refusal.of(sw.StoreFailed("full"), 0))
    rules.numbers.next_number()
    rules.close()
    rules.in_forked_child("child")
    assert (rules.session_id, rules.welcome, rules.ended_by, rules.leases) == ("child", None, None, {})
    assert (rules.projects, rules.numbers.next_number(), rules.is_over) == (("p",), 2, True)
    welcome(rules, replace(DURABLE, epoch="another"))


def test_forked_child_of_a_session_that_is_over() -> None:
    """It has seen nothing that could be lost."""
    rules = session()
    rules.answered(response(5))
    with pytest.raises(Unreachable):
        welcome(rules, DURABLE)
    rules.in_forked_child("child")
    rules.require_open()
    welcome(rules, DURABLE)


def test_closed_session_has_no_connection() -> None:
    """A program that has closed its client connects another one."""
    rules = session()
    rules.require_open()
    rules.close()
    with pytest.raises(Unreachable, match="this client is closed") as caught:
        rules.require_open()
    assert caught.value.is_final


@pytest.mark.parametrize(
    "error, is_closed, kind, text, is_final",
    [
        (sw.OutcomeUnknown("x"), False, sw.RuntimeLost, "'/run/s' went away while greeting", False),
        (sw.RuntimeLost("x"), False, sw.RuntimeLost, "'/run/s' went away while greeting", False),
        (sw.ProtocolError("x"), False, sw.ProtocolError, "x", True),
        (sw.OutcomeUnknown("x"), True, sw.RuntimeLost, "this client is closed", True),
    ],
)
def test_greeting_that_fails(
    error: sw.StepwellError, kind: type[sw.StepwellError], text: str, *, is_closed: bool, is_final: bool
) -> None:
    """A manager that goes away may come back. Other errors, and the end of the client, are final."""
    rules = new_session()
    if is_closed:
        rules.close()
    unreachable = rules.greeting_failed(error)
    assert (type(unreachable.error), unreachable.is_final) == (kind, is_final)
    assert text in str(unreachable)


def test_manager_says_why_it_ends() -> None:
    """The request that it does not answer has an unknown outcome."""
    rules = session()
    error = rules.manager_ended(Refusal.of(sw.StoreFailed("the disk is full"), 0))
    assert isinstance(rules.ended_by, sw.StoreFailed)
    assert "the manager ended before it answered: the disk is full" in error.message


CAUSE = sw.StoreFailed("the disk is full")


@pytest.mark.parametrize(
    "rules, seen, expected",
    [
        (new_session, QUIET, False),
        (new_session, QUIET._replace(is_restarting=True), True),
        (new_session, QUIET._replace(is_restarting=True, is_given_up=True), False),
        (session, QUIET, True),
        (session, QUIET._replace(is_restarting=True), True),
        (session, QUIET._replace(cause=CAUSE), False),
        (session, QUIET._replace(is_given_up=True), False),
        (lambda: session(is_durable=False), QUIET, False),
        (lambda: session(is_durable=False), QUIET._replace(is_restarting=True), False),
    ],
)
def test_restart_is_expected(rules: Callable[[], SessionRules], seen: Observation, *, expected: bool) -> None:
    """Of a manager whose state outlives it, while a program would restart it."""
    assert rules().expects_restart(seen) is expected


def test_subscription_is_restored_for_a_bounded_time() -> None:
    """Not after a statement, and not where no restart is expected."""
    rules, broken, statement = session(), sw.RuntimeLost("gone"), sw.RuntimeLost("closed")
    broken.__cause__ = OSError()
    last = QUIET._replace(now_s=10 + limits.RECONNECT_SECONDS_MAX - 1)
    assert rules.should_resubscribe(10, broken, last)
    assert not rules.should_resubscribe(10, broken, last._replace(now_s=last.now_s + 1))
    assert not rules.should_resubscribe(10, statement, last)
    assert not session(is_durable=False).should_resubscribe(10, broken, last)
