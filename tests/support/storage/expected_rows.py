"""The rows that have to be on the disk, in plain values, and the comparison with a state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stepwell.domain.events import AnyEvent
from stepwell.domain.state import State
from stepwell.domain.tiers.model import FragmentRow, Tier
from stepwell.storage import rows
from stepwell.storage.store import SessionRow
from stepwell.storage.table import Values

Key = tuple[str, str]
Use = tuple[FragmentRow, Values]


@dataclass
class ExpectedRows:
    """The rows that were committed last."""

    revision: int = 0
    next_serial: int = 1
    tables: dict[str, object] = field(default_factory=dict)
    uses: dict[Key, Use] = field(default_factory=dict)
    bodies: frozenset[bytes] = frozenset()
    staged: frozenset[bytes] = frozenset()  # bodies that may be there too
    events: list[AnyEvent] = field(default_factory=list)
    sessions: dict[str, SessionRow] = field(default_factory=dict)
    replies: dict[tuple[str, int], bytes] = field(default_factory=dict)

    def compare(self, state: State) -> None:
        """Assert that the state has these rows, and each fragment at its place in its tier's order."""
        table = state.fragments
        assert (state.revision, table.next_serial) == (self.revision, self.next_serial)
        assert tables_of(state) == self.tables
        for tier in Tier:
            found = [(entry.row, rows.use_values(entry)) for entry in table.oldest(tier)]
            assert found == _ordered(self.uses.values(), tier)


def tables_of(state: State) -> dict[str, object]:
    """All rows but those of fragments."""
    return {
        "budget": state.budget,
        "actions": dict(state.actions.rows),
        "plans": dict(state.plans.rows),
        "decisions": dict(state.decisions.rows),
        "contexts": dict(state.contexts.rows),
        "changesets": dict(state.changesets.rows),
        "entries": {name: list(found) for name, found in state.entries.by_changeset.items()},
        "receipts": dict(state.receipts.rows),
        "pools": dict(state.pools.rows),
        "logs": dict(state.logs.rows),
        "log entries": {serial: [*run] for serial, run in state.logs.entries.by_log.items()},
        "tickets": dict(state.tickets.rows),
    }


def _ordered(uses: Iterable[Use], tier: Tier) -> list[Use]:
    """As a tier has them, the least recently used first."""
    return sorted((each for each in uses if each[0].tier is tier), key=_tick)


def _tick(use: Use) -> int:
    tick = use[1][0]
    assert isinstance(tick, int)
    return tick
