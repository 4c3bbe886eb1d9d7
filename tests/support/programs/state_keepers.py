"""Processes that share the state of a program: they store equal bodies, count, poll, and read what expires."""

from __future__ import annotations

import time

from multiprocess.connection import Connection

import stepwell as sw

PROJECT = "p"
COUNTER = "counter"
POLLED = "polled"
BRIEF = "brief"
"""A fragment that expires at a time that is known."""
SLIDING = "sliding"


def store_equal(address: str, number: int, turn: Connection) -> None:
    """On each signal, store the same body at the same time as all others; report the reply."""
    with sw.connect(address, [PROJECT]) as client:
        while (round_ := turn.recv()) is not None:
            name, is_unique = round_
            fragment = sw.Fragment(fragment_id=f"{name}/{number}", body=f"body of {name}", tokens=1)
            placed = client.tiers.store(fragment, unique=is_unique)
            turn.send((placed.fragment_id, placed.note is sw.types.Note.EQUAL_BODY))


def count_up(address: str, number: int, turn: Connection) -> None:
    """Count to a number with all others, each step guarded by `require`; report how often that was refused."""
    with sw.connect(address, [PROJECT]) as client:
        while (times := turn.recv()) is not None:
            refused = 0
            for count in range(times):
                while not _count_once(client, f"step/{number}/{count}"):
                    refused += 1
            turn.send(refused)


def _count_once(client: sw.Client, step: str) -> bool:
    """Read the counter, and write the next number only if no other process has done that since."""
    seen = client.tiers.get(COUNTER)
    try:
        with client.transaction() as transaction:
            transaction.require(COUNTER, revision=seen.revision)
            transaction.tiers.store(sw.Fragment(fragment_id=step, body=step, tokens=1, keep=True))
            transaction.tiers.store(sw.Fragment(fragment_id=COUNTER, body=str(int(seen.text) + 1), keep=True))
    except sw.TransactionAborted as error:
        if error.details != {"index": 0, "cause": "Conflict"}:
            raise
        return False
    return True


def poll(address: str, _number: int, turn: Connection) -> None:
    """On each signal, read a fragment as often as is said, by request and in shared memory."""
    with sw.connect(address, [PROJECT]) as client:
        while (times := turn.recv()) is not None:
            for _ in range(times):
                client.tiers.get(POLLED)
            turn.send(client.tiers.get(POLLED).access_count)


def read_until_absent(address: str, _number: int, turn: Connection) -> None:
    """Read what expires until it is absent, and somewhat longer; report the reads, and what came at a wrong time."""
    with sw.connect(address, [PROJECT]) as client:
        while (round_ := turn.recv()) is not None:
            expires_at_ms, longer = round_
            wrong: list[str] = []
            reads = indexed = 0
            while longer:
                before_ms = _now_ms()
                is_indexed = client.tiers._peek_indexed(BRIEF, PROJECT) is not None
                is_there = _is_there(client, BRIEF) if reads % 2 else _is_required(client, BRIEF)
                after_ms = _now_ms()
                if (is_there or is_indexed) and before_ms >= expires_at_ms:
                    wrong.append(f"there {before_ms - expires_at_ms} ms after its expiry")
                if not is_there and after_ms < expires_at_ms:
                    wrong.append(f"absent {expires_at_ms - after_ms} ms before its expiry")
                reads, indexed, longer = reads + 1, indexed + is_indexed, longer - (not is_there)
            turn.send((reads, indexed, wrong))


def read_what_slides(address: str, _number: int, turn: Connection) -> None:
    """Read a fragment whose expiry reads move: absent only if this process has not read it for so long."""
    with sw.connect(address, [PROJECT]) as client:
        while (round_ := turn.recv()) is not None:
            slide_ms, until_ms = round_
            wrong: list[str] = []
            read_ms, reads = _now_ms(), 0
            while (before_ms := _now_ms()) < until_ms:
                if not _is_there(client, SLIDING):
                    if (idle_ms := _now_ms() - read_ms) < slide_ms:
                        wrong.append(f"absent {idle_ms} ms after a read")
                    break
                read_ms, reads = before_ms, reads + 1
            turn.send((reads, wrong))


def _is_there(client: sw.Client, name: str) -> bool:
    try:
        client.tiers.get(name)
    except sw.NotFound:
        return False
    return True


def _is_required(client: sw.Client, name: str) -> bool:
    """The same by a request in any case."""
    try:
        client.tiers.require(name, revision=0)
    except sw.Conflict:
        return True
    return False


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
