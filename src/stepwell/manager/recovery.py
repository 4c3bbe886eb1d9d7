"""Recovery: from what a store kept to a state that can be served, or a report of what is wrong with it.

Nothing is mended in silence: what does not hold is said, with what and where, and the directory is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stepwell.domain.invariants import BUDGET, check
from stepwell.domain.state import State
from stepwell.errors import StoreDamaged
from stepwell.manager.journal import Journal
from stepwell.memory.writer.body_store import BodyStore
from stepwell.storage.store import StoredState

_SHOWN: Final = 5


def recover(kept: StoredState) -> State:
    """The state that was committed last. Its invariants hold, but that of budgets: those may be others now."""
    state = State()
    try:
        state.restore(kept.revision, kept.rows, kept.fragments, kept.next_serial, kept.tick)
    except (LookupError, ValueError, AssertionError) as error:
        raise StoreDamaged(f"the data directory does not hold together ({error!r}): see `stepwell doctor`") from error
    if problems := [*duplicates(state, kept), *missing_bodies(state, kept), *check(state, but=(BUDGET,))]:
        more = f", and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise StoreDamaged(
            f"the data directory does not hold together: {'; '.join(problems[:_SHOWN])}{more}; it was left as it is: "
            "see `stepwell doctor`, and restore a backup"
        )
    return state


def duplicates(state: State, kept: StoredState) -> Iterator[str]:
    """Fragments and bodies that are there twice."""
    for entry in kept.fragments if len(state.fragments) < len(kept.fragments) else ():
        if state.fragments.entries[entry.row.key] is not entry:
            yield f"fragment {entry.row.key} is there twice"
    seen: set[bytes] = set()
    for body, _ in kept.bodies:
        if body.digest in seen:
            yield f"body {body.digest.hex()} is there twice"
        seen.add(body.digest)


def missing_bodies(state: State, kept: StoredState) -> Iterator[str]:
    """Bodies that something refers to and that are not there, or not as they were."""
    sizes = {body.digest: body.size for body, _ in kept.bodies}
    for digest, count in state.bodies.counts.items():
        size = sizes.get(digest)
        if size != count.size:
            found = "is not there" if size is None else f"has {size} bytes"
            yield f"body {digest.hex()} of {count.size} bytes {found}"


def restore_bodies(kept: StoredState, state: State, bodies: BodyStore, journal: Journal) -> None:
    """Every body is in the vault. Those that nothing refers to, of uploads that nobody came to take, go."""
    for body, packed_bytes in kept.bodies:
        if body.digest in state.bodies:
            bodies.restore(body.digest, body.size, packed_bytes, packed=body.packed)
        else:
            journal.drop(body.digest)
