"""Fragments under pressure: stores of all kinds, reads, moves and deletions, singly, in batches and transactions."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TypeVar

import stepwell as sw
from stepwell.client.api.fragments import StoredFragment
from stepwell.client.session.calls import Pending
from stepwell.domain.replies import FragmentPlaced
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import OutcomeUnknown, StepwellError
from tests.simulator.oracle import Write
from tests.simulator.workloads.base import PROJECT, Actor

R = TypeVar("R")

KEYS = 24
_KEYS = [f"f{number}" for number in range(KEYS)]
SMALL_BYTES = (0, 0, 0, 16, 16, 160, 2_000)
LARGE_BYTES = (40_000, 70_000)  # the second is uploaded beside the frames


def _key(actor: Actor) -> str:
    return actor.random.choice(_KEYS)


def new_write(
    actor: Actor, fragment_id: str, transaction: int | None = None, partner: str | None = None
) -> tuple[Write, sw.Fragment]:
    """Return a new write, and its report. Its body is one that no other write of the key has."""
    size = actor.random.choice(SMALL_BYTES)
    if actor.random.random() < 0.01:
        size = actor.random.choice(LARGE_BYTES)
    body = f"{actor.unique()} ".encode() + b"0123456789abcdef" * (size // 16)
    if actor.random.random() < 0.1 and actor.oracle.is_new((PROJECT, fragment_id), actor.last_body):
        body = actor.last_body  # two fragments refer to one body
    actor.last_body = body
    metadata = {"by": str(actor.number)} if actor.random.random() < 0.2 else {}
    fragment = sw.Fragment(
        fragment_id=fragment_id, project=PROJECT, body=body, tokens=actor.random.randint(1, 9), metadata=metadata
    )
    write = Write((PROJECT, fragment_id), digest_of(body), transaction=transaction)
    write.partner = (PROJECT, partner) if partner else None
    actor.oracle.ask(write)
    return write, fragment


def settle(actor: Actor, write: Write, outcome: FragmentPlaced | StepwellError) -> None:
    """Report the outcome of a write."""
    if isinstance(outcome, OutcomeUnknown):
        actor.oracle.note_error("write", outcome)
        return
    if isinstance(outcome, StepwellError):
        write.is_refused = True
    else:
        actor.oracle.acknowledge(write, outcome.revision)


async def use_tiers(actor: Actor) -> None:
    """Do one operation on a fragment. A client without patience gives it up, and does not know its outcome."""
    if actor.random.random() < 0.1:
        with suppress(TimeoutError):
            async with asyncio.timeout(actor.random.choice((0.0, 0.000_05, 0.001))):
                await _use_fragment(actor)
    else:
        await _use_fragment(actor)


async def _use_fragment(actor: Actor) -> None:
    fragment_id, choice = _key(actor), actor.random.random()
    tiers = actor.client.tiers
    if choice < 0.45:
        write, fragment = new_write(actor, fragment_id)
        tier = actor.random.choice((sw.Tier.HOT, sw.Tier.HOT, sw.Tier.WARM, sw.Tier.COLD))
        try:
            settle(actor, write, await tiers.store(fragment, tier=tier))
        except StepwellError as error:
            settle(actor, write, error)
            raise
    elif choice < 0.8:
        await _read(actor, fragment_id)
    elif choice < 0.85:
        await tiers.promote(fragment_id, project=PROJECT)
    elif choice < 0.9:
        await tiers.demote(fragment_id, project=PROJECT)
    elif choice < 0.95:
        await _delete(actor, fragment_id)
    else:
        await tiers.evict_lru(count=actor.random.randint(1, 3))


async def _read(actor: Actor, fragment_id: str) -> None:
    key = (PROJECT, fragment_id)
    floor = actor.oracle.floors[key]
    try:
        found = await actor.client.tiers.get(fragment_id, project=PROJECT)
    except sw.NotFound:
        actor.oracle.check_absent(key, floor)
        raise
    check_found(actor, found, floor)
    _read_partner(actor, found)


def _read_partner(actor: Actor, found: StoredFragment) -> None:
    """Read the other fragment of the transaction that stored one, if it is in the index: it is not older."""
    key = actor.oracle.partner((PROJECT, found.fragment_id), found.row.digest)
    if key is None:
        return
    other = actor.client.tiers._peek_indexed(key[1], PROJECT)
    if other is not None:
        check_found(actor, other, max(found.revision, actor.oracle.floors[key]))


def check_found(actor: Actor, found: StoredFragment, floor: int) -> None:
    """Check a fragment that was read: its bytes are those of its digest, and the write was asked for."""
    if digest_of(bytes(found.body)) != found.row.digest:
        raise AssertionError(f"{found.fragment_id} has other bytes than its digest says")
    actor.oracle.check_read((PROJECT, found.fragment_id), floor, found.revision, found.row.digest)


async def _delete(actor: Actor, fragment_id: str) -> None:
    write = Write((PROJECT, fragment_id), None)
    floor = actor.oracle.floors[write.key]
    actor.oracle.ask(write)
    try:
        placed = await actor.client.tiers.delete(fragment_id, project=PROJECT)
    except OutcomeUnknown:
        raise
    except StepwellError:
        write.is_refused = True
        raise
    assert placed is not None
    actor.oracle.note_deleted(write.key, floor)


async def use_batch(actor: Actor) -> None:
    """Send many commands in one frame."""
    count = actor.random.choice((2, 20, 60, 200))
    writes: list[tuple[Write, Pending[FragmentPlaced]]] = []
    reads: list[tuple[str, int, Pending[StoredFragment]]] = []
    try:
        async with actor.client.batch() as batch:
            for _ in range(count):
                fragment_id = _key(actor)
                if actor.random.random() < 0.5:
                    write, fragment = new_write(actor, fragment_id)
                    writes.append((write, batch.tiers.store(fragment)))
                else:
                    floor = actor.oracle.floors[PROJECT, fragment_id]
                    reads.append((fragment_id, floor, batch.tiers.get(fragment_id, project=PROJECT)))
    except StepwellError as error:
        for write, _ in writes:
            if not isinstance(error, OutcomeUnknown):
                write.is_refused = True
        raise
    for write, placed in writes:
        settle(actor, write, _outcome(placed))
    for fragment_id, floor, stored in reads:
        found = _outcome(stored)
        if isinstance(found, sw.NotFound):
            continue  # another command of this batch may come between: only the end of the run can judge it
        if isinstance(found, StepwellError):
            raise found
        check_found(actor, found, min(floor, found.revision))
        assert found.fragment_id == fragment_id


def _outcome(pending: Pending[R]) -> R | StepwellError:
    try:
        return pending.result()
    except StepwellError as error:
        return error


async def use_transaction(actor: Actor) -> None:
    """Store two fragments at once; both at one revision, or none."""
    number = actor.process.machine.random.getrandbits(40)
    first, second = actor.random.sample(range(KEYS), 2)
    made = [new_write(actor, f"f{one}", number, f"f{other}") for one, other in ((first, second), (second, first))]
    pending = []
    try:
        async with actor.client.transaction() as transaction:
            for _, fragment in made:
                pending.append(transaction.tiers.store(fragment))
            if actor.random.random() < 0.2:  # refused as a whole
                transaction.tiers.promote("there is none", project=PROJECT)
    except OutcomeUnknown:
        raise
    except StepwellError:
        for write, _ in made:
            write.is_refused = True
        raise
    for (write, _), each in zip(made, pending, strict=True):
        settle(actor, write, each.result())
