"""Sequential specifications: the result that each call must have if the calls are made one at a time.

A model is a function from a state and a recorded call to the next state, or None if the outcome contradicts the state.
The models say nothing about revisions, leases or tiers: only values and outcomes, which a caller can see.

A call without an answer is given to a model as well. The model then returns the state after its effect, or None if it
would have none: that it never took effect is up to the search.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import product
from typing import Final, Protocol, TypeVar

from stepwell.prove.history import (
    Accepted,
    AnyCall,
    Declined,
    DeleteCall,
    LogAppendCall,
    LogPopCall,
    LogReadCall,
    NoAnswer,
    Observed,
    PlanReadCall,
    PlanStepCall,
    RecordedCall,
    ReplaceCall,
    TransactCall,
    keys_of,
    writes_of,
)

S = TypeVar("S", bound=Hashable)

Values = tuple[str | None, ...]
Effect = tuple[str, str | None]
FragmentState = tuple[Values, int]
"""The value of each key, and the number of writes that the watch has shown by then."""
Holder = tuple[int, int] | None
PlanPosition = tuple[str, Holder]
"""The position of a plan, and the lane that holds its lease."""

_OTHER: Final = "(another value)"


class Model(Protocol[S]):
    """The specification of one partition of a history."""

    def initial(self) -> S:
        """Return the state before the first call."""
        ...

    def any_states(self, calls: Iterable[RecordedCall]) -> Iterable[S]:
        """Return all states in which a later part of a history may begin, as far as these calls can tell."""
        ...

    def step(self, state: S, recorded: RecordedCall) -> S | None:
        """Return the state after a call; None if its outcome is impossible in the state."""
        ...

    def is_final(self, state: S) -> bool:
        """Return True if a history may end in the state."""
        ...


class FragmentModel:
    """Values by key: stores, compare-and-set, deletions, reads, and transactions over several keys.

    With `watched`, the order of the writes that a watch has shown, the writes must take effect in exactly this order.
    If the watch is complete, all of them must have taken effect in the end.
    """

    def __init__(self, keys: Sequence[str], watched: Sequence[Effect] | None = None) -> None:
        self._index: Final = {key: number for number, key in enumerate(keys)}
        self._watched: Final = None if watched is None else tuple(watched)

    def initial(self) -> FragmentState:
        """Return the state without any value."""
        return (None,) * len(self._index), 0

    def any_states(self, calls: Iterable[RecordedCall]) -> Iterable[FragmentState]:
        """Return all combinations of the values that the calls mention, of no value, and of another value."""
        mentioned: dict[str, dict[str | None, None]] = {key: {None: None, _OTHER: None} for key in self._index}
        for recorded in calls:
            for key, value in (*observations(recorded), *writes_of(recorded.call)):
                mentioned[key][value] = None
        return ((values, 0) for values in product(*mentioned.values()))

    def is_final(self, state: FragmentState) -> bool:
        """Return True unless the watch has shown a write that has not taken effect."""
        return self._watched is None or state[1] == len(self._watched)

    def step(self, state: FragmentState, recorded: RecordedCall) -> FragmentState | None:
        """Return the state after a call; None if its outcome is impossible."""
        values = state[0]
        call = recorded.call
        match recorded.outcome:
            case Observed(found):
                return state if found == tuple(values[self._index[key]] for key in keys_of(call)) else None
            case Declined():
                return None if self._is_allowed(values, call) else state
            case Accepted() | NoAnswer():
                return self._written(state, writes_of(call)) if self._is_allowed(values, call) else None
            case _:
                return state

    def _is_allowed(self, values: Values, call: AnyCall) -> bool:
        """Return True if the call must be accepted in this state."""
        match call:
            case ReplaceCall():
                return values[self._index[call.key]] == call.expected
            case DeleteCall():
                return values[self._index[call.key]] is not None
            case TransactCall():
                return all(self._is_allowed(values, write) for write in call.writes)
            case _:
                return True

    def _written(self, state: FragmentState, effects: Sequence[Effect]) -> FragmentState | None:
        """Return the state after writes; None if the watch has shown others at this place."""
        values, position = [*state[0]], state[1]
        for key, value in effects:
            values[self._index[key]] = value
        if self._watched is None:
            return tuple(values), position
        end = position + len(effects)
        return (tuple(values), end) if self._watched[position:end] == tuple(effects) else None


_PHASES: Final = ("strategize", "execute")
_ENDED: Final = "cancelled"

PLAN_START: Final = "strategize/queued"
PLAN_STEPS: Final[Mapping[str, Mapping[str, str]]] = {
    **{f"start_{phase}": {f"{phase}/queued": f"{phase}/processing"} for phase in _PHASES},
    **{f"complete_{phase}": {f"{phase}/processing": f"{phase}/complete"} for phase in _PHASES},
    "execute_plan": {"strategize/complete": "execute/queued"},
    "cancel_plan": {
        f"{phase}/{state}": f"{phase}/{_ENDED}" for phase in _PHASES for state in ("queued", "processing", "complete")
    },
}
"""For each step, the positions from which it is allowed, and where it leads. Written down here a second time, and not
taken from the manager's own tables, because a judge that reads them would repeat their mistakes."""


class PlanModel:
    """The life of one plan: of several callers that take the same step one succeeds.

    A completion needs the lease, which the caller of the start got. No lease ends by time during a run, because the
    workload asks for leases that outlast it.
    """

    def initial(self) -> PlanPosition:
        """Return the position of a new plan."""
        return PLAN_START, None

    def any_states(self, calls: Iterable[RecordedCall]) -> Iterable[PlanPosition]:
        """Return every position, held by each of the lanes that made a call."""
        lanes: dict[Holder, None] = {None: None, **{each.lane: None for each in calls}}
        positions = {
            PLAN_START: None,
            **{p: None for step in PLAN_STEPS.values() for pair in step.items() for p in pair},
        }
        return product(positions, lanes)

    def is_final(self, state: PlanPosition) -> bool:  # noqa: ARG002 - see `Model`
        """Return True: a plan may be left anywhere."""
        return True

    def step(self, state: PlanPosition, recorded: RecordedCall) -> PlanPosition | None:
        """Return the position after a call; None if its outcome is impossible."""
        position, holder = state
        call = recorded.call
        if not isinstance(call, PlanStepCall):
            return state if recorded.outcome == Observed((position,)) else None
        target = PLAN_STEPS[call.step].get(position)
        is_allowed = target is not None and (not call.step.startswith("complete") or holder == recorded.lane)
        match recorded.outcome:
            case Declined():
                return None if is_allowed else state
            case Accepted() | NoAnswer():
                lane = recorded.lane if call.step.startswith("start") else None
                return (target, lane) if target is not None and is_allowed else None
            case _:
                return state


class LogModel:
    """The values of one log, in order: each append adds one at the end, and each pop removes the last one."""

    def initial(self) -> tuple[str, ...]:
        """Return the log without values."""
        return ()

    def any_states(self, calls: Iterable[RecordedCall]) -> Iterable[tuple[str, ...]]:
        """Return the contents that reads have shown; there may be others, so that no later part is judged by them."""
        return dict.fromkeys(
            tuple(each for each in recorded.outcome.values if each is not None)
            for recorded in calls
            if isinstance(recorded.call, LogReadCall) and isinstance(recorded.outcome, Observed)
        )

    def is_final(self, state: tuple[str, ...]) -> bool:  # noqa: ARG002 - see `Model`
        """Return True: a log may be left with anything."""
        return True

    def step(self, state: tuple[str, ...], recorded: RecordedCall) -> tuple[str, ...] | None:
        """Return the values after a call; None if its outcome is impossible."""
        call = recorded.call
        match recorded.outcome:
            case Observed(found) if isinstance(call, LogPopCall):
                return state[:-1] if found == (state[-1:] or (None,)) else None
            case Observed(found):
                return state if found == state else None
            case Accepted() | NoAnswer() if isinstance(call, LogAppendCall):
                return (*state, call.value)
            case NoAnswer() if isinstance(call, LogPopCall):
                return state[:-1] if state else None
            case _:
                return None


def observations(recorded: RecordedCall) -> tuple[Effect, ...]:
    """Return the keys whose value the outcome of a call tells, with that value."""
    call = recorded.call
    match recorded.outcome:
        case _ if is_about_logs(call):
            return ()
        case Observed(values):
            return tuple(zip(keys_of(call), values, strict=True))
        case Accepted() | NoAnswer():
            compared = call.writes if isinstance(call, TransactCall) else (call,)
            return tuple((each.key, each.expected) for each in compared if isinstance(each, ReplaceCall))
        case _:
            return ()


def is_about_plans(call: AnyCall) -> bool:
    """Return True if a call is about a plan."""
    return isinstance(call, PlanStepCall | PlanReadCall)


def is_about_logs(call: AnyCall) -> bool:
    """Return True if a call is about a log."""
    return isinstance(call, LogAppendCall | LogPopCall | LogReadCall)
