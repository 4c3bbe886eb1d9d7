"""The points at which one caller can come in between another's check and act."""

from __future__ import annotations

from collections.abc import Callable

Seam = Callable[[str], None]


def no_seam(_point: str) -> None:
    """Do not wait. It is a function of its own, so that an object that holds it can be pickled."""
