"""Recorded calls, written briefly."""

from __future__ import annotations

from stepwell.prove.history import AnyCall, AnyOutcome, NoAnswer, Observed, RecordedCall


def made(
    start_ns: int, end_ns: int | None, call: AnyCall, outcome: AnyOutcome | None = None, lane: int = 0
) -> RecordedCall:
    """Return a recorded call. Without an end there was no answer."""
    assert outcome is not None or end_ns is None
    return RecordedCall(lane, 0, start_ns, end_ns, call, outcome or NoAnswer())


def saw(*values: str | None) -> Observed:
    return Observed(values)
