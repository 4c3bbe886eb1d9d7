"""The illegal part of a history as text: a line for each call, with a bar for the time that it took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

from stepwell.prove.history import (
    Accepted,
    AnyCall,
    AnyOutcome,
    Declined,
    DeleteCall,
    GetCall,
    LogAppendCall,
    LogPopCall,
    LogReadCall,
    NoAnswer,
    NotDone,
    Observed,
    PlanReadCall,
    PlanStepCall,
    RecordedCall,
    ReplaceCall,
    SnapshotCall,
    StoreCall,
    TransactCall,
)
from stepwell.prove.models import Effect
from stepwell.prove.shrink import Counterexample

_COLUMNS: Final = 32
_NS_PER_MS: Final = 1_000_000


def timeline(example: Counterexample) -> list[str]:
    """Return the lines that show an illegal part: the calls in the order of their starts, and the watched orders."""
    lines: list[str] = []
    if example.calls:
        before = "any values" if example.begins_anywhere else "nothing"
        lines += [f"before: {before}", *_call_lines(example.calls)]
    lines += [f"watch {number}: {_order(each)}" for number, each in enumerate(example.watched, 1)]
    lines.append(_conclusion(example))
    return lines


def _conclusion(example: Counterexample) -> str:
    """Return the sentence that says why the part is illegal."""
    if not example.calls:
        return "Two watches have seen the same writes in different orders, or not the same writes."
    if example.watched:
        return "No order of these calls explains their outcomes and the order of the watch."
    return "No order of these calls explains their outcomes: a call that ended before another began comes first."


def _call_lines(calls: Sequence[RecordedCall]) -> list[str]:
    """Return an aligned line for each call."""
    ordered = sorted(calls, key=lambda each: each.start_ns)
    begin_ns = ordered[0].start_ns
    end_ns = max(max(each.start_ns, each.end_ns or 0) for each in ordered)
    names = [f"process {each.process} thread {each.thread}" for each in ordered]
    texts = [call_text(each.call) for each in ordered]
    widths = max(map(len, names)), max(map(len, texts))
    return [
        f"{name:{widths[0]}}  {(each.start_ns - begin_ns) / _NS_PER_MS:8.3f} ms  {_bar(each, begin_ns, end_ns)}  "
        f"{text:{widths[1]}}  {outcome_text(each.outcome)}"
        for name, text, each in zip(names, texts, ordered, strict=True)
    ]


def _bar(recorded: RecordedCall, begin_ns: int, end_ns: int) -> str:
    """Return a bar from the start of a call to its end; one without an end has no right edge."""
    scale = (_COLUMNS - 1) / max(1, end_ns - begin_ns)
    left = round((recorded.start_ns - begin_ns) * scale)
    if recorded.end_ns is None:
        return " " * left + "[" + "." * (_COLUMNS - left)
    right = max(left, round((recorded.end_ns - begin_ns) * scale))
    return f"{' ' * left}[{'=' * (right - left)}]{' ' * (_COLUMNS - 1 - right)}"


def call_text(call: AnyCall) -> str:
    """Return a call in a few words."""
    match call:
        case StoreCall():
            return f"store {call.key} = {_value(call.value)}"
        case ReplaceCall():
            return f"replace {call.key}: {_value(call.expected)} by {_value(call.value)}"
        case GetCall():
            return f"get {call.key}"
        case DeleteCall():
            return f"delete {call.key}"
        case TransactCall():
            return f"together: {'; '.join(map(call_text, call.writes))}"
        case SnapshotCall():
            return f"get together {', '.join(call.keys)}"
        case PlanStepCall():
            return f"{call.step} of plan {call.plan}"
        case PlanReadCall():
            return f"get plan {call.plan}"
        case LogAppendCall():
            return f"append to log {call.log}: {_value(call.value)}"
        case LogPopCall():
            return f"pop from log {call.log}"
        case LogReadCall():
            return f"get log {call.log}"
        case _:
            assert_never(call)


def outcome_text(outcome: AnyOutcome) -> str:
    """Return an outcome in a few words."""
    match outcome:
        case Accepted():
            return "accepted"
        case Declined():
            return "declined"
        case Observed():
            return f"returned {', '.join(map(_value, outcome.values))}"
        case NotDone():
            return "had no effect"
        case NoAnswer():
            return "may take effect"
        case _:
            assert_never(outcome)


def _value(value: str | None) -> str:
    """Return a value in quotes, or that there is none."""
    return "nothing" if value is None else f'"{value}"'


def _order(effects: Sequence[Effect]) -> str:
    """Return the writes that a watch has shown, in its order."""
    return ", ".join(f"{key} = {_value(value)}" for key, value in effects) or "no write"
