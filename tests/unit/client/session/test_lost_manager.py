"""What a client says when the manager is gone, goes away in the middle, or is no manager at all."""

import os
import signal
import struct
import threading
from collections.abc import Callable

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.domain.replies import FragmentPage
from stepwell.protocol.messages import (
    AskStatus,
    ClientMessage,
    CommandResult,
    ManagerMessage,
    Refusal,
    Rejected,
    Response,
)
from stepwell.transport import restart_lock
from stepwell.transport.connection import Connection
from stepwell.transport.restart_lock import RestartLock
from tests.support.client.fake_manager import WELCOME, Reply, fake_manager
from tests.support.client.sessions import fragment
from tests.support.peers import framed
from tests.support.processes import kill
from tests.support.wait import eventually

CALLS: dict[str, Callable[[sw.Client], object]] = {
    "a call": lambda client: client.tiers.metrics(),
    "a status": lambda client: client.status(),
    "store_many": lambda client: client.tiers.store_many([fragment()]),
    "get_many": lambda client: client.tiers.get_many(["a"]),
}


def transact(client: sw.Client) -> None:
    with client.transaction() as transaction:
        transaction.tiers.store(fragment())


def batch(client: sw.Client) -> None:
    with client.batch() as sent:
        sent.tiers.store(fragment())


CALLS |= {"a transaction": transact, "a batch": batch}


@pytest.mark.parametrize("name", CALLS)
def test_manager_that_is_gone_is_runtime_lost(name: str) -> None:
    """Nothing of the request was sent, and the error says what to do."""
    with sw.Runtime.start(workers=0) as runtime, runtime.client(projects=["p"]) as client:
        kill(runtime.pid)
        eventually(lambda: not runtime.is_alive())
        with pytest.raises(sw.RuntimeLost, match=r"stepwell serve|is gone"):
            CALLS[name](client)


@pytest.mark.parametrize("name", CALLS)
def test_lost_answer_is_an_unknown_outcome(name: str) -> None:
    """The request arrived and the answer did not: it may have taken effect, and is not called failed."""
    with fake_manager([WELCOME, None]) as address, sw.connect(address, projects=["p"]) as client:
        with pytest.raises(sw.OutcomeUnknown, match="may have taken effect"):
            CALLS[name](client)


def test_manager_killed_in_mid_call_is_an_unknown_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped manager has the request in its socket; killed, it takes the answer with it."""
    with sw.Runtime.start(workers=0) as runtime, runtime.client(projects=["p"]) as client:
        os.kill(runtime.pid, signal.SIGSTOP)
        met: list[BaseException] = []
        sent = threading.Event()
        receive = Connection.receive

        def tell_and_receive(connection: Connection) -> ManagerMessage:
            sent.set()
            return receive(connection)

        monkeypatch.setattr(Connection, "receive", tell_and_receive)

        def call() -> None:
            try:
                client.tiers.store(fragment())
            except sw.StepwellError as error:
                met.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        assert sent.wait(60)
        kill(runtime.pid)
        thread.join(60)
        assert [type(error) for error in met] == [sw.OutcomeUnknown]
        eventually(lambda: not runtime.is_alive())


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "reply",
    [
        WELCOME,
        struct.pack("!i", 3) + b"\xff\xff\xff",
        struct.pack("!i", -2),
        framed(["Hello", 1, "x", None]),
        framed(["Response", 1, [["CommandResult", 1, ["NoSuchReply"], {}]]]),
    ],
    ids=["wrong message", "noise", "negative length", "a client's message", "unknown reply"],
)
def test_answer_that_is_no_answer_is_a_protocol_error(name: str, reply: Reply) -> None:
    """Whatever comes back, only a typed error comes out."""
    with fake_manager([WELCOME, reply]) as address, sw.connect(address, projects=["p"]) as client:
        with pytest.raises(sw.ProtocolError):
            CALLS[name](client)


def test_wrong_number_of_results_is_a_protocol_error() -> None:
    """Two answers to one question answer neither."""
    answer = CommandResult(1, FragmentPage((), None))
    with fake_manager([WELCOME, Response(1, (answer, answer))]) as address, sw.connect(address) as client:
        with pytest.raises(sw.ProtocolError, match="2 results"):
            client.tiers.metrics()


@pytest.mark.parametrize("name", CALLS)
def test_rejection_is_raised_as_what_it_is(name: str) -> None:
    """A manager that ends the connection with a reason is quoted."""
    rejected = Rejected(Refusal.of(sw.ProtocolError("because"), 0))
    with fake_manager([WELCOME, rejected]) as address, sw.connect(address, projects=["p"]) as client:
        with pytest.raises(sw.ProtocolError, match="because"):
            CALLS[name](client)


@pytest.mark.parametrize(
    "reply, kind",
    [
        (Rejected(Refusal.of(sw.Busy("full"), 0)), sw.Busy),
        (Response(1, ()), sw.ProtocolError),
        (None, sw.RuntimeLost),
        (b"\0\0\0\1\xc1", sw.ProtocolError),
    ],
    ids=["busy", "no welcome", "hung up", "noise"],
)
def test_greeting_that_fails_is_said_by_connect(reply: Reply, kind: type[sw.StepwellError]) -> None:
    """`connect` fails with what happened, and leaves no connection behind."""
    with fake_manager([reply]) as address, pytest.raises(kind):
        sw.connect(address)


def test_busy_manager_refuses_a_first_connection_at_once() -> None:
    """Also one that would be restarted: it is there, so that there is no restart to wait for."""
    with fake_manager([Rejected(Refusal.of(sw.Busy("full"), 0))]) as address:
        lock = RestartLock(address)
        try:
            with pytest.raises(sw.Busy, match="full"):
                sw.connect(address)
        finally:
            lock.release()
            restart_lock.remove(address)


def test_new_connection_that_is_lost_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was idle is replaced, and what was just opened once: a manager in memory that ends two is gone."""
    with fake_manager([WELCOME], [WELCOME], [WELCOME]) as address, sw.connect(address) as client:
        (idle,) = client._channel.connections._idle
        client._channel.connections._idle.clear()
        client._channel.connections.discard(idle)
        send = Connection.send

        def fail_to_ask(connection: Connection, message: ClientMessage) -> None:
            if isinstance(message, AskStatus):
                raise sw.RuntimeLost("gone")
            send(connection, message)

        monkeypatch.setattr(Connection, "send", fail_to_ask)
        with pytest.raises(sw.RuntimeLost, match="gone"):
            client.status()
        assert not client._channel.connections._open


def test_stream_that_breaks_in_the_middle_is_an_unknown_outcome() -> None:
    """Some frames went and were answered, then the manager hung up: what happened is not known."""
    refusal = Refusal.of(sw.Busy("full"), 0)
    with fake_manager([WELCOME, Response(1, (refusal,) * limits.STREAM_COMMANDS), None]) as address:
        with sw.connect(address, projects=["p"]) as client, pytest.raises(sw.OutcomeUnknown):
            client.tiers.store_many(fragment(str(number)) for number in range(10 * limits.STREAM_COMMANDS))
