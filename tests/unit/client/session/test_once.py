"""Once: a request whose connection is cut is sent again with its number, takes effect once, and gets its answer."""

import itertools
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.client.session.environment import SYSTEM
from stepwell.client.session.session_rules import SessionRules
from stepwell.protocol.messages import (
    AskStatus,
    ClientMessage,
    Hello,
    ManagerMessage,
    OfferUpload,
    Refusal,
    Rejected,
    Request,
    TransactionRequest,
    UploadGranted,
)
from stepwell.transport.address import listen
from stepwell.transport.connection import Connection
from tests.support.client.fake_manager import WELCOME, fake_manager
from tests.support.client.proxy import Cut, Forwarded, Once, before_answer, before_request, never, proxied
from tests.support.client.sessions import executing, fragment, in_threads
from tests.support.managers import Stage, served
from tests.support.peers import kernel_socket
from tests.support.processes import CHILD_SECONDS
from tests.support.seeds import seeded
from tests.support.wait import eventually

LARGE = b"x" * (limits.INLINE_BODY_BYTES_MAX + 1)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with served() as running:
        yield running


@pytest.fixture
def _durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients take the manager for one that comes back."""
    monkeypatch.setattr(SessionRules, "expects_restart", lambda *_: True)


def transact(client: sw.Client) -> int:
    with client.transaction() as transaction:
        transaction.tiers.store(fragment("x"))
        last = transaction.tiers.store(fragment("y"))
    return last.result().revision


def batch(client: sw.Client) -> int:
    with client.batch() as sent:
        last = sent.tiers.store(fragment("x"))
        sent.tiers.metrics()
    return last.result().revision


WRITES: dict[str, Callable[[sw.Client], int]] = {
    "a store": lambda client: client.tiers.store(fragment("x")).revision,
    "an upload": lambda client: client.tiers.store(fragment("x", LARGE)).revision,
    "store_many": lambda client: client.tiers.store_many([fragment("x")])[0].revision,
    "a transaction": transact,
    "a batch": batch,
}


# One call.


@pytest.mark.parametrize("where", [before_answer, before_request], ids=["answer lost", "request lost"])
@pytest.mark.parametrize("name", WRITES)
def test_write_that_is_cut_happens_once(stage: Stage, name: str, where: Cut) -> None:
    """The connection breaks before or after the manager has heard of it: one revision more, and its answer."""
    cut = Once(where)
    with proxied(stage.address, cut) as proxy, sw.connect(proxy.address, projects=["p"]) as client:
        assert WRITES[name](client) == 1
        assert cut.happened
        assert client.status().revision == 1


def test_refusal_that_is_lost_comes_again(stage: Stage) -> None:
    """What was refused is refused again, though it would be possible now: the outcome is what it was."""
    with sw.connect(stage.address, projects=["p"]) as other:

        def delete_meanwhile(forwarded: Forwarded) -> bool:
            if not before_answer(forwarded):
                return False
            other.tiers.delete("x")
            return True

        other.tiers.store(fragment("x"))
        with (
            proxied(stage.address, Once(delete_meanwhile)) as proxy,
            sw.connect(proxy.address, projects=["p"]) as client,
        ):
            with pytest.raises(sw.Conflict):
                client.tiers.store(fragment("x"), expected_revision=0)
        with pytest.raises(sw.NotFound):
            other.tiers.get("x")


@pytest.mark.parametrize("forwarded", range(6))
def test_upload_that_is_cut_anywhere_happens_once(stage: Stage, forwarded: int) -> None:
    """Offer, grant, half of the body, the other half, request, response: whichever is lost, all are sent again."""
    cut = Once(lambda each: each.number == forwarded)
    with proxied(stage.address, cut) as proxy, sw.connect(proxy.address, projects=["p"]) as client:
        assert client.tiers.store(fragment("x", LARGE)).revision == 1
        assert cut.happened
        assert client.tiers.get("x").body == LARGE
        assert client.status().revision == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.tiers.metrics(),
        lambda client: client.status(),
        lambda client: client.view(),
        lambda client: client.tiers.get("x"),
        lambda client: client.tiers.get_many(["x"])["x"],
    ],
    ids=["metrics", "status", "view", "get", "get_many"],
)
def test_question_that_is_cut_is_asked_again(stage: Stage, ask: Callable[[sw.Client], object]) -> None:
    """Reading has no effect that could happen twice."""
    with sw.connect(stage.address, projects=["p"]) as other:
        other.tiers.store(fragment("x"))
        for where in (lambda each: each.upwards, lambda each: not each.upwards):
            cut = Once(where)
            with proxied(stage.address, cut) as proxy, sw.connect(proxy.address, projects=["p"]) as client:
                assert ask(client)
                assert cut.happened


def test_manager_that_always_cuts_is_not_tried_for_ever(stage: Stage) -> None:
    """One that does not come back is tried once more; then the outcome is unknown."""
    with proxied(stage.address, before_answer) as proxy, sw.connect(proxy.address, projects=["p"]) as client:
        with pytest.raises(sw.OutcomeUnknown, match="may have taken effect"):
            client.tiers.store(fragment("x"))
        assert proxy.cuts == 2
        assert len(client._channel.rules.numbers) == 0
        proxy._cut = never
        assert client.status().revision == 1


@pytest.mark.usefixtures("_durable")
def test_manager_that_cuts_many_times_is_tried_as_often(stage: Stage) -> None:
    """One that comes back is waited for, whatever it does meanwhile."""
    count = 6
    with proxied(stage.address, lambda each: before_answer(each) and proxy.cuts < count) as proxy:
        with sw.connect(proxy.address, projects=["p"]) as client:
            assert client.tiers.store(fragment("x")).revision == 1
            assert proxy.cuts == count
            assert client.status().revision == 1


# Streams.

CHUNKS = 4


def many(client: sw.Client, count: int, body: bytes = b"body") -> list[int]:
    return [placed.revision for placed in client.tiers.store_many(fragment(str(each), body) for each in range(count))]


@pytest.mark.parametrize("forwarded", range(2 * CHUNKS))
def test_stream_that_is_cut_anywhere_goes_on(stage: Stage, forwarded: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At whichever message: every outcome is there once, in order, and each store happened once."""
    monkeypatch.setattr(limits, "STREAM_COMMANDS", 3)
    cut = Once(lambda each: each.number == forwarded)
    with proxied(stage.address, cut) as proxy, sw.connect(proxy.address, projects=["p"]) as client:
        assert many(client, 3 * CHUNKS) == [*range(1, 3 * CHUNKS + 1)]
        assert cut.happened
        assert client.status().revision == 3 * CHUNKS
        assert len(client._channel.rules.numbers) == 0


@pytest.mark.parametrize("forwarded", range(18))
def test_stream_of_uploads_that_is_cut_anywhere_goes_on(stage: Stage, forwarded: int) -> None:
    """The bodies of what was under way are uploaded again."""
    cut = Once(lambda each: each.number == forwarded)
    fragments = [fragment("0", LARGE), fragment("1"), fragment("2", LARGE + b"2"), fragment("3", LARGE + b"3")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "STREAM_COMMANDS", 1)
        with proxied(stage.address, cut) as proxy, sw.connect(proxy.address, projects=["p"]) as client:
            assert [placed.revision for placed in client.tiers.store_many(fragments)] == [1, 2, 3, 4]
            assert cut.happened
            found = client.tiers.get_many("0123"[number] for number in range(4))
            assert [found[each.fragment_id].body for each in fragments] == [each.body for each in fragments]
            assert client.status().revision == 4


@pytest.mark.parametrize("forwarded", range(2 * CHUNKS))
def test_reading_many_that_is_cut_anywhere_goes_on(
    stage: Stage, forwarded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fragment is there, with its body."""
    with sw.connect(stage.address, projects=["p"]) as other:
        many(other, 3 * CHUNKS)
    monkeypatch.setattr(limits, "STREAM_COMMANDS", 3)
    cut = Once(lambda each: each.number == forwarded)
    with proxied(stage.address, cut) as proxy, sw.connect(proxy.address, projects=["p"]) as client:
        found = client.tiers.get_many(map(str, range(3 * CHUNKS)))
        assert cut.happened
        assert {name: bytes(each.body) for name, each in found.items()} == {
            str(each): b"body" for each in range(3 * CHUNKS)
        }


@pytest.mark.usefixtures("_durable")
def test_stream_that_is_cut_again_and_again_goes_on(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fifth message is lost."""
    monkeypatch.setattr(limits, "STREAM_COMMANDS", 3)
    with proxied(stage.address, lambda each: each.number % 5 == 4) as proxy:
        with sw.connect(proxy.address, projects=["p"]) as client:
            assert many(client, 90) == [*range(1, 91)]
        assert proxy.cuts > 10


def test_broken_off_stream_gives_up_its_numbers(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody's generator raises in the middle comes out, and nothing stays on its way."""
    monkeypatch.setattr(limits, "STREAM_COMMANDS", 1)

    def fragments() -> Iterator[sw.Fragment]:
        yield fragment("0")
        yield fragment("1")
        raise KeyError

    with sw.connect(stage.address, projects=["p"]) as client:
        with pytest.raises(KeyError):
            client.tiers.store_many(fragments())
        assert len(client._channel.rules.numbers) == 0
        assert not client._channel.connections._open


# Threads.


@pytest.mark.usefixtures("_durable")
def test_threads_that_are_cut_at_random_happen_once(stage: Stage) -> None:
    """One message in ten is lost, in either direction: as many revisions as calls, each answered to one of them."""
    chance = seeded(secrets.randbits(32))
    revisions: list[int] = []
    with proxied(stage.address, lambda _: chance.random() < 0.1) as proxy:
        client = sw.connect(proxy.address, projects=["p"])

        def deed(number: int) -> None:
            for count in range(25):
                placed = client.tiers.store(fragment(f"{number} {count}", LARGE if count % 10 == 9 else b"body"))
                revisions.append(placed.revision)

        in_threads(8, deed)
        assert sorted(revisions) == [*range(1, 201)]
        assert len(client._channel.rules.numbers) == 0
        assert proxy.cuts > 10
        client.close()


def test_manager_forgets_what_was_answered(stage: Stage) -> None:
    """Of a client that calls one by one, it remembers the last answer only."""
    with sw.connect(stage.address, projects=["p"]) as client:
        for number in range(20):
            client.tiers.store(fragment(str(number)))
        (session,) = stage.loop._sessions
        assert session.answered == 20
        assert [*session.replies] == [20]


def test_interrupted_call_is_given_up(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle: the connection is closed, and the manager need not remember the answer."""
    sent: list[Request | TransactionRequest] = []
    send, receive = Connection.send, Connection.receive
    interrupts = [True]

    def note(connection: Connection, message: ClientMessage) -> None:
        if isinstance(message, Request | TransactionRequest):
            sent.append(message)
        send(connection, message)

    def interrupt(connection: Connection) -> ManagerMessage:
        if sent and interrupts:
            interrupts.clear()
            raise KeyboardInterrupt
        return receive(connection)

    with sw.connect(stage.address, projects=["p"]) as client:
        monkeypatch.setattr(Connection, "send", note)
        monkeypatch.setattr(Connection, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.tiers.store(fragment("a"))
        assert not client._channel.connections._open
        assert len(client._channel.rules.numbers) == 0
        client.tiers.store(fragment("b"))
        assert [(each.request_id, each.answered) for each in sent] == [(1, 1), (2, 2)]


# A manager that has forgotten the session.


@pytest.fixture
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SESSION_GRACE_SECONDS", 0.0)


def until_forgotten(stage: Stage, where: Cut) -> Once:
    """Cut, and let nobody back in before the manager has forgotten the session."""

    def cut(forwarded: Forwarded) -> bool:
        if not where(forwarded):
            return False
        for connection in [*stage.loop._connections.values()]:
            kernel_socket(connection.peer).shutdown(2)
        eventually(lambda: stage.sessions == 0)
        return True

    return Once(cut)


@pytest.mark.usefixtures("_no_grace")
@pytest.mark.parametrize("name", WRITES)
def test_write_in_a_forgotten_session_is_not_sent_again(stage: Stage, name: str) -> None:
    """Nobody knows any more whether it happened: here it did, and does not again."""
    with proxied(stage.address, until_forgotten(stage, before_answer)) as proxy:
        with sw.connect(proxy.address, projects=["p"]) as client:
            with pytest.raises(sw.SessionExpired, match="read the state"):
                WRITES[name](client)
            assert client.status().revision == 1
            assert client.tiers.store(fragment("after")).revision == 2


@pytest.mark.usefixtures("_no_grace")
def test_what_was_not_sent_is_sent_in_the_new_session(stage: Stage) -> None:
    """An upload that was cut off, and reading, do no harm; neither does having been idle."""
    calls: list[tuple[Cut, Callable[[sw.Client], object]]] = [
        (lambda each: isinstance(each.message, OfferUpload), lambda client: client.tiers.store(fragment("x", LARGE))),
        (
            lambda each: isinstance(each.message, UploadGranted),
            lambda client: client.tiers.store_many([fragment("x", LARGE)]),
        ),
        (before_answer, lambda client: client.tiers.metrics()),
        (before_answer, lambda client: client.tiers.get_many(["x"])),
        (lambda each: isinstance(each.message, AskStatus), lambda client: client.status()),
    ]
    for where, call in calls:
        cut = until_forgotten(stage, where)
        with proxied(stage.address, cut) as proxy, sw.connect(proxy.address, projects=["p"]) as client:
            session_id = client.session_id
            call(client)
            assert cut.happened
            assert client.session_id == session_id


@pytest.mark.usefixtures("_no_grace")
def test_leases_of_a_forgotten_session_are_forgotten(stage: Stage) -> None:
    """Nobody goes on with a lease that is over: the plan is queued again, and can be started again."""
    with sw.connect(stage.address, projects=["p"]) as client:
        plan = executing(client, "act", "p")
        assert client._session.leases
        for connection in [*stage.loop._connections.values()]:
            kernel_socket(connection.peer).shutdown(2)
        eventually(lambda: stage.sessions == 0)
        assert client.plans.get_plan(plan.plan_id).state is sw.PlanState.QUEUED
        assert not client._session.leases
        client.plans.start_execute(plan.plan_id)
        client.plans.complete_execute(plan.plan_id)


@pytest.mark.usefixtures("_no_grace")
def test_only_the_first_greeting_is_told_and_all_threads_know(stage: Stage) -> None:
    """Many writes are under way when the session is forgotten: not one of them happens twice."""
    count = 6
    all_sent = threading.Barrier(count + 1)
    receive = Connection.receive
    with pytest.MonkeyPatch.context() as patch, sw.connect(stage.address, projects=["p"]) as client:
        expired: list[int] = []

        def wait_and_receive(connection: Connection) -> ManagerMessage:
            if threading.current_thread().name.startswith("write") and not waited.is_set():
                all_sent.wait(60)
                waited.wait(60)
                raise sw.OutcomeUnknown("cut")
            return receive(connection)

        waited = threading.Event()
        patch.setattr(Connection, "receive", wait_and_receive)
        taken = [client._channel.connections.acquire() for _ in range(count)]
        for each in taken:
            client._channel.connections.release(each)

        def write(number: int) -> None:
            try:
                client.tiers.store(fragment(str(number)))
            except sw.SessionExpired:
                expired.append(number)

        threads = [threading.Thread(target=write, args=(number,), name=f"write {number}") for number in range(count)]
        for thread in threads:
            thread.start()
        all_sent.wait(60)
        connections = [*stage.loop._connections.values()]  # without the next one, which the loop closes at any time
        with sw.connect(stage.address) as other:
            eventually(lambda: other.status().revision == count)
        for connection in connections:
            kernel_socket(connection.peer).shutdown(2)
        eventually(lambda: stage.sessions == 0)
        waited.set()
        for thread in threads:
            thread.join(60)
        assert sorted(expired) == [*range(count)]
        assert client.status().revision == count


def test_child_forked_in_mid_stream_does_not_repeat_its_parent(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was under way is the parent's: in the child nobody can tell, and in the parent it happens once."""
    monkeypatch.setattr(limits, "STREAM_COMMANDS", 1)
    children: list[int] = []

    def forking() -> Iterator[sw.Fragment]:
        yield fragment("0")
        yield fragment("1")
        if pid := os.fork():
            children.append(pid)
        else:
            signal.alarm(CHILD_SECONDS)
        yield fragment("2")

    with sw.connect(stage.address, projects=["p"]) as client:
        code, placed = 1, []
        try:
            placed = [*client.tiers.store_many(forking())]
        except sw.SessionExpired:
            code = 0
        finally:
            if not children:
                os._exit(code)
        assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0]
        assert [each.revision for each in placed] == [1, 2, 3]
        assert client.status().revision == 3


# A manager that comes back, or does not.


def calling(client: sw.Client, name: str = "a store") -> tuple[threading.Thread, list[object]]:
    """A thread that writes, and what came of it."""
    came: list[object] = []

    def call() -> None:
        try:
            came.append(WRITES[name](client))
        except sw.StepwellError as error:
            came.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread, came


@pytest.mark.usefixtures("_durable")
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("where", [before_answer, before_request], ids=["answer lost", "request lost"])
def test_manager_that_comes_back_is_waited_for(stage: Stage, name: str, where: Cut) -> None:
    """It hangs up on us several times before it greets us again."""
    with proxied(stage.address, Once(where)) as proxy, sw.connect(proxy.address, projects=["p"]) as client:
        proxy.opens_after = 4
        assert WRITES[name](client) == 1
        assert proxy.hung_up == 4
        assert client.status().revision == 1


@pytest.mark.usefixtures("_durable")
def test_manager_that_comes_back_is_waited_for_by_all_that_need_it(stage: Stage) -> None:
    """Opening, asking and looking wait like writing does."""
    with proxied(stage.address, never) as proxy, sw.connect(proxy.address, projects=["p"]) as client:
        for call in (lambda: client.epoch, client.open, client.status, client.view, client.tiers.metrics):
            for link in client._channel.connections._idle:
                link.interrupt()
            proxy.opens_after = proxy.hung_up + 3
            call()


def test_manager_in_memory_is_not_waited_for(stage: Stage) -> None:
    """Whoever hangs up on us once more is gone, and so is its state."""
    with proxied(stage.address, Once(before_answer)) as proxy, sw.connect(proxy.address, projects=["p"]) as client:
        proxy.opens_after = 1_000
        with pytest.raises(sw.OutcomeUnknown):
            client.tiers.store(fragment("x"))
        with pytest.raises(sw.RuntimeLost):
            client.tiers.store(fragment("x"))
        assert proxy.hung_up == 2


@pytest.mark.usefixtures("_durable")
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("is_sent", [True, False], ids=["answer lost", "nothing sent"])
def test_manager_that_does_not_come_back_in_time(
    stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch, *, is_sent: bool
) -> None:
    """It is waited for, but not for ever; what may have happened is not called failed."""
    moments = itertools.count(0.0, limits.RECONNECT_SECONDS_MAX / 3)  # each attempt takes a third of the time
    monkeypatch.setattr(SYSTEM, "monotonic", lambda: next(moments))
    with proxied(stage.address, before_answer) as proxy, sw.connect(proxy.address, projects=["p"]) as client:
        proxy.opens_after = 1_000
        if not is_sent:
            for link in client._channel.connections._idle:
                link.interrupt()
        with pytest.raises(sw.OutcomeUnknown if is_sent else sw.RuntimeLost):
            WRITES[name](client)
        assert proxy.hung_up > 2
        assert len(client._channel.rules.numbers) == 0


@pytest.mark.usefixtures("_durable")
@pytest.mark.parametrize("is_sent", [True, False], ids=["answer lost", "nothing sent"])
def test_closing_ends_the_wait_for_a_manager(stage: Stage, monkeypatch: pytest.MonkeyPatch, *, is_sent: bool) -> None:
    """From another thread, however long the pause between two attempts is."""
    monkeypatch.setattr(limits, "RECONNECT_PAUSE_SECONDS", 600.0)
    monkeypatch.setattr(limits, "RECONNECT_PAUSE_SECONDS_MAX", 600.0)
    with proxied(stage.address, before_answer) as proxy:
        client = sw.connect(proxy.address, projects=["p"])
        proxy.opens_after = 1_000_000
        if not is_sent:
            for link in client._channel.connections._idle:
                link.interrupt()
        thread, came = calling(client)
        eventually(lambda: proxy.hung_up)
        client.close()
        thread.join(60)
        (error,) = came
        assert isinstance(error, sw.OutcomeUnknown if is_sent else sw.RuntimeLost)
        assert "is closed" in str(error.__cause__ if is_sent else error)


def test_closing_ends_the_wait_for_a_greeting(tmp_path: Path) -> None:
    """A manager that was stopped takes connections, and says nothing."""
    tmp_path.chmod(0o700)
    address = str(tmp_path / "s")
    client = sw.Client(address, ("p",))
    with listen(address) as listener:
        thread, came = calling(client)
        eventually(lambda: client._channel.connections._being_greeted)
        client.close()
        thread.join(60)
        assert isinstance(came[0], sw.RuntimeLost)
        assert "is closed" in str(came[0])
        assert listener.fileno() >= 0


def test_busy_manager_is_not_said_to_have_refused_what_it_may_have_done() -> None:
    """A greeting that is refused says nothing about what was sent before."""
    busy = Rejected(Refusal.of(sw.Busy("full"), 0))
    for kind, conversation in ((sw.OutcomeUnknown, [WELCOME, None]), (sw.Busy, [WELCOME])):
        with fake_manager(conversation, [busy]) as address, sw.connect(address, projects=["p"]) as client:
            if kind is sw.Busy:
                for link in client._channel.connections._idle:
                    link.interrupt()
            with pytest.raises(kind):
                client.tiers.store(fragment("x"))


def test_process_without_descriptors_is_told_at_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending again would find none either."""
    sent: list[ClientMessage] = []
    send, receive = Connection.send, Connection.receive

    def note(connection: Connection, message: ClientMessage) -> None:
        sent.append(message)
        send(connection, message)

    def fall_short(connection: Connection) -> ManagerMessage:
        if isinstance(sent[-1], Request):
            raise sw.OutcomeUnknown("no descriptors left", shortage="descriptors")
        return receive(connection)

    with sw.connect(stage.address, projects=["p"]) as client, monkeypatch.context() as patch:
        patch.setattr(Connection, "send", note)
        patch.setattr(Connection, "receive", fall_short)
        for name in ("a store", "store_many"):
            with pytest.raises(sw.OutcomeUnknown, match="no descriptors"):
                WRITES[name](client)
        assert [type(message) for message in sent] == [Request, Hello, Request]
