"""Checks of the outcomes of a race: each caller got a result or an error."""

from __future__ import annotations

from typing import Any

Outcomes = list[Any]


def no_errors(outcomes: Outcomes) -> Outcomes:
    """Every caller got a result."""
    errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert not errors, f"{len(errors)} of {len(outcomes)} callers got an error, the first {errors[0]!r}"
    return outcomes


def one_winner(outcomes: Outcomes, refusal: type[Exception]) -> object:
    """One caller got a result, and all others this refusal."""
    winners = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
    strange = [outcome for outcome in outcomes if isinstance(outcome, Exception) and type(outcome) is not refusal]
    assert not strange, f"the refusal is {strange[0]!r} and not {refusal.__name__}"
    assert len(winners) == 1, f"{len(winners)} of {len(outcomes)} callers won"
    return winners[0]
