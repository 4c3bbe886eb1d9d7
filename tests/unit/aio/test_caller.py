"""How calls are finished: bodies that are on a disk are read in a thread, and what has moved is asked for again."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import aio, limits
from stepwell.client.session.body_reader import BodyReader
from stepwell.memory.reader.index_reader import IndexReader
from stepwell.memory.reader.mappings import Mappings
from stepwell.protocol.handles import Handle
from tests.support.client.sessions import fragment
from tests.support.data_directories import serving
from tests.support.event_loops import until, with_client

pytestmark = pytest.mark.usefixtures("processes_unmeasured")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("data")) as address:
        yield address


def test_what_is_on_a_disk_is_read_in_a_thread(kept: str, project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[str] = []
    proper = BodyReader._read

    def read(source: BodyReader, digest: bytes, handle: Handle) -> bytes:
        readers.append(threading.current_thread().name.partition("_")[0])
        return proper(source, digest, handle)

    monkeypatch.setattr(BodyReader, "_read", read)

    async def main(client: aio.Client) -> None:
        await client.tiers.store(fragment("a", b"cold"), tier=sw.Tier.COLD)
        status = await client.status()
        while status.memory.waiting:
            status = await client.status()
        found = await client.tiers.get("a")
        assert bytes(found.body) == b"cold"

    with_client(main, kept, project)
    assert {*readers} <= {"stepwell-aio"}


class Elusive:
    """Memory in which nothing is found, so many times."""

    def __init__(self, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = times
        proper = Mappings.find

        def find(mappings: Mappings, handle: Handle) -> memoryview:
            self.times -= 1
            if self.times >= 0:
                raise sw.BodyGone("moved")
            return proper(mappings, handle)

        monkeypatch.setattr(Mappings, "find", find)
        monkeypatch.setattr(IndexReader, "body_of", lambda *_: None)


@pytest.mark.parametrize("times", [1, 3])
def test_what_has_moved_is_asked_for_again(
    address: str, project: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(client: aio.Client) -> None:
        await client.tiers.store(fragment("a"))
        elusive = Elusive(times, monkeypatch)
        assert bytes((await client.tiers.get("a")).body) == b"body"
        elusive.times = times
        assert bytes((await client.tiers.get_many(["a"]))["a"].body) == b"body"

    with_client(main, address, project)


def test_what_moves_all_the_time(address: str, project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is given up in the end."""
    monkeypatch.setattr(limits, "MOVED_BODY_ATTEMPTS_MAX", 3)

    async def main(client: aio.Client) -> None:
        await client.tiers.store(fragment("a"))
        Elusive(100, monkeypatch)
        with pytest.raises(sw.BodyGone, match="has moved 3 times"):
            await client.tiers.get("a")
        with pytest.raises(sw.BodyGone):
            await client.tiers.get_many(["a"])

    with_client(main, address, project)


def test_memory_that_is_let_go_of_is_reported(kept: str, project: str, tmp_path: Path) -> None:
    """So that the manager can give it back; whoever cannot report it does so later."""
    assert tmp_path.is_dir()

    async def main(client: aio.Client) -> None:
        await client.tiers.store(fragment("a"))
        mappings = client.blocking_client.session.channel.mappings
        mappings.restore_released([10**6])
        await client.tiers.metrics()
        assert not mappings.released
        mappings.restore_released([10**6])
        link = client._channel._shared
        assert link
        link.interrupt()
        await until(lambda: link.error)
        with pytest.raises(sw.RuntimeLost):
            client._channel.blocking_channel.report(link)
        assert mappings.released

    with_client(main, kept, project)
