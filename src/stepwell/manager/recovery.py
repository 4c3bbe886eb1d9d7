"""Recovery: from the stored rows to a state that can be served, or an error that says what is wrong with them.

Recovery never repairs silently. Where rows contradict each other, `StoreDamaged` names the problems and the data
directory is left unchanged, so that `stepwell doctor` can examine it and a backup can be restored. The budget is the
one invariant that may be violated: the manager may be started with a smaller budget than before, and enforces it
afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

from stepwell import limits
from stepwell.domain.invariants import BUDGET, check
from stepwell.domain.state import State
from stepwell.errors import StoreDamaged
from stepwell.manager.journal import Journal
from stepwell.memory.writer.body_store import BodyStore
from stepwell.storage.store import StoredState
from stepwell.text import plural


def recover(stored: StoredState) -> State:
    """Return the state that was committed last. Raise `StoreDamaged` if its rows do not satisfy the invariants.

    A few problems are named in the message, and the doctor lists them all. Restoring may fail at rows that contradict
    each other before any check runs; that is reported as damage too.
    """
    state = State()
    try:
        state.restore(stored.revision, stored.rows, stored.fragments, stored.next_serial, stored.tick)
    except (LookupError, ValueError, AssertionError) as error:
        raise StoreDamaged(f"the data directory is inconsistent ({error!r}): see `stepwell doctor`") from error
    if problems := [*duplicates(state, stored), *missing_bodies(state, stored), *check(state, but=(BUDGET,))]:
        hidden = len(problems) - limits.PROBLEMS_SHOWN
        more = f", and {hidden} more" if hidden > 0 else ""
        raise StoreDamaged(
            f"the data directory is inconsistent: {'; '.join(problems[: limits.PROBLEMS_SHOWN])}{more}; "
            "it was left as it is: see `stepwell doctor`, and restore a backup"
        )
    return state


def duplicates(state: State, stored: StoredState) -> Iterator[str]:
    """Yield a problem for each fragment and each body that exists twice."""
    for entry in stored.fragments if len(state.fragments) < len(stored.fragments) else ():
        if state.fragments.find(*entry.row.key) is not entry:
            yield f"fragment {entry.row.key} is there twice"
    seen: set[bytes] = set()
    for body, _ in stored.bodies:
        if body.digest in seen:
            yield f"body {body.digest.hex()} is there twice"
        seen.add(body.digest)


def missing_bodies(state: State, stored: StoredState) -> Iterator[str]:
    """Yield a problem for each body that a row refers to and that does not exist, or has another size."""
    sizes = {body.digest: body.size for body, _ in stored.bodies}
    for digest, count in state.bodies.counts.items():
        size = sizes.get(digest)
        if size != count.size:
            found = "is not there" if size is None else f"has {plural(size, 'byte')}"
            yield f"body {digest.hex()} of {plural(count.size, 'byte')} {found}"


def restore_bodies(stored: StoredState, state: State, bodies: BodyStore, journal: Journal) -> None:
    """Register the stored bodies with the body store. Bodies without a reference, left by unused uploads, are deleted.

    No bytes are read here. A hot or warm body comes into memory by background work, and is readable from the store
    meanwhile.
    """
    for body, packed_bytes in stored.bodies:
        if body.digest in state.bodies:
            bodies.restore(body.digest, body.size, packed_bytes, packed=body.packed)
        else:
            journal.drop(body.digest)
