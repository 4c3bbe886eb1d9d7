"""The calls of a run: seeded random choices, in short rounds with new keys, so that each partition is short.

A round is a fraction of a second of the clock that all processes share. In it all lanes (the threads of all processes)
use the same few keys at the same time, without any message between them: one register, one counter, one pair of keys
with transactions, one log and one plan. Every value that is stored is new, so that a value says which call has written
it; only a counter has values that several calls try to write, and one of them may.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.prove.history import (
    Accepted,
    AnyCall,
    AnyOutcome,
    DeleteCall,
    GetCall,
    LogAppendCall,
    LogPopCall,
    LogReadCall,
    Observed,
    PlanReadCall,
    PlanStepCall,
    ReplaceCall,
    SnapshotCall,
    StoreCall,
    TransactCall,
    keys_of,
    writes_of,
)
from stepwell.prove.models import PLAN_START, PLAN_STEPS

Request = tuple[AnyCall, ...]
"""Calls that are made together: several of them are a batch."""

_SUBJECTS: Final = ("register", "counter", "pair", "plan", "log")


class RoundNames(Struct, frozen=True):
    """The keys of a round, its log, and its plan, if there is one."""

    register: str
    counter: str
    pair: tuple[str, str]
    plan: str | None
    log: str = "log"


def names_of(round_number: int, plans: Sequence[str], rounds: int) -> RoundNames:
    """Return the keys of a round. The plans are spread evenly over all rounds."""
    spacing = max(1, -(-rounds // len(plans))) if plans else 0
    at, rest = divmod(round_number, spacing) if plans else (0, 1)
    return RoundNames(
        register=f"{round_number}.register",
        counter=f"{round_number}.counter",
        pair=(f"{round_number}.left", f"{round_number}.right"),
        plan=plans[at] if rest == 0 and at < len(plans) else None,
        log=f"{round_number}.log",
    )


class CallGenerator:
    """Makes the calls of one lane in one round, from a seed and from what the lane has learned in the round.

    A compare-and-set expects the value that the lane has seen last, or none. One thread uses it.
    """

    def __init__(self, seed: int, lane: tuple[int, int], round_number: int, names: RoundNames) -> None:
        self._random = random.Random(f"{seed}/{lane}/{round_number}")  # noqa: S311 - seeded, to be repeatable
        self._lane = lane
        self._names = names
        self._values = 0
        self._known: dict[str, str | None] = {}
        self._position = PLAN_START
        self._held = ""

    def request(self) -> Request:
        """Return the next request: mostly one call, sometimes a batch of several."""
        calls = [self._call() for _ in range(self._random.choice((1, 1, 1, 2, 3)))]
        together = [each for each in calls if not isinstance(each, TransactCall | SnapshotCall | PlanStepCall)]
        return tuple(together) if len(together) == len(calls) else (calls[0],)

    def learn(self, call: AnyCall, outcome: AnyOutcome) -> None:
        """Note what the outcome of a call tells about the present values."""
        match outcome:
            case Observed(values) if isinstance(call, PlanReadCall):
                self._position = values[0] or PLAN_START
            case Observed() if isinstance(call, LogPopCall | LogReadCall):
                pass
            case Observed(values):
                self._known.update(zip(keys_of(call), values, strict=True))
            case Accepted() if isinstance(call, PlanStepCall):
                self._position = PLAN_STEPS[call.step].get(self._position, self._position)
                started = call.step.removeprefix("start_")
                self._held = started if started != call.step else ""
            case Accepted():
                self._known.update(writes_of(call))
            case _:
                pass

    def _call(self) -> AnyCall:
        """Return a call on one of the keys of the round."""
        match self._random.choice(_SUBJECTS):
            case "counter":
                return self._count(self._names.counter)
            case "pair":
                return self._pair_call()
            case "log":
                return self._log_call(self._names.log)
            case "plan" if self._names.plan is not None:
                return self._plan_call(self._names.plan)
            case _:
                return self._register_call(self._names.register)

    def _register_call(self, key: str) -> AnyCall:
        choice = self._random.randrange(9)
        if choice < 2:  # noqa: PLR2004 - the weights of the calls
            return StoreCall(key, self._value())
        if choice < 5:  # noqa: PLR2004
            return ReplaceCall(key, self._known.get(key), self._value())
        return DeleteCall(key) if choice == 5 else GetCall(key)  # noqa: PLR2004

    def _count(self, key: str) -> AnyCall:
        """Return an increment, for which a lane has to know the present value, or a read."""
        present = self._known.get(key)
        if key in self._known and self._random.random() < 0.7:  # noqa: PLR2004
            return ReplaceCall(key, present, str(int(present or 0) + 1))
        return GetCall(key)

    def _pair_call(self) -> AnyCall:
        choice = self._random.randrange(8)
        if choice < 2:  # noqa: PLR2004
            return TransactCall(
                tuple(ReplaceCall(key, self._known.get(key), self._value()) for key in self._names.pair)
            )
        if choice < 4:  # noqa: PLR2004
            return TransactCall(tuple(StoreCall(key, self._value()) for key in self._names.pair))
        return SnapshotCall(self._names.pair) if choice == 4 else GetCall(self._random.choice(self._names.pair))  # noqa: PLR2004

    def _log_call(self, log: str) -> AnyCall:
        choice = self._random.randrange(6)
        if choice < 3:  # noqa: PLR2004 - the weights of the calls
            return LogAppendCall(log, self._value())
        return LogPopCall(log) if choice < 5 else LogReadCall(log)  # noqa: PLR2004

    def _plan_call(self, plan: str) -> AnyCall:
        """Return a step that looks possible, so that several lanes try the same one."""
        if self._held and self._random.random() < 0.7:  # noqa: PLR2004
            return PlanStepCall(plan, f"complete_{self._held}")
        steps = [
            step for step, moves in PLAN_STEPS.items() if self._position in moves and not step.startswith("complete")
        ]
        if not steps or self._random.random() < 0.3:  # noqa: PLR2004
            return PlanReadCall(plan)
        return PlanStepCall(plan, self._random.choice(steps))

    def _value(self) -> str:
        """Return a value that no other call of the run stores."""
        self._values += 1
        process, thread = self._lane
        return f"{process}.{thread}.{self._values}"


def rounds_in(seconds: float, round_ms: int = limits.PROVE_ROUND_MS) -> int:
    """Return the number of rounds that fit into a time, at least one."""
    return max(1, int(seconds * 1000 / round_ms))
