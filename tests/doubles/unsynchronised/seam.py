"""The points at which one caller can come in between another's check and act."""

from __future__ import annotations

from collections.abc import Callable

Seam = Callable[[str], None]


def no_seam(_point: str) -> None:
    """Wait for nobody. A function of its own, so that what holds it can be pickled."""
