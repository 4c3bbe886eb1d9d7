"""The lifecycle of a plan as data: four tables that map (event, position) to the next position.

A pair that is not in a table is illegal. The tables are the single source of the lifecycle: `transitions.transition`
looks events up in them, the exhaustive test tries every event at every position against them, and the diagram in
ARCHITECTURE.md is generated from them. The four tables are disjoint and differ in their side effects: `RETRY` and
`REVERSION` begin another attempt, `PROGRESS` and `ROLLBACK` do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Final, NamedTuple

from stepwell.domain.plans.model import Phase, PlanState, Position
from stepwell.text import PlainEnum

_QUEUED, _PROCESSING, _COMPLETE = PlanState.QUEUED, PlanState.PROCESSING, PlanState.COMPLETE
_ERRORED, _CANCELLED = PlanState.ERRORED, PlanState.CANCELLED


class PlanEvent(PlainEnum):
    """The events that can change the position of a plan.

    The names of the events for one phase are built from a verb and the phase, such as `start_execute`.
    """

    START_STRATEGIZE = "start_strategize"
    START_EXECUTE = "start_execute"
    START_APPLY = "start_apply"
    COMPLETE_STRATEGIZE = "complete_strategize"
    COMPLETE_EXECUTE = "complete_execute"
    COMPLETE_APPLY = "complete_apply"
    CONSTRAIN_APPLY = "constrain_apply"
    FAIL_STRATEGIZE = "fail_strategize"
    FAIL_EXECUTE = "fail_execute"
    FAIL_APPLY = "fail_apply"
    EXECUTE_PLAN = "execute_plan"
    APPLY_PLAN = "apply_plan"
    RENEW_LEASE = "renew_lease"
    CANCEL_PLAN = "cancel_plan"
    LOSE_LEASE = "lose_lease"
    RETRY_PLAN = "retry_plan"
    REVERT_PLAN = "revert_plan"
    ROLL_BACK_PLAN = "roll_back_plan"


Table = Mapping[tuple[PlanEvent, Position], Position]

POSITIONS = tuple(
    Position(phase, state)
    for phase, state in product(Phase, PlanState)
    if phase is Phase.APPLY or state not in {PlanState.APPLIED, PlanState.CONSTRAINED}
    if (phase, state) != (Phase.APPLY, _COMPLETE)
)
"""Every position that a plan can have. An apply ends in `applied` or `constrained`, never in `complete`."""

START = Position(Phase.STRATEGIZE, _QUEUED)
"""The position of a new plan."""
TERMINAL = frozenset({Position(phase, _CANCELLED) for phase in Phase} | {Position(Phase.APPLY, PlanState.APPLIED)})
"""The positions that a plan never leaves. An applied plan can still be rolled back, which does not move it."""
TERMINAL_STATES = frozenset({at.state for at in TERMINAL})
"""The states of these positions. No other position has one of them."""


def _each_phase(verb: str, source: PlanState, target: PlanState) -> dict[tuple[PlanEvent, Position], Position]:
    """Return the entries of a table for an event that exists once for each phase."""
    return {(PlanEvent(f"{verb}_{phase}"), Position(phase, source)): Position(phase, target) for phase in Phase}


_APPLYING = Position(Phase.APPLY, _PROCESSING)

PROGRESS: Table = {
    **_each_phase("start", _QUEUED, _PROCESSING),
    # This adds (complete_apply, apply/processing) too; the entry below overwrites it, because an apply ends as applied.
    **_each_phase("complete", _PROCESSING, _COMPLETE),
    **_each_phase("fail", _PROCESSING, _ERRORED),
    (PlanEvent.COMPLETE_APPLY, _APPLYING): Position(Phase.APPLY, PlanState.APPLIED),
    (PlanEvent.CONSTRAIN_APPLY, _APPLYING): Position(Phase.APPLY, PlanState.CONSTRAINED),
    (PlanEvent.EXECUTE_PLAN, Position(Phase.STRATEGIZE, _COMPLETE)): Position(Phase.EXECUTE, _QUEUED),
    (PlanEvent.APPLY_PLAN, Position(Phase.EXECUTE, _COMPLETE)): Position(Phase.APPLY, _QUEUED),
    **{(PlanEvent.RENEW_LEASE, Position(p, _PROCESSING)): Position(p, _PROCESSING) for p in Phase},
    **{(PlanEvent.CANCEL_PLAN, at): Position(at.phase, _CANCELLED) for at in POSITIONS if at not in TERMINAL},
}
"""The events that move a plan forward or cancel it."""

RETRY: Table = {
    **{(PlanEvent.RETRY_PLAN, Position(p, _ERRORED)): Position(p, _QUEUED) for p in Phase},
    **{(PlanEvent.LOSE_LEASE, Position(p, _PROCESSING)): Position(p, _QUEUED) for p in Phase},
}
"""The events that queue the same phase again, as another attempt."""

REVERSION: Table = {
    (PlanEvent.REVERT_PLAN, at): START for at in POSITIONS if at.phase is not Phase.STRATEGIZE and at not in TERMINAL
}
"""The events that lead back to the start, as another attempt."""

_APPLIED = Position(Phase.APPLY, PlanState.APPLIED)

ROLLBACK: Table = {(PlanEvent.ROLL_BACK_PLAN, _APPLIED): _APPLIED}
"""The event that undoes an applied plan. The plan stays `applied`, because it was: only its `rolled_back` field
changes.
"""

LEGAL: Table = {**PROGRESS, **RETRY, **REVERSION, **ROLLBACK}
"""All four tables as one."""


class Step(NamedTuple):
    """The effect of an event at a position: the entry of `LEGAL`, and what follows from it for the plan."""

    phase: Phase
    state: PlanState
    phase_name: str
    """The key of the phase in a plan's times."""
    is_new_attempt: bool
    is_reversion: bool
    is_executed_again: bool
    """True if the plan is going to execute again, so that its children have to be merged again."""


def _step(event: PlanEvent, at: Position, target: Position) -> Step:
    """Return an entry of `LEGAL` as a step."""
    is_new_attempt = (event, at) in RETRY or (event, at) in REVERSION
    is_executed_again = is_new_attempt and (at.phase is Phase.EXECUTE or target.phase is Phase.STRATEGIZE)
    return Step(*target, str(target.phase), is_new_attempt, (event, at) in REVERSION, is_executed_again)


STEPS: Final[Mapping[tuple[PlanEvent, Phase, PlanState], Step]] = {
    (event, at.phase, at.state): _step(event, at, target) for (event, at), target in LEGAL.items()
}
"""`LEGAL` by event, phase and state: a transition finds all that it needs in one lookup."""

STARTS: Final = {phase: PlanEvent(f"start_{phase}") for phase in Phase}
COMPLETES: Final = {phase: PlanEvent(f"complete_{phase}") for phase in Phase}
FAILS: Final = {phase: PlanEvent(f"fail_{phase}") for phase in Phase}
"""The events that start, complete and fail each phase."""
