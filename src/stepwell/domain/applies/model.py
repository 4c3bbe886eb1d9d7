"""`ApplyTicket`, the stored value of the subject, and the refusal of a plan that would overtake others."""

from __future__ import annotations

from msgspec import Struct

from stepwell.errors import TreeQueued
from stepwell.text import brief_repr, plural


class ApplyTicket(Struct, frozen=True, array_like=True):
    """A caller's place in the queue of a tree. A plan has as many tickets as callers that wait to apply it.

    `place` counts plans, from 1 on: tickets of one plan have the same. `revision` is that of the step in which the
    caller joined. `turn_until_ms` is the time by which the plan at the first place has to begin, or the caller has to
    ask again; None if it is not its turn, or if it is being applied.
    """

    ticket_id: str
    tree: str
    plan_id: str
    session_id: str
    priority: int
    joined_at_ms: int
    revision: int
    place: int
    turn_until_ms: int | None = None

    __repr__ = brief_repr

    @property
    def key(self) -> str:
        return self.ticket_id


def queued_error(tree: str, plan_id: str, place: int, plans: int, first_plan_id: str | None = None) -> TreeQueued:
    """Return the refusal of a plan for which other plans wait, at the place that it has or would have."""
    return TreeQueued(
        f"{plural(plans, 'plan is', 'plans are')} in the queue of {tree!r}, and plan {plan_id!r} would be number "
        f"{place}: join the queue with apply(wait=True), or try again later",
        tree=tree,
        place=place,
        plans=plans,
        first_plan_id=first_plan_id,
    )
