"""Processes that look at shared memory while others change it.

Each writer is the only one that writes its fragments, so that it knows what each has to hold; a reader knows what a
body has to be by the digest beside it. One process is spawned and forks the rest before it has connected to anything:
72 interpreters that each import the package would cost more than the work.
"""

import gc
import os
import random
import select
import signal
import tempfile
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import log2
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct
from multiprocess.connection import Connection

import stepwell as sw
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.limits import KIB, MIB
from stepwell.process import SpawnedProcess
from tests.support.processes import CONTEXT, fork, kill, spawned
from tests.support.soak import IS_LONG

PROJECT = "memory"
CHILD_SECONDS = 900 if IS_LONG else 240
"""A child that hangs is ended by its own alarm."""

HELD = 8
SLOTS = 16
BODY_BYTES_MIN, BODY_BYTES_MAX = KIB, 3 * MIB


class Written(Struct):
    """What a writer's fragments have to be, by id: digest and size, or None if it deleted the fragment."""

    fragments: dict[str, tuple[bytes, int] | None] = {}
    deeds: dict[str, int] = {}


class Seen(Struct):
    """How often a reader saw what, and how many of the segments that it had mapped were taken from it."""

    deeds: dict[str, int]
    retired: int


# Processes.


@contextmanager
def elsewhere(target: Callable[..., None], *arguments: object) -> Iterator[tuple[SpawnedProcess, Connection]]:
    """A process with a pipe as its last argument, and the other end of that."""
    ours, theirs = CONTEXT.Pipe()
    with ours, theirs, spawned(target, *arguments, theirs) as process:
        theirs.close()  # so that its death is the end of the pipe
        yield process, ours


def brood(deeds: Iterable[Callable[[], None]]) -> list[int]:
    """A forked child for each deed."""
    gc.freeze()
    return [fork(partial(_loudly, deed)) for deed in deeds]


def _loudly(deed: Callable[[], None]) -> None:
    """A child that fails says why: its parent sees an exit code."""
    signal.alarm(CHILD_SECONDS)
    try:
        deed()
    except BaseException:
        traceback.print_exc()
        raise


def await_all(pids: Iterable[int]) -> None:
    """Each child has to end well."""
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert codes == [0] * len(codes), f"exit codes {codes}"


class Bell:
    """Rung by its owner, and heard by every child that it forked."""

    def __init__(self) -> None:
        self._heard, self._rope = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._heard, select.POLLHUP)

    def inherit(self) -> None:
        """In a child: only the owner holds the rope."""
        os.close(self._rope)

    def ring(self) -> None:
        os.close(self._rope)

    def has_rung(self) -> bool:
        return bool(self._poll.poll(0))


# The storm: writers change everything, readers hash whatever they find.


class Storm(NamedTuple):
    """How many do how much."""

    readers: int
    writers: int
    operations: int  # of each writer
    seed: int


def storm(address: str, size: Storm, directory: str) -> None:
    """All processes of the storm; readers go on until the last writer is done."""
    readers, writers, operations, seed = size
    bell = Bell()
    reports = Path(directory)
    watching = brood(
        partial(_read_on, address, f"{seed}-r{number}", writers, bell, reports / f"r{number}")
        for number in range(readers)
    )
    await_all(
        brood(partial(_write, address, number, operations, seed, reports / f"w{number}") for number in range(writers))
    )
    bell.ring()
    await_all(watching)


def reports(directory: Path) -> tuple[dict[str, tuple[bytes, int] | None], Counter[str], Counter[str], int]:
    """What has to be there, what writers and readers did, and how many mapped segments were retired."""
    expected: dict[str, tuple[bytes, int] | None] = {}
    wrote, saw = Counter[str](), Counter[str]()
    retired = 0
    for path in directory.glob("w*"):
        written = msgspec.msgpack.decode(path.read_bytes(), type=Written)
        expected |= written.fragments
        wrote.update(written.deeds)
    for path in directory.glob("r*"):
        seen = msgspec.msgpack.decode(path.read_bytes(), type=Seen)
        saw.update(seen.deeds)
        retired += seen.retired
    return expected, wrote, saw, retired


class BodyMaker:
    """Bodies that are all different, large and small, every other one compressible. Making one is a copy."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self._noise = self.random.randbytes(2 * BODY_BYTES_MAX)
        self._serial = 0
        self._seed = seed

    def make(self, size: int | None = None) -> bytes:
        if size is None:
            size = int(2 ** self.random.uniform(log2(BODY_BYTES_MIN), log2(BODY_BYTES_MAX)))
        self._serial += 1
        stamp = f"{self._seed} {self._serial} ".encode()
        if self._serial % 2:
            return (stamp * (size // len(stamp) + 1))[:size]
        start = self.random.randrange(BODY_BYTES_MAX)
        return stamp + self._noise[start : start + size - len(stamp)]


def _write(address: str, number: int, operations: int, seed: int, report: Path) -> None:
    maker = BodyMaker(f"{seed}-w{number}")
    with sw.connect(address, [PROJECT]) as client:
        writer = Writer(client, number, maker)
        for _ in range(operations):
            writer.act()
    report.write_bytes(msgspec.msgpack.encode(Written(writer.fragments, writer.deeds)))


class Writer:
    """Stores, moves and deletes fragments of its own."""

    def __init__(self, client: sw.Client, number: int, maker: BodyMaker) -> None:
        self._tiers = client.tiers
        self._number = number
        self._maker = maker
        self.fragments: dict[str, tuple[bytes, int] | None] = {}
        self.deeds = Counter[str]()

    def act(self) -> None:
        """One deed. What is refused has changed nothing, and so changes nothing of what we expect."""
        fragment_id = fragment_name(self._number, self._maker.random.randrange(SLOTS))
        is_there = self.fragments.get(fragment_id) is not None
        (deed,) = self._maker.random.choices(("store", "promote", "demote", "delete"), (8, 4, 4, 1))
        try:
            if deed == "store" or not is_there:
                self._store(fragment_id)
            elif deed == "delete":
                self._tiers.delete(fragment_id)
                self.fragments[fragment_id] = None
            else:
                (self._tiers.promote if deed == "promote" else self._tiers.demote)(fragment_id)
        except (sw.TierFull, sw.Busy):
            deed = "refused"
        self.deeds[deed] += 1

    def _store(self, fragment_id: str) -> None:
        body = self._maker.make()
        tier = self._maker.random.choice([*sw.Tier])
        fragment = sw.Fragment(fragment_id=fragment_id, body=body, tokens=len(body) // KIB + 1)
        placed = self._tiers.store(fragment, tier=tier)
        assert placed.digest == digest_of(body)
        self.fragments[fragment_id] = (placed.digest, len(body))


def fragment_name(writer: int, slot: int) -> str:
    return f"{writer}-{slot}"


def _read_on(address: str, seed: str, writers: int, bell: Bell, report: Path) -> None:
    bell.inherit()
    with sw.connect(address, [PROJECT]) as client:
        reader = Reader(client, random.Random(seed), writers)
        while not bell.has_rung():
            reader.act()
        retired = len(client._channel.mappings._retired)
    report.write_bytes(msgspec.msgpack.encode(Seen(reader.deeds, retired)))


class Reader:
    """Hashes whatever it finds, and what it found a while ago once more."""

    def __init__(self, client: sw.Client, generator: random.Random, writers: int) -> None:
        self._client = client
        self._random = generator
        self._writers = writers
        self._held: deque[tuple[bytes, memoryview]] = deque(maxlen=HELD)
        self._view: sw.View | None = None
        self.deeds = Counter[str]()

    def act(self) -> None:
        (deed,) = self._random.choices((self._get, self._look_through, self._look_again), (10, 2, 4))
        self.deeds[deed()] += 1

    def _get(self) -> str:
        name = fragment_name(self._random.randrange(self._writers), self._random.randrange(SLOTS))
        try:
            found = self._client.tiers.get(name)
        except sw.NotFound:
            return "missing"
        check_hash(found.digest.value, found.body)
        self._held.append((found.digest.value, found.body))
        return "got"

    def _look_through(self) -> str:
        """Every other time through a view that is out of date: what was deleted since may be gone, and says so."""
        is_old = self._view is not None and self._random.random() < 0.5
        try:
            self._view = view = self._view if self._view is not None and is_old else self._client.view()
        except (sw.TierFull, sw.Busy):
            return "views refused"
        fragments = [*view]
        assert len(fragments) == len(view)
        for fragment in self._random.sample(fragments, min(3, len(fragments))):
            try:
                body = fragment.body
            except sw.BodyGone:
                self.deeds["gone"] += 1
                continue
            check_hash(fragment.digest.value, body)
            self._held.append((fragment.digest.value, body))
            self.deeds["viewed"] += 1
        return "old views" if is_old else "views"

    def _look_again(self) -> str:
        """What is held stays as it was, whatever has become of the fragment and its segment."""
        if not self._held:
            return "held nothing"
        check_hash(*self._random.choice(self._held))
        return "held"


def check_hash(digest: bytes, body: memoryview) -> None:
    assert digest_of(body) == digest, f"a torn body of {len(body)} bytes, which should be {digest.hex()}"


# Holding on.


def hold(address: str, fragment_ids: Sequence[str], turn: Connection) -> None:
    """Hold bodies; for each word that comes, say how many of them are still right, and what a new request met."""
    with sw.connect(address, [PROJECT]) as client:
        held = [client.tiers.get(each) for each in fragment_ids]
        bodies = [(each.digest.value, each.body) for each in held]
        del held
        turn.send(sum(len(body) for _, body in bodies))
        while (word := turn.recv()) is not None:
            if word == "let go":
                bodies.clear()
            right = sum(digest_of(body) == digest for digest, body in bodies)
            try:
                client.tiers.metrics()
                client.tiers.metrics()  # the first tells us what is gone, the second tells of what we let go
                met = "an answer"
            except sw.StepwellError as error:
                met = error.kind
            turn.send((right, met))


def chatter(address: str, clients: int, turn: Connection) -> None:
    """Clients that do one small request after the other; asked for a time, say how many each of them did in it."""
    bell = Bell()
    ready, say = os.pipe()
    with tempfile.TemporaryDirectory() as directory:
        moments = [Path(directory, str(number)) for number in range(clients)]
        pids = brood(partial(_chat, address, bell, say, path) for path in moments)
        for _ in pids:
            os.read(ready, 1)
        turn.send("chatting")
        began_ns, ended_ns = turn.recv()
        bell.ring()
        await_all(pids)
        found = [msgspec.msgpack.decode(path.read_bytes(), type=list[int]) for path in moments]
    turn.send([sum(began_ns <= moment <= ended_ns for moment in each) for each in found])


def _chat(address: str, bell: Bell, say: int, path: Path) -> None:
    bell.inherit()
    moments: list[int] = []
    with sw.connect(address, [PROJECT]) as client:
        while not bell.has_rung():
            name = f"chat-{os.getpid()}"
            client.tiers.store(sw.Fragment(fragment_id=name, body=str(len(moments)), tokens=1))
            assert client.tiers.get(name).text == str(len(moments))
            moments.append(time.monotonic_ns())
            if len(moments) == 10:
                os.write(say, b".")
    path.write_bytes(msgspec.msgpack.encode(moments))


class Household(Struct):
    """The processes of one runtime: manager, readers and writers."""

    address: str
    manager: int
    readers: list[int]
    writers: list[int]


def keep_house(bodies: int, body_bytes: int, budget: sw.TierBudget, seed: int, told: Connection) -> None:
    """A program with a runtime, readers that hold every body, and writers that never end."""
    runtime = sw.Runtime.start(workers=0, budget=budget, log_level="error")
    with runtime.client([PROJECT]) as client:
        maker = BodyMaker(f"{seed}")
        names = [f"kept-{number}" for number in range(bodies)]
        for name in names:
            client.tiers.store(sw.Fragment(fragment_id=name, body=maker.random.randbytes(body_bytes), tokens=1))
    ready, say = os.pipe()
    readers = brood(partial(_hold_for_ever, runtime.address, names, say) for _ in range(4))
    writers = brood(partial(_write_for_ever, runtime.address, number, seed, say) for number in range(2))
    for _ in (*readers, *writers):
        os.read(ready, 1)
    told.send(msgspec.msgpack.encode(Household(runtime.address, runtime.pid, readers, writers)))
    threading.Event().wait()


def _hold_for_ever(address: str, names: Sequence[str], say: int) -> None:
    with sw.connect(address, [PROJECT]) as client:
        held = [client.tiers.get(name) for name in names]
        for each in held:
            check_hash(each.digest.value, each.body)
        os.write(say, b".")
        threading.Event().wait()


def _write_for_ever(address: str, number: int, seed: int, say: int) -> None:
    """Write until the manager is gone; then wait, as the other processes do."""
    with sw.connect(address, [PROJECT]) as client, suppress(sw.RuntimeFault):
        writer = Writer(client, number, BodyMaker(f"{seed}-w{number}"))
        while True:
            writer.act()
            if sum(writer.deeds.values()) == 10:
                os.write(say, b".")
    threading.Event().wait()


def end_all(pids: Iterable[int]) -> None:
    """Kill the processes that are left."""
    for pid in pids:
        with suppress(ProcessLookupError):
            kill(pid)
