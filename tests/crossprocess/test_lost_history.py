"""A client that has seen more than the manager has is told so; its session is over, and nobody else's."""

import asyncio
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import aio
from stepwell.manager.process import Settings
from tests.support import killable_manager
from tests.support.data_directories import durable_settings


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """The settings of a manager with a data directory of this test."""
    with durable_settings(tmp_path / "data") as made:
        yield made


def fragment(fragment_id: str) -> sw.Fragment:
    return sw.Fragment(fragment_id=fragment_id, project="p", body="body", tokens=1)


def begin(settings: Settings) -> Path:
    """A directory at revision 1, and a copy of it as a whole: nothing in it shows that it is an older one."""
    data = Path(settings.data_dir or "")
    process = killable_manager.start(settings)
    with sw.connect(settings.address) as client:
        client.tiers.store(fragment("old"))
    killable_manager.end(process)
    return Path(shutil.copytree(data, data.with_name("older")))


def put_back(settings: Settings, older: Path) -> None:
    shutil.rmtree(settings.data_dir or "")
    shutil.copytree(older, settings.data_dir or "")


def test_client_is_told_and_stays_told(settings: Settings) -> None:
    """Also when the manager has caught up: then the same revision is another state. Other clients are served."""
    older = begin(settings)
    first = killable_manager.start(settings)
    client, other = sw.connect(settings.address), sw.connect(settings.address)
    other.tiers.get("old", project="p")
    seen = [client.tiers.store(fragment(f"f{number}")).revision for number in range(5)][-1]
    killable_manager.end(first)
    put_back(settings, older)
    with killable_manager.running(settings):
        with pytest.raises(sw.HistoryLost, match=f"has seen revision {seen} of the same epoch") as caught:
            client.tiers.get("old", project="p")
        assert caught.value.details == {"seen": seen, "found": 1, "epoch": other.epoch}
        assert other.tiers.get("old", project="p").text == "body"
        assert [other.tiers.store(fragment(f"g{number}")).revision for number in range(9)][-1] > seen
        with pytest.raises(sw.HistoryLost):
            client.tiers.store(fragment("h"))
        with pytest.raises(sw.HistoryLost), client.watch() as watch:
            watch.get(60)
        with sw.connect(settings.address) as anew:
            assert anew.tiers.get("g8", project="p").text == "body"
        client.close()
        other.close()


def test_write_that_was_under_way(settings: Settings) -> None:
    """Its outcome is unknown, and the error says why."""
    older = begin(settings)
    first = killable_manager.start(settings, "after apply")
    client = sw.connect(settings.address)
    seen = client.tiers.store(fragment("new")).revision
    with ThreadPoolExecutor(1) as pool:
        fatal = pool.submit(client.tiers.store, fragment(killable_manager.FATAL))
        first.wait(60)
        assert first.stdout is not None
        first.stdout.close()
        put_back(settings, older)
        with killable_manager.running(settings), pytest.raises(sw.OutcomeUnknown, match=f"revision {seen} of the same"):
            fatal.result(60)
        client.close()


def test_asynchronous_client_is_told(settings: Settings) -> None:
    """By the same rules."""
    older = begin(settings)

    async def run() -> None:
        first = killable_manager.start(settings)
        client = await aio.connect(settings.address)
        for number in range(5):
            await client.tiers.store(fragment(f"f{number}"))
        killable_manager.end(first)
        put_back(settings, older)
        with killable_manager.running(settings):
            for _ in range(2):
                with pytest.raises(sw.HistoryLost):
                    await client.tiers.get("old", project="p")
            await client.aclose()

    asyncio.run(run())
