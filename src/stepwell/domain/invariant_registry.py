"""The table of invariants, and the check of a state against all of them.

It is a module of its own, below the modules with the invariants of one subject, because `invariants` imports these.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from stepwell.domain.state import State

Invariant = Callable[[State], Iterator[str]]
"""A claim about a state. It yields a text for each place where the claim does not hold."""

INVARIANTS: dict[str, Invariant] = {}
"""All invariants by name."""


def invariant(claim: Invariant) -> Invariant:
    """Register a claim under its function's name."""
    INVARIANTS[claim.__name__] = claim
    return claim


def check(state: State, *, only: Container[str] | None = None, but: Container[str] = ()) -> list[str]:
    """Return every violation as `name: where`. `only` selects invariants by name, `but` leaves some out."""
    claims = {name: claim for name, claim in INVARIANTS.items() if (only is None or name in only) and name not in but}
    return [f"{name}: {where}" for name, claim in claims.items() for where in _violations(claim, state)]


def _violations(claim: Invariant, state: State) -> Iterator[str]:
    """Yield the violations of one claim. A claim that raises is a violation: a state can be too broken to check."""
    try:
        yield from claim(state)
    except Exception as error:  # noqa: BLE001 - an error of any kind means that the claim was not shown to hold
        yield f"it could not be checked: {error!r}"
