"""Many requests on one connection: each gets its own answer, whoever is cancelled, and whatever becomes of it."""

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import stepwell as sw
from stepwell import aio, limits
from stepwell.aio.connection import AsyncConnection
from stepwell.client.session.environment import SYSTEM
from stepwell.client.session.session_rules import SessionRules
from stepwell.protocol.codec import encode_frame
from stepwell.protocol.messages import ManagerMessage, Refusal, Rejected, Response
from stepwell.transport.address import listen
from tests.support.client.fake_manager import WELCOME, Reply, fake_manager
from tests.support.client.proxy import Cut, Forwarded, Once, before_answer, before_request, proxied
from tests.support.client.sessions import fragment
from tests.support.event_loops import run, ticks, until, with_client
from tests.support.managers import Stage, served
from tests.support.seeds import seeded
from tests.support.soak import IS_LONG

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

LARGE = b"x" * (limits.INLINE_BODY_BYTES_MAX + 1)
ROUNDS = 3_000 if IS_LONG else 150


@pytest.fixture
def stage() -> Iterator[Stage]:
    with served() as running:
        yield running


async def store(client: aio.Client, name: str, body: bytes = b"body", expected_revision: int | None = None) -> int:
    return (await client.tiers.store(fragment(name, body), expected_revision=expected_revision)).revision


# Cancelled.


async def transact(client: aio.Client, name: str) -> None:
    async with client.transaction() as transaction:
        transaction.tiers.store(fragment(f"{name}-x", name.encode()))
        transaction.tiers.store(fragment(f"{name}-y", name.encode()))


async def upload(client: aio.Client, name: str) -> None:
    await store(client, name, LARGE)


async def inspect(client: aio.Client, name: str) -> None:
    with pytest.raises(sw.NotFound):
        await client.tiers.get(name)


@pytest.mark.parametrize("deed", [store, transact, upload, inspect])
def test_cancelled_at_any_moment(
    address: str, project: str, deed: Callable[[aio.Client, str], Coroutine[object, None, object]]
) -> None:
    """The next request gets its own answer; a transaction that was cancelled happened entirely or not at all."""

    async def main(client: aio.Client) -> None:
        await store(client, "mine", b"my own")
        ended = 0
        for count in range(40):
            task = asyncio.create_task(deed(client, f"{count}"))
            await ticks(count)
            ended += not task.cancel()
            assert bytes((await client.tiers.get("mine")).body) == b"my own"
            await asyncio.wait([task])
        found = await client.tiers.get_many([f"{count}-{part}" for count in range(40) for part in "xy"])
        assert all(f"{name[:-2]}-{part}" in found for name in found for part in "xy")
        assert client._channel._request_slots._value == limits.REQUESTS_IN_FLIGHT_MAX
        assert len(client.blocking_client.session.channel.rules.numbers) == 0

    with_client(main, address, project)


async def storm(client: aio.Client, seed: int) -> None:
    """Many at once, of whom many are cancelled at random; everybody else sees their own fragment."""
    random = seeded(seed)
    await client.tiers.store_many([fragment(f"{number}", f"{number}".encode()) for number in range(20)])

    async def look() -> None:
        name = f"{random.randrange(20)}"
        assert bytes((await client.tiers.get(name)).body) == name.encode()

    async def look_and_leave() -> None:
        task = asyncio.create_task(look())
        await ticks(random.randrange(6))
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    for _ in range(ROUNDS // 30):
        await asyncio.gather(*(random.choice((look, look_and_leave))() for _ in range(60)))


def test_cancelled_by_the_dozen(address: str, project: str) -> None:
    with_client(lambda client: storm(client, 8), address, project)


def test_the_storm_finds_an_answer_that_goes_to_somebody_else(
    address: str, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where whoever is cancelled leaves the queue, their answer goes to the next: the test above can fail."""
    proper = AsyncConnection._answer

    def careless(link: AsyncConnection, message: ManagerMessage | sw.StepwellError) -> None:
        while len(link._awaited) > 1 and link._awaited[0].answer.done():
            expected = link._awaited.popleft()
            if expected.on_end is not None:
                expected.on_end()
        proper(link, message)

    monkeypatch.setattr(AsyncConnection, "_answer", careless)
    with pytest.raises((AssertionError, sw.StepwellError)):
        with_client(lambda client: storm(client, 8), address, project)


def test_cancelled_while_waiting_for_a_slot(address: str, project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was never sent, and takes nobody's place."""
    monkeypatch.setattr(limits, "REQUESTS_IN_FLIGHT_MAX", 1)

    async def main(client: aio.Client) -> None:
        first = asyncio.create_task(store(client, "first"))
        waiting = asyncio.create_task(store(client, "never"))
        await ticks(1)
        waiting.cancel()
        await first
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await client.tiers.get_many(["first", "never"])).keys() == {"first"}

    with_client(main, address, project)


# Many at once.


def test_a_thousand_at_once(stage: Stage) -> None:
    """All are right, in one order; never more are under way than may be, and all others wait their turn."""
    names = [f"{number}" for number in range(1_000)]
    most = 0

    async def main() -> None:
        nonlocal most
        async with aio.connect(stage.address, projects=["p"]) as client:
            revisions: list[int] = []

            async def put(name: str) -> None:
                nonlocal most
                revisions.append(await store(client, name, name.encode()))
                assert client._channel._shared
                most = max(most, len(client._channel._shared._awaited))

            async with asyncio.TaskGroup() as tasks:
                for name in names:
                    tasks.create_task(put(name))
            assert revisions == sorted(revisions)
            found = await asyncio.gather(*(client.tiers.get(name) for name in names))
            assert [str(each.body, "utf-8") for each in found] == names
            assert len(client._channel._open) == 1

    run(main(), debug=False)
    assert 1 < most <= limits.REQUESTS_IN_FLIGHT_MAX


def test_what_was_answered_comes_before_what_is_asked_then(address: str, project: str) -> None:
    """Of many chains at once, each sees its own steps in order, and everybody's in one order."""

    async def main(client: aio.Client) -> None:
        async def chain(name: str) -> list[int]:
            return [await store(client, name) for _ in range(20)]

        chains = await asyncio.gather(*(chain(f"{number}") for number in range(20)))
        assert all(steps == sorted(steps) for steps in chains)
        assert len({step for steps in chains for step in steps}) == 400

    with_client(main, address, project)


def test_manager_that_does_not_read(address: str, project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits to be sent is bounded, but for one message; both sides go on as soon as one takes something."""
    monkeypatch.setattr(limits, "UNSENT_BYTES_MAX", 10_000)
    body = bytes(60_000)
    unsent: list[int] = []
    proper = AsyncConnection._flush

    def flush(link: AsyncConnection) -> None:
        unsent.append(len(link._unsent))
        proper(link)

    monkeypatch.setattr(AsyncConnection, "_flush", flush)

    async def main(client: aio.Client) -> None:
        await asyncio.gather(*(store(client, f"{number}", body) for number in range(200)))
        assert len(await client.tiers.get_many([f"{number}" for number in range(200)])) == 200

    with_client(main, address, project)
    assert 10_000 < max(unsent) < 10_000 + 2 * len(body)


# The connection breaks.


@pytest.mark.parametrize("cut", [before_answer, before_request], ids=lambda cut: cut.__name__)
@pytest.mark.parametrize("body", [b"small", LARGE], ids=["small", "large"])
def test_once(stage: Stage, cut: Cut, body: bytes) -> None:
    """A request whose connection is cut is sent again, and takes effect once."""

    async def main(address: str) -> None:
        async with aio.connect(address, projects=["p"]) as client:
            await store(client, "before")
            assert await store(client, "a", body, 0) == 2

    once = Once(lambda forwarded: forwarded.number > 1 and cut(forwarded))
    with proxied(stage.address, once) as proxy:
        run(main(proxy.address))
    assert once.happened


@pytest.mark.parametrize("every", [7, 31])
def test_many_once(stage: Stage, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is cut while many are under way: done twice, a store would meet itself."""
    monkeypatch.setattr(SessionRules, "expects_restart", lambda *_: True)
    monkeypatch.setattr(limits, "REQUESTS_IN_FLIGHT_MAX", 5)
    monkeypatch.setattr(limits, "RECONNECT_PAUSE_SECONDS_MAX", 0.001)

    async def main(address: str) -> None:
        async with aio.connect(address, projects=["p"]) as client:
            await asyncio.gather(*(store(client, f"{number}", LARGE[: 10 ** (number % 6)], 0) for number in range(60)))
            assert len(await client.tiers.get_many([f"{number}" for number in range(60)])) == 60

    def cut(forwarded: Forwarded) -> bool:
        return forwarded.number % every == every - 1

    with proxied(stage.address, cut) as proxy:
        run(main(proxy.address))
        assert proxy.cuts > 1


def test_idle_connection_that_died(stage: Stage) -> None:
    """Is replaced, unnoticed, the one for uploads too."""

    async def main() -> None:
        async with aio.connect(stage.address, projects=["p"]) as client:
            await store(client, "a", LARGE)
            links = [*client._channel._open]
            for link in links:
                link.interrupt()
            await until(lambda: all(link.error for link in links))
            await store(client, "b", LARGE)
            assert (await client.tiers.get("a")).tokens == 1
            assert not {*links} & {*client._channel._open}

    run(main())


def test_manager_that_is_gone() -> None:
    """Without a data directory its state is gone: what was sent may have happened, and then there is nobody."""

    async def main(address: str) -> None:
        async with aio.connect(address, projects=["p"]) as client:
            with pytest.raises(sw.OutcomeUnknown):
                await store(client, "a")
            with pytest.raises(sw.RuntimeLost, match="there is no manager"):
                await store(client, "b")

    with fake_manager([WELCOME, None]) as address:
        run(main(address))


def test_manager_that_was_replaced() -> None:
    async def main(address: str) -> None:
        async with aio.connect(address, projects=["p"]) as client:
            with pytest.raises(sw.OutcomeUnknown) as caught:
                await client.status()
            assert "replaced" in str(caught.value.__cause__)

    with fake_manager([WELCOME, None], [replace(WELCOME, epoch="another")]) as address:
        run(main(address))


def test_session_that_expired() -> None:
    """What may have taken effect in a session that is forgotten cannot be sent again; what only reads can."""
    durable = replace(WELCOME, database="/somewhere")
    anew = replace(durable, generation=8)

    async def write(address: str) -> None:
        async with aio.connect(address, projects=["p"]) as client:
            client.blocking_client.session.leases["plan"] = 1
            with pytest.raises(sw.SessionExpired):
                await store(client, "a")
            assert not client.blocking_client.session.leases

    async def read(address: str) -> None:
        async with aio.connect(address, projects=["p"]) as client:
            with pytest.raises(sw.NotFound):
                await client.tiers.get("a")

    with fake_manager([durable, None], [anew]) as address:
        run(write(address))
    with fake_manager([durable, None], [anew, Response(1, (Refusal(0, "NotFound", "no"),))]) as address:
        run(read(address))


@pytest.mark.parametrize(
    "reply, kind",
    [
        (Rejected(Refusal(0, "ManagerFault", "a defect")), sw.ManagerFault),
        (b"\xff\xff\xff\xff", sw.ProtocolError),
        (WELCOME, sw.ProtocolError),
        (Response(1, ()), IndexError),
    ],
)
def test_told_something_else(reply: Reply, kind: type[Exception]) -> None:
    """It is raised, and nothing is left open."""

    async def main(address: str) -> None:
        async with aio.connect(address, projects=["p"]) as client:
            with pytest.raises(kind):
                await store(client, "a")

    with fake_manager([WELCOME, reply]) as address:
        run(main(address))


@pytest.mark.parametrize("word", [Response(1, ()), Rejected(Refusal(0, "Busy", "later"))])
def test_told_unasked(word: ManagerMessage) -> None:
    """Nobody knows what would come next on such a connection: it is given up, and another one made."""
    out = bytearray()
    encode_frame(WELCOME, out)
    encode_frame(word, out)

    async def main(address: str) -> None:
        async with aio.connect(address, projects=["p"]) as client:
            await until(lambda: client._channel._shared and client._channel._shared.error)
            with pytest.raises(sw.NotFound):
                await client.tiers.get("a")

    with fake_manager([bytes(out)], [WELCOME, Response(1, (Refusal(0, "NotFound", "no"),))]) as address:
        run(main(address))


def test_refused_to_one_costs_the_others_nothing(address: str, project: str) -> None:
    """A defect ends the connection; whoever else had something under way on it sends it again."""

    async def main(client: aio.Client) -> None:
        assert client._channel._shared
        link = client._channel._shared
        others = [asyncio.create_task(store(client, f"{number}", b"x", 0)) for number in range(5)]
        await ticks(2)
        link.interrupt()
        assert len({*await asyncio.gather(*others)}) == 5

    with_client(main, address, project)


def test_upload_that_is_turned_away(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the manager said before it shut the door is what is raised."""
    monkeypatch.setattr("stepwell.manager.uploads.Uploads.grant", _refuse)

    async def main() -> None:
        async with aio.connect(stage.address, projects=["p"]) as client:
            with pytest.raises(sw.ProtocolError, match="enough"):
                await store(client, "a", LARGE)
            assert await store(client, "b") == 1

    run(main())


def _refuse(*_: object, **__: object) -> None:
    raise sw.ProtocolError("enough")


def test_full_backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where many wait to be let in already, we come again a bit later, for a while."""
    monkeypatch.setattr("stepwell.limits.LISTEN_BACKLOG", 0)
    monkeypatch.setattr(limits, "RECONNECT_SECONDS_MAX", 0.05)

    async def main() -> None:
        first = asyncio.ensure_future(aio.connect(address))
        await ticks(1)
        with pytest.raises(sw.RuntimeLost):
            await aio.connect(address)
        first.cancel()
        await asyncio.wait([first])

    tmp_path.chmod(0o700)
    address = str(tmp_path / "s")
    with listen(address):
        run(main())


def test_no_descriptor_for_a_connection(address: str, project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying again would not change that."""

    def dial(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "too many open files")

    async def main(client: aio.Client) -> None:
        monkeypatch.setattr(SYSTEM, "dial", dial)
        with pytest.raises(OSError, match="too many open files"):
            await store(client, "a", LARGE)

    with_client(main, address, project)


def test_goodbye_to_somebody_who_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is not waited for, for long; nor is one that has gone."""
    monkeypatch.setattr(limits, "GOODBYE_SECONDS_MAX", 0.05)

    async def main(address: str) -> None:
        async with aio.connect(address) as client:
            link = client._channel._shared
            assert link
            link._unsent += bytes(8 * limits.MIB)
        assert link.error

    with fake_manager([WELCOME]) as address:
        run(main(address))
