"""Processes that append to one log, pop from it or follow it, and a twin that reads a fragment and stores it."""

from __future__ import annotations

import json
from collections.abc import Callable

from multiprocess.connection import Connection

import stepwell as sw

PROJECT, NAME = "p", "shared"


def append_many(address: str, number: int, rounds: int, told: Connection) -> None:
    """Append one to three entries at a time; report the text of each by its position."""
    appended: dict[int, str] = {}
    with sw.connect(address, projects=[PROJECT]) as client:
        log = client.log(NAME)
        for count in range(rounds):
            texts = [f"{number}-{count}-{each}" for each in range(1 + (number + count) % 3)]
            appended |= zip(log.append(*texts).positions, texts, strict=True)
    told.send(appended)


def pop_all(address: str, _number: int, start: Connection) -> None:
    """Pop until the log is empty, at the same time as all others; report what was popped."""
    with sw.connect(address, projects=[PROJECT]) as client:
        log = client.log(NAME)
        start.send(log.status().entries)
        start.recv()
        popped: list[tuple[int, str]] = []
        while (entry := log.pop()) is not None:
            popped.append((entry.position, entry.text))
        start.send(popped)


def append_at_head(address: str, number: int, rounds: int, told: Connection) -> None:
    """Append what follows from the last entry, at the head at which it was read; report the number of conflicts."""
    conflicts = 0
    with sw.connect(address, projects=[PROJECT]) as client:
        log = client.log(NAME)
        for _ in range(rounds):
            while True:
                found = log.last()
                value = int(found[0].text.split()[0]) if len(found) else 0
                try:
                    log.append(f"{value + 1} by {number}", expected_head=found.head)
                    break
                except sw.Conflict:
                    conflicts += 1
    told.send(conflicts)


def follow(address: str, _number: int, count: int, told: Connection) -> None:
    """Watch the log from its beginning until so many entries were seen; report all of them."""
    with sw.connect(address, projects=[PROJECT]) as client, client.log(NAME).watch(since=0) as watch:
        told.send("watching")
        seen: list[tuple[int, str]] = []
        for entry in watch:
            seen.append((entry.position, entry.text))
            if len(seen) == count:
                break
    told.send(seen)


def take_turns(address: str, number: int, way: str, turn: Connection) -> None:
    """In each round: read, tell, and when all others have read, append what was decided."""
    append = _WAYS[way]
    with sw.connect(address, projects=[PROJECT]) as client:
        while (count := turn.recv()) is not None:
            finish = append(client, f"{number}-{count}")
            turn.send("read")
            turn.recv()
            finish()
            turn.send("written")


def _to_log(client: sw.Client, text: str) -> Callable[[], object]:
    log = client.log(NAME)
    log.last()
    return lambda: log.append(text)


def _to_fragment(client: sw.Client, text: str) -> Callable[[], object]:
    """The unsynchronised twin: a list in a fragment that is read and stored."""
    try:
        before = json.loads(client.tiers.get(NAME).text)
    except sw.NotFound:
        before = []
    body = json.dumps([*before, text])
    return lambda: client.tiers.store(sw.Fragment(fragment_id=NAME, body=body, tokens=1))


_WAYS = {"log": _to_log, "fragment": _to_fragment}
