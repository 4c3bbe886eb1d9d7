"""How an apply ended, kept with its plan: whoever asks later is told the same as whoever did it."""

from __future__ import annotations

from msgspec import Struct

from stepwell.domain.plans.validations import ValidationResult


class Applied(Struct, frozen=True, array_like=True):
    """What a plan changed is in the tree, and proven to be there."""

    at_ms: int
    attempt: int
    session_id: str
    paths: int
    root: str  # as it was given: where it is depends on the process that gave it
    validations: tuple[ValidationResult, ...] = ()


class Constrained(Struct, frozen=True, array_like=True):
    """Nothing of a plan is in the tree, because of a validation. Kept until another apply ends."""

    at_ms: int
    attempt: int
    session_id: str
    reason: str
    validations: tuple[ValidationResult, ...] = ()


class RolledBack(Struct, frozen=True, array_like=True):
    """What a plan had changed is as it was before."""

    at_ms: int
    session_id: str
    reason: str
    paths: int
