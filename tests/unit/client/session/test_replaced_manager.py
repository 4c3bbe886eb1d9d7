"""Another manager is at the address, with another history: what was under way may have taken effect."""

from collections.abc import Callable

import msgspec
import pytest

import stepwell as sw
from stepwell import limits
from stepwell.protocol.messages import ClientMessage, Refusal, Request, Response
from stepwell.transport.connection import Connection
from tests.support.client.fake_manager import WELCOME, fake_manager
from tests.support.client.sessions import fragment

ANOTHER = msgspec.structs.replace(WELCOME, epoch="another")


def transact(client: sw.Client) -> None:
    with client.transaction() as transaction:
        transaction.tiers.store(fragment())


def batch(client: sw.Client) -> None:
    with client.batch() as sent:
        sent.tiers.store(fragment())


WRITES: dict[str, Callable[[sw.Client], object]] = {
    "a call": lambda client: client.tiers.store(fragment()),
    "store_many": lambda client: client.tiers.store_many([fragment()]),
    "a transaction": transact,
    "a batch": batch,
}


@pytest.mark.parametrize("database", [None, "/data/stepwell.sqlite"], ids=["in memory", "durable"])
@pytest.mark.parametrize("name", WRITES)
def test_write_that_was_under_way_has_an_unknown_outcome(name: str, database: str | None) -> None:
    """The earlier manager had it, and nobody can be asked what it did: it is not called failed."""
    welcomes = [msgspec.structs.replace(each, database=database) for each in (WELCOME, ANOTHER)]
    with fake_manager([welcomes[0], None], [welcomes[1]]) as address, sw.connect(address, projects=["p"]) as client:
        with pytest.raises(sw.OutcomeUnknown, match="may have taken effect") as caught:
            WRITES[name](client)
    assert isinstance(caught.value.__cause__, sw.RuntimeLost)
    assert "replaced by another one" in caught.value.__cause__.message


@pytest.mark.parametrize("name", WRITES)
def test_write_that_was_not_sent_is_lost(name: str) -> None:
    """Nothing of it has reached anybody."""
    with fake_manager([WELCOME], [ANOTHER]) as address, sw.connect(address, projects=["p"]) as client:
        connections = client._channel.connections
        connections.discard(connections._idle.pop())
        with pytest.raises(sw.RuntimeLost, match="replaced by another one"):
            WRITES[name](client)


def test_stream_of_which_a_frame_was_answered_has_an_unknown_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second frame cannot be sent; the first is delivered again, and answered; then there is nobody any more."""
    send, requests = Connection.send, 0

    def fail_every_other(connection: Connection, message: ClientMessage) -> None:
        nonlocal requests
        if isinstance(message, Request):
            requests += 1
            if requests in {2, 4}:
                raise sw.RuntimeLost("gone")
        send(connection, message)

    answered = Response(1, (Refusal.of(sw.Busy("full"), 0),) * limits.STREAM_COMMANDS)
    with fake_manager([WELCOME], [WELCOME, answered]) as address, sw.connect(address, projects=["p"]) as client:
        monkeypatch.setattr(Connection, "send", fail_every_other)
        with pytest.raises(sw.OutcomeUnknown, match="in the middle"):
            client.tiers.store_many(fragment(str(number)) for number in range(2 * limits.STREAM_COMMANDS))
        assert requests == 4


def test_stream_of_which_nothing_was_sent_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even its first frame has gone out."""

    def fail(_connection: Connection, _message: ClientMessage) -> None:
        raise sw.RuntimeLost("gone")

    with fake_manager([WELCOME]) as address, sw.connect(address, projects=["p"]) as client:
        monkeypatch.setattr(Connection, "send", fail)
        with pytest.raises(sw.RuntimeLost):
            client.tiers.store_many(fragment(str(number)) for number in range(2 * limits.STREAM_COMMANDS))
