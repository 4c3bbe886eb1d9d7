"""The state of programs: facts that are stored once, briefs that expire, sessions that reads keep alive, guards."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import stepwell as sw
from stepwell.domain.replies import FragmentPlaced
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import OutcomeUnknown, StepwellError
from tests.simulator.oracle import Write
from tests.simulator.workloads.base import PROJECT, Actor

FACTS = 3
GUARDED = 2
BRIEF_MS = (1, 100, 1_000, 10_000)
SESSION_MS = (100, 5_000)


async def use_state(actor: Actor) -> None:
    """Do one operation on the state of a program."""
    choice = actor.random.random()
    if choice < 0.2:
        await _store_fact(actor)
    elif choice < 0.4:
        await _store_brief(actor)
    elif choice < 0.7:
        await _read_brief(actor)
    elif choice < 0.8:
        await _use_session(actor)
    elif choice < 0.95:
        await _count_under_guard(actor)
    else:
        await _delete_nothing(actor)


async def _store(actor: Actor, fragment: sw.Fragment, *, unique: bool = False) -> FragmentPlaced:
    """Store a fragment, and report the write and its outcome. With an equal body elsewhere nothing is written."""
    assert isinstance(fragment.body, bytes)
    write = actor.oracle.ask(Write((PROJECT, fragment.fragment_id), digest_of(fragment.body)))
    try:
        placed = await actor.client.tiers.store(fragment, unique=unique)
    except OutcomeUnknown:
        raise
    except StepwellError:
        write.is_refused = True
        raise
    if placed.note is sw.types.Note.EQUAL_BODY:
        write.is_refused = True
    else:
        actor.oracle.acknowledge(write, placed.revision)
    return placed


async def _store_fact(actor: Actor) -> None:
    """Store a body that others store under other ids. It is kept, and so never deleted."""
    body = f"fact {actor.random.randrange(FACTS)}".encode()
    fragment = sw.Fragment(fragment_id=f"fact-{actor.unique()}", project=PROJECT, body=body, tokens=1, keep=True)
    placed = await _store(actor, fragment, unique=True)
    actor.oracle.note_fact(digest_of(body), placed.fragment_id)


async def _store_brief(actor: Actor) -> None:
    """Store a fragment that expires soon, and that no other client changes."""
    name = actor.unique()
    expires_at_ms = _now_ms() + actor.random.choice(BRIEF_MS)
    fragment = sw.Fragment(
        fragment_id=f"brief-{name}",
        project=PROJECT,
        body=f"brief {name}".encode(),
        tokens=1,
        keep=actor.random.random() < 0.3,
        expires_at_ms=expires_at_ms,
    )
    await _store(actor, fragment)
    actor.oracle.note_brief((PROJECT, fragment.fragment_id), expires_at_ms)


async def _read_brief(actor: Actor) -> None:
    """Read one of any client, by request or in shared memory: there until it expires, and absent from then on."""
    if not actor.oracle.briefs:
        return
    key = actor.random.choice([*actor.oracle.briefs][-8:])
    before_ms, found = _now_ms(), None
    tiers = actor.client.tiers
    with suppress(sw.NotFound):
        found = await (tiers.get if actor.random.random() < 0.7 else tiers.peek)(key[1], project=PROJECT)
    actor.oracle.check_brief(key, before_ms, _now_ms(), is_found=found is not None)
    if found is None:
        return
    actor.oracle.check_read(key, 0, found.revision, found.row.digest)
    left_ms = actor.oracle.briefs[key] - _now_ms()
    if 0 < left_ms <= BRIEF_MS[2] and actor.random.random() < 0.5:
        # Wait for the moment of its expiry, at which the manager may have nothing to do.
        await asyncio.sleep(left_ms / 1000)
        before_ms = _now_ms()
        is_found = tiers._peek_indexed(key[1], PROJECT) is not None
        if is_found or before_ms >= actor.oracle.briefs[key]:
            actor.oracle.check_brief(key, before_ms, _now_ms(), is_found=is_found)


async def _use_session(actor: Actor) -> None:
    """Store or read a fragment whose expiry reads move. After a crash it may expire earlier: only its body is known."""
    fragment_id = f"session{actor.random.randrange(2)}"
    if actor.random.random() < 0.5:
        body = f"session {actor.unique()}".encode()
        span_ms = actor.random.choice(SESSION_MS)
        await _store(
            actor,
            sw.Fragment(
                fragment_id=fragment_id, project=PROJECT, body=body, tokens=1, keep=True, expires_after_ms=span_ms
            ),
        )
        return
    with suppress(sw.NotFound):
        found = await actor.client.tiers.get(fragment_id, project=PROJECT)
        actor.oracle.check_read((PROJECT, fragment_id), 0, found.revision, found.row.digest)


async def _count_under_guard(actor: Actor) -> None:
    """Raise a counter in a transaction which requires that nobody came between."""
    fragment_id = f"guarded{actor.random.randrange(GUARDED)}"
    key = (PROJECT, fragment_id)
    floor = actor.oracle.floors[key]
    try:
        found = await actor.client.tiers.get(fragment_id, project=PROJECT)
        value, revision = int(found.text.split()[0]), found.revision
        actor.oracle.check_read(key, floor, revision, found.row.digest)
    except sw.NotFound:
        actor.oracle.check_absent(key, floor)
        value, revision = 0, 0
    body = f"{value + 1} by {actor.unique()}".encode()
    write = actor.oracle.ask(Write(key, digest_of(body)))
    try:
        async with actor.client.transaction() as transaction:
            transaction.require(fragment_id, revision=revision, project=PROJECT)
            fragment = sw.Fragment(fragment_id=fragment_id, project=PROJECT, body=body, tokens=1, keep=True)
            stored = transaction.tiers.store(fragment)
    except OutcomeUnknown:
        raise
    except StepwellError:
        write.is_refused = True
        raise
    placed = stored.result()
    actor.oracle.acknowledge(write, placed.revision)
    actor.oracle.note_step(key, value + 1, placed.revision)


async def _delete_nothing(actor: Actor) -> None:
    """Delete what was never there, which is no error."""
    removed = await actor.client.tiers.delete(f"none-{actor.unique()}", project=PROJECT, missing_ok=True)
    assert removed.tier is None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
