"""The judge of token pools: what clients were told of leases and uses, against the pools that the manager has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Container

    from stepwell.domain.state import State

POOL = "team"
POOL_TOKENS = 10_000


class PoolJudge:
    """Sums of what the clients asked to use, and of what was acknowledged. No client uses more than it has leased."""

    def __init__(self) -> None:
        self.asked = 0
        self.acknowledged = 0
        self.refused = 0

    def check(self, state: State, sessions: Container[str]) -> None:
        """Check after a turn: no pool has given away more than it has, and the sessions of all leases are there."""
        for pool in state.pools:
            if pool.spent + pool.leased > pool.tokens:
                raise Violation(f"pool {pool.name} of {pool.tokens} has {pool.leased} leased and {pool.spent} spent")
        for session_id in state.pools.by_session:
            if session_id not in sessions:
                raise Violation(f"the session {session_id} has ended, and holds tokens")

    def finish(self, state: State) -> None:
        """Check at the end: what was acknowledged is spent, and nothing that was refused or not asked for."""
        spent = sum(pool.spent for pool in state.pools)
        if not self.acknowledged <= spent <= self.asked - self.refused:
            raise Violation(
                f"{spent} tokens are spent, but {self.acknowledged} were acknowledged and at most "
                f"{self.asked - self.refused} used"
            )
