"""Bodies that are not in shared memory are read from the manager's database: right, or with an error."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.memory.compression import Compressor
from stepwell.protocol.handles import IN_STORE, Handle
from stepwell.storage.files.directory import DATABASE
from tests.support.client.sessions import in_threads
from tests.support.data_directories import alter, serving
from tests.support.memory.bodies import compressible, noise
from tests.support.processes import in_forked_child
from tests.support.wait import eventually

FORKS = 8


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def address(directory: Path) -> Iterator[str]:
    with serving(directory) as found:
        yield found


@pytest.fixture
def client(address: str, request: pytest.FixtureRequest) -> Iterator[sw.Client]:
    """A client of a project that no other test uses, and that has read nothing yet."""
    project = "".join(letter if letter.isalnum() else "-" for letter in request.node.name).strip("-")
    with sw.connect(address, projects=[project[:100]]) as connected:
        yield connected


def shelve(client: sw.Client, name: str, body: bytes) -> bytes:
    """Store a body that is cold, and wait until it is in the database alone; its digest."""
    client.tiers.store(sw.Fragment(fragment_id=name, body=body, tokens=1), tier=sw.Tier.COLD)
    eventually(lambda: client.status().memory.waiting == 0)
    return digest_of(body)


def viewed(client: sw.Client, name: str) -> bytes:
    """A body, by a look: the fifth read would lift it into shared memory."""
    found = client.view().get(name)
    assert found is not None
    return bytes(found.body)


def connections() -> list[str]:
    """The descriptors of this process that are the database's, or its log's."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(each)  # noqa: PTH115 - a Path would lose what is no path
        except OSError:
            continue
        if DATABASE in target:
            found.append(target)
    return found


def salted(client: sw.Client) -> int:
    """Equal bodies are one, and another test has damaged it."""
    return abs(hash(client.session_id))


ROT = {
    "raw": "UPDATE bodies SET data = zeroblob(length(data)) WHERE digest = {digest}",
    "raw and shorter": "UPDATE bodies SET data = substr(data, 1, 10) WHERE digest = {digest}",
    "raw and empty": "UPDATE bodies SET data = x'' WHERE digest = {digest}",
    "raw and missing": "UPDATE bodies SET data = NULL WHERE digest = {digest}",
    "raw and text": "UPDATE bodies SET data = 'text' WHERE digest = {digest}",
    "raw, said to be packed": "UPDATE bodies SET packed = 1 WHERE digest = {digest}",
    "packed": "UPDATE bodies SET data = zeroblob(length(data)) WHERE digest = {digest}",
    "packed and shorter": "UPDATE bodies SET data = substr(data, 1, length(data) - 1) WHERE digest = {digest}",
    "packed, of something else": "UPDATE bodies SET data = {other} WHERE digest = {digest}",
    "packed, said to be raw": "UPDATE bodies SET packed = 0 WHERE digest = {digest}",
    "parts": "UPDATE body_parts SET data = zeroblob(length(data)) WHERE upload = {upload} AND part = 1",
    "parts and one missing": "DELETE FROM body_parts WHERE upload = {upload} AND part = 1",
    "parts and one text": "UPDATE body_parts SET data = 'text' WHERE upload = {upload} AND part = 1",
    "parts and all missing": "DELETE FROM body_parts WHERE upload = {upload}",
}


@pytest.mark.parametrize("how", ROT)
def test_rotten_body_is_an_error(client: sw.Client, directory: Path, how: str) -> None:
    """Never bytes that nobody stored; and what is beside it is as readable as before."""
    salt = salted(client)
    body = compressible(5_000, salt) if how.startswith("packed") else noise(5_000, salt)
    if how.startswith("parts"):
        body = noise((2 << 20) + 5, salt)
    sound = noise(500, salt + 1)
    digest = shelve(client, "rotten", body)
    shelve(client, "sound", sound)
    assert client.tiers.get("rotten").body == body
    names = {
        "digest": f"x'{digest.hex()}'",
        "other": f"x'{Compressor().pack(compressible(len(body), salt + 1)).hex()}'",
        "upload": f"(SELECT upload FROM bodies WHERE digest = x'{digest.hex()}')",  # noqa: S608 - ours
    }
    alter(directory, ROT[how].format(**names))
    for _ in range(2):
        with pytest.raises(sw.StoreDamaged):
            client.tiers.get("rotten").body  # noqa: B018 - it may be read when it is asked for
        assert client.tiers.get("sound").body == sound


def test_forked_child_has_a_connection_of_its_own(client: sw.Client) -> None:
    """A database must not be carried over a fork: the child opens it anew, and both go on."""
    body = noise(5_000, salted(client))
    shelve(client, "a", body)
    assert client.tiers.get("a").body == body
    mine = client._session.bodies._file
    assert mine is not None

    def child() -> None:
        assert client.tiers.get("a").body == body
        assert client._session.bodies._file is not mine
        client.close()

    for _ in range(2):
        in_forked_child(child)
        assert client._session.bodies._file is mine
        assert client.tiers.get("a").body == body


def forked_while_others_read(read: Callable[[], bytes], body: bytes) -> None:
    """Whatever a thread holds at the moment of a fork, the child reads, and comes to its end."""
    stop = threading.Event()
    counts = [0] * 4
    everybody_reads = threading.Barrier(5)

    def read_on(number: int) -> None:
        assert read() == body
        everybody_reads.wait(60)
        while not stop.is_set():
            assert read() == body
            counts[number] += 1

    def child() -> None:
        assert read() == body

    threads = [threading.Thread(target=read_on, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    everybody_reads.wait(60)
    try:
        for _ in range(FORKS):
            in_forked_child(child)
        eventually(lambda: min(counts) > 0)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_fork_while_others_read_the_database(client: sw.Client, directory: Path) -> None:
    """SQLite has mutexes of its own, of the whole process: none may be held when it forks."""
    body = noise(50_000, salted(client))
    digest = shelve(client, "a", body)
    with closing(sqlite3.connect(directory / DATABASE)) as db:
        (number,) = db.execute("SELECT number FROM bodies WHERE digest = ?", (digest,)).fetchone()
    handle = Handle(IN_STORE, number, len(body))
    forked_while_others_read(lambda: bytes(client._session.bodies.read(digest, handle)), body)


def test_fork_while_others_read_fragments(client: sw.Client) -> None:
    """A fragment's body is read when it is asked for, by each reader for itself."""
    body = noise(50_000, salted(client))
    shelve(client, "a", body)
    forked_while_others_read(lambda: viewed(client, "a"), body)


def test_closed_client_has_nothing_open(address: str) -> None:
    """Neither the database nor its log; and closing twice is closing."""
    with sw.connect(address, projects=["closed"]) as client:
        body = noise(5_000, salted(client))
        shelve(client, "a", body)
        assert connections() == []
        assert client.tiers.get("a").body == body
        assert connections() != []
    client.close()
    assert connections() == []


def test_body_outlives_its_client(address: str) -> None:
    """What was read from the database is the reader's."""
    with sw.connect(address, projects=["outlives"]) as client:
        body = noise(5_000, salted(client))
        shelve(client, "a", body)
        found = client.tiers.get("a")
    assert found.body == body


def test_many_threads(client: sw.Client) -> None:
    """Each gets what it asked for, over one connection."""
    salt = salted(client)
    bodies = [noise(3_000 + number, salt + number) for number in range(4)]
    bodies += [compressible(30_000 + number, salt + number) for number in range(4)]
    for number, body in enumerate(bodies):
        client.tiers.store(sw.Fragment(fragment_id=f"f{number}", body=body, tokens=1), tier=sw.Tier.COLD)
    eventually(lambda: client.status().memory.waiting == 0)

    def read(number: int) -> None:
        for turn in range(30):
            which = (number + turn) % len(bodies)
            assert viewed(client, f"f{which}") == bodies[which]

    in_threads(12, read)
    assert len(connections()) <= 3  # one of each file
