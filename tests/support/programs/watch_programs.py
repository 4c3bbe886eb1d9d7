"""Processes that write, and processes that watch them; each leaves what it knows in a file."""

import faulthandler
import random
from pathlib import Path

import msgspec
from msgspec import Struct

import stepwell as sw

BUDGET = sw.TierBudget(hot_tokens=500, warm_entries=200)
PROJECTS = ("p", "q")
PAUSE = "a pause"
END = "the end"


class Written(Struct):
    """The acknowledged writes of a writer: for each revision, the fragments that it stored."""

    stored: dict[int, list[str]] = msgspec.field(default_factory=dict[int, list[str]])


class Watched(Struct):
    """What a watcher was told: events, and, where some were missed, how many it had by then and where it went on."""

    events: list[sw.events.AnyEvent] = msgspec.field(default_factory=list[sw.events.AnyEvent])
    missed: list[tuple[int, int]] = msgspec.field(default_factory=list[tuple[int, int]])
    connections: int = 1


def write(address: str, number: int, amount: int, seed: int, directory: str) -> None:
    """Store, alone and in transactions, and move or delete what is one's own."""
    faulthandler.enable()
    chance = random.Random(f"{seed}-{number}")
    report = Written()
    project = PROJECTS[number % len(PROJECTS)]
    with sw.connect(address, [project]) as client:
        for serial in range(amount):
            name = f"{number}-{serial % 200}"
            if chance.random() < 0.1:
                with client.transaction() as transaction:
                    several = [
                        transaction.tiers.store(_fragment(f"{name}-{part}", chance), tier=chance.choice([*sw.Tier]))
                        for part in range(3)
                    ]
                for pending in several:
                    placed = pending.result()
                    report.stored.setdefault(pending.revision, []).append(placed.fragment_id)
            else:
                placed = client.tiers.store(_fragment(name, chance))
                report.stored[placed.revision] = [placed.fragment_id]
                if chance.random() < 0.1:
                    client.tiers.delete(name)
    _leave(report, directory, f"writer-{number}")


def _fragment(name: str, chance: random.Random) -> sw.Fragment:
    return sw.Fragment(fragment_id=name, body=chance.randbytes(8), tokens=chance.randrange(1, 20))


def watch(address: str, name: str, directory: str) -> None:
    """Follow until the end; whatever is missed is noted, and it goes on."""
    faulthandler.enable()
    report = Watched()
    with sw.connect(address) as client, client.watch(since=0) as watching:
        _ready(directory, name)
        while not _is_end(report):
            try:
                report.events.append(next(watching))
            except sw.EventsMissed as error:
                resume = error.details["resume"]
                assert isinstance(resume, int)
                report.missed.append((len(report.events), resume))
            else:
                _note_pause(report, directory, name)
    _leave(report, directory, name)


def watch_and_reconnect(address: str, name: str, directory: str, every: int) -> None:
    """The same, but the connection breaks all the time, and now and then the client is another one altogether."""
    faulthandler.enable()
    report = Watched()
    revision, partly = 0, 0
    _ready(directory, name)
    while not _is_end(report):
        with sw.connect(address) as client, client.watch(since=revision) as watching:
            for _ in range(partly):
                next(watching)
            for event in watching:
                report.events.append(event)
                _note_pause(report, directory, name)
                if _is_end(report):
                    break
                if len(report.events) % every == 0:
                    report.connections += 1
                    if report.connections % 3 == 0:
                        break
                    assert watching._push._connection
                    watching._push._connection.interrupt()
            revision = watching.revision
            partly = sum(event.revision > revision for event in report.events[-1_000:])
    _leave(report, directory, name)


def _is_end(report: Watched) -> bool:
    return bool(report.events) and getattr(report.events[-1], "fragment_id", None) == END


def _note_pause(report: Watched, directory: str, name: str) -> None:
    """Touch a file if the last event is that of the pause between the rounds of the writers."""
    if getattr(report.events[-1], "fragment_id", None) == PAUSE:
        (Path(directory) / f"{name}.paused").touch()


def _ready(directory: str, name: str) -> None:
    (Path(directory) / f"{name}.ready").touch()


def _leave(report: Struct, directory: str, name: str) -> None:
    (Path(directory) / f"{name}.report").write_bytes(msgspec.msgpack.encode(report))


def read(directory: Path, name: str) -> Watched:
    """Return the report of a watcher."""
    return msgspec.msgpack.decode((directory / f"{name}.report").read_bytes(), type=Watched)


def read_written(directory: Path, number: int) -> Written:
    return msgspec.msgpack.decode((directory / f"writer-{number}.report").read_bytes(), type=Written)
