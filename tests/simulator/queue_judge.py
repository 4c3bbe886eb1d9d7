"""The judge of queues of applies: a sequential model, which the committed events drive, has the same places.

It knows of a ticket when it came and with which priority, and of a plan whether it is being applied.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import msgspec

from stepwell.domain import events
from stepwell.domain.plans.model import Phase, PlanState
from tests.simulator.violation import Violation


class Waiting(msgspec.Struct):
    """A ticket in the model: `order` counts the tickets, `place` is what its caller was told last."""

    plan_id: str
    tree: str
    priority: int
    order: int
    place: int


class QueueJudge:
    """Applies events, revision by revision."""

    def __init__(self) -> None:
        self.plans: dict[int, str] = {}  # the plan that each actor applies
        self._tickets: dict[str, Waiting] = {}
        self._at_work: set[str] = set()
        self._came = 0

    def finish(self, committed: Iterable[events.AnyEvent]) -> None:
        """Check all places, and that no plan has overtaken another one."""
        for revision, step in groupby(committed, key=lambda event: event.revision):
            ranked = self._ranked()
            began = self._apply(step)
            for plan_id in began:
                self._check_turn(revision, plan_id, ranked)
            self._check_places(revision)

    def _apply(self, step: Iterable[events.AnyEvent]) -> list[str]:
        """Apply the events of a revision, and return the plans that began."""
        began: list[str] = []
        for event in step:
            if isinstance(event, events.PlanMoved):
                self._at_work.discard(event.plan_id)
                if (event.phase, event.state) == (Phase.APPLY, PlanState.PROCESSING):
                    self._at_work.add(event.plan_id)
                    began.append(event.plan_id)
            elif isinstance(event, events.ApplyPlaceChanged):
                self._note_place(event)
        return began

    def _note_place(self, event: events.ApplyPlaceChanged) -> None:
        if event.place is None:
            del self._tickets[event.ticket_id]
        elif (known := self._tickets.get(event.ticket_id)) is not None:
            known.place = event.place
        else:
            self._came += 1
            ticket = Waiting(event.plan_id, event.tree, event.priority, self._came, event.place)
            self._tickets[event.ticket_id] = ticket

    def _ranked(self) -> dict[str, list[str]]:
        """Return the plans of each tree in the order of their turns."""
        tickets = sorted(
            self._tickets.values(), key=lambda each: (each.plan_id not in self._at_work, -each.priority, each.order)
        )
        ranked: dict[str, dict[str, None]] = {}
        for each in tickets:
            ranked.setdefault(each.tree, {})[each.plan_id] = None
        return {tree: [*plans] for tree, plans in ranked.items()}

    def _check_turn(self, revision: int, plan_id: str, ranked: dict[str, list[str]]) -> None:
        """Check that the first plan which waited for the tree has begun. Each start of a workload names its tree."""
        tree = next((each.tree for each in self._tickets.values() if each.plan_id == plan_id), None)
        others = self._at_work - {plan_id}
        waited = [each for each in ranked.get(tree or "", []) if each not in others]
        if waited and waited[0] != plan_id:
            raise Violation(f"plan {plan_id} has begun at revision {revision}, and {waited[0]} was before it")

    def _check_places(self, revision: int) -> None:
        ranked = self._ranked()
        for ticket_id, each in self._tickets.items():
            place = ranked[each.tree].index(each.plan_id) + 1
            if each.place != place:
                raise Violation(f"ticket {ticket_id} was told place {each.place} at {revision}, and is at {place}")
