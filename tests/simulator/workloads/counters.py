"""Counters that are raised by compare-and-set: every acknowledged step counts once, and no other does."""

from __future__ import annotations

import stepwell as sw
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import OutcomeUnknown, StepwellError
from tests.simulator.oracle import Write
from tests.simulator.workloads.base import PROJECT, Actor

COUNTERS = 2


async def increment(actor: Actor) -> None:
    """Read a counter and store it plus one, if no other client came between."""
    fragment_id = f"counter{actor.random.randrange(COUNTERS)}"
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
    write = Write(key, digest_of(body))
    actor.oracle.ask(write)
    fragment = sw.Fragment(fragment_id=fragment_id, project=PROJECT, body=body, tokens=1)
    try:
        placed = await actor.client.tiers.store(fragment, expected_revision=revision)
    except OutcomeUnknown:
        raise
    except StepwellError:
        write.is_refused = True
        raise
    actor.oracle.acknowledge(write, placed.revision)
    actor.oracle.note_step(key, value + 1, placed.revision)
