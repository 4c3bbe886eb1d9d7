"""The table of token pools, and of the sessions that hold tokens of them."""

from __future__ import annotations

from stepwell.domain.pools.model import TokenPool
from stepwell.domain.tables import SortedTable


class PoolTable(SortedTable[TokenPool]):
    """Pools by name; `by_session` has the names of the pools of which a session holds leases, with their number."""

    def __init__(self) -> None:
        super().__init__()
        self.by_session: dict[str, dict[str, int]] = {}

    def swap(self, before: TokenPool | None, after: TokenPool | None) -> None:
        """Replace a pool, and update the index."""
        super().swap(before, after)
        for lease in before.leases if before else ():
            assert before is not None
            self._count(lease.session_id, before.name, -1)
        for lease in after.leases if after else ():
            assert after is not None
            self._count(lease.session_id, after.name, 1)

    def of_session(self, session_id: str) -> tuple[TokenPool, ...]:
        """Return the pools of which a session holds leases."""
        return tuple(self.rows[name] for name in self.by_session.get(session_id, ()))

    def _count(self, session_id: str, name: str, by: int) -> None:
        names = self.by_session.setdefault(session_id, {})
        names[name] = names.get(name, 0) + by
        if not names[name]:
            del names[name]
        if not names:
            del self.by_session[session_id]
