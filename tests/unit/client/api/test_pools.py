"""Token pools by way of the clients: blocking, in a batch, in a transaction and awaited."""

from typing import cast

import pytest

import stepwell as sw
from stepwell.client.api.pools import Period
from stepwell.errors import TransactionAborted
from stepwell.testing import LocalRuntime
from tests.support.wait import eventually


def pool_of(client: sw.Client, tokens: int = 100) -> str:
    """The name of a new pool."""
    name = f"team-{client.session_id}"
    client.pools.create(name, tokens=tokens, soft_percent=50)
    return name


def test_block(client: sw.Client, capsys: pytest.CaptureFixture[str]) -> None:
    """It holds tokens, reports what it uses, and returns the rest, also after an error; crossing the limit is said."""
    name = pool_of(client)
    with client.pools.leased(name, 60) as held:
        held.use(25)
        assert (held.left, client.pools.get(name).free) == (35, 40)
        with pytest.raises(sw.PoolEmpty, match="has 40 free tokens of 100, not 41") as refused:
            client.pools.lease(name, 41)
        assert (refused.value.retry, refused.value.retry_after_ms) == (True, None)
    assert client.pools.get(name).free == 75
    assert "pool.low" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError), client.pools.leased(name, 10):
        raise ZeroDivisionError
    assert client.pools.get(name).free == 75


def test_batch_and_transaction(client: sw.Client) -> None:
    """A lease may be refused with the whole step: then nothing of it happens."""
    name = pool_of(client)
    with client.batch() as batch:
        lease, refused = batch.pools.lease(name, 60), batch.pools.lease(name, 60)
    assert lease.result().tokens == 60
    with pytest.raises(sw.PoolEmpty):
        refused.result()
    with pytest.raises(TransactionAborted) as aborted, client.transaction() as transaction:
        transaction.pools.give_back(name, lease.result())
        transaction.pools.lease(name, 101)
    assert aborted.value.details["cause"] == "InvalidArgument"
    assert client.pools.get(name).leased == 60


def test_bad_period(client: sw.Client) -> None:
    """The known ones are named."""
    with pytest.raises(sw.InvalidArgument, match="give one of second, minute, hour, day, or None"):
        client.pools.create("bad", tokens=1, per=cast("Period", "fortnight"))


def test_closing_returns_tokens() -> None:
    """At once, and not after the session's grace; what was reported stays spent."""
    with LocalRuntime(workers=0) as runtime, runtime.client() as client:
        client.pools.create("team", tokens=100, soft_percent=100)
        with runtime.client() as other:
            lease = other.pools.lease("team", 60)
            other.pools.use("team", lease, 10)
        eventually(lambda: client.pools.get("team").free == 90)  # the goodbye has no answer


def test_changes_are_watched(client: sw.Client) -> None:
    """So that an agent that waits for tokens hears of those that are returned."""
    name = pool_of(client)
    with client.watch() as watch:
        client.pools.give_back(name, client.pools.lease(name, 60))
        client.pools.delete(name)
        found = [watch.get(5.0) for _ in range(3)]
    assert [(each.leased, each.leases, each.is_low) for each in found if isinstance(each, sw.events.PoolChanged)] == [
        (60, 1, True),
        (0, 0, False),
    ]
    assert isinstance(found[2], sw.events.PoolDeleted)
