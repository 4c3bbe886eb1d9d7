"""The invariants of token pools."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from stepwell.domain.invariant_registry import invariant
from stepwell.domain.state import State


@invariant
def pools_agree_with_their_leases(state: State) -> Iterator[str]:
    """The index of sessions with tokens has each lease of each pool, and no lease is granted beyond its pool.

    A lease that is missing there would outlive its session, and hold its tokens for ever.
    """
    actual = defaultdict[str, Counter[str]](Counter)
    for pool in state.pools:
        for lease in pool.leases:
            actual[lease.session_id][pool.name] += 1
        if pool.spent_parts < 0 or len({lease.lease_id for lease in pool.leases}) < len(pool.leases):
            yield f"pool {pool.name} has impossible counters"
    if actual != state.pools.by_session:
        yield "tokens by session differ"
