"""The table of tickets, with its indexes: by tree, plan and session, and by the end of a turn."""

from __future__ import annotations

from sortedcontainers import SortedList

from stepwell.domain.applies.model import ApplyTicket
from stepwell.domain.tables import Table


class TicketTable(Table[ApplyTicket]):
    """Tickets by id. Owned by the `State`; deciders only read it, and `swap` keeps all indexes in agreement."""

    def __init__(self) -> None:
        super().__init__()
        self.by_tree: dict[str, set[str]] = {}
        self.by_plan: dict[str, set[str]] = {}
        self.by_session: dict[str, set[str]] = {}
        self.by_turn: SortedList[tuple[int, str]] = SortedList()

    def swap(self, before: ApplyTicket | None, after: ApplyTicket | None) -> None:
        """Replace a ticket by its successor, which has the same tree, plan and session, and update all indexes."""
        super().swap(before, after)
        if before is None and after is not None:
            for index, key in self._indexes_of(after):
                index.setdefault(key, set()).add(after.ticket_id)
        elif before is not None and after is None:
            for index, key in self._indexes_of(before):
                index[key].discard(before.ticket_id)
                if not index[key]:
                    del index[key]
        if before is not None and before.turn_until_ms is not None:
            self.by_turn.remove((before.turn_until_ms, before.ticket_id))
        if after is not None and after.turn_until_ms is not None:
            self.by_turn.add((after.turn_until_ms, after.ticket_id))

    def queue(self, tree: str) -> list[ApplyTicket]:
        """Return the tickets of a tree in order of their places."""
        return sorted((self.rows[each] for each in self.by_tree.get(tree, ())), key=_order)

    def of_plan(self, plan_id: str) -> list[ApplyTicket]:
        """Return the tickets of a plan, in order of joining."""
        return sorted((self.rows[each] for each in self.by_plan.get(plan_id, ())), key=_order)

    def of_session(self, session_id: str) -> list[ApplyTicket]:
        """Return the tickets of a session, in order of id."""
        return [self.rows[each] for each in sorted(self.by_session.get(session_id, ()))]

    @property
    def next_expiry_ms(self) -> int | None:
        """The time at which the first turn ends; None if it is no plan's turn."""
        return self.by_turn[0][0] if self.by_turn else None

    def _indexes_of(self, ticket: ApplyTicket) -> tuple[tuple[dict[str, set[str]], str], ...]:
        return (
            (self.by_tree, ticket.tree),
            (self.by_plan, ticket.plan_id),
            (self.by_session, ticket.session_id),
        )


def _order(ticket: ApplyTicket) -> tuple[int, int, str]:
    return ticket.place, ticket.revision, ticket.ticket_id
