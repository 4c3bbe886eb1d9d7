"""Filling a runtime with fragments before a measurement."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

import stepwell as sw

_STORED_AT_ONCE: Final = 10_000


def store_all(client: sw.Client, fragments: Iterable[sw.Fragment]) -> None:
    """Store any number of fragments. Those that a busy manager refused are stored again; replies are not kept."""
    left = iter(fragments)
    while waiting := [*islice(left, _STORED_AT_ONCE)]:
        while waiting:
            try:
                client.tiers.store_many(waiting)
                break
            except sw.PartlyRefused as refused:
                outcomes = [*zip(waiting, refused.outcomes, strict=True)]
                waiting = [fragment for fragment, outcome in outcomes if isinstance(outcome, sw.Busy)]
                if len(waiting) < sum(isinstance(outcome, sw.StepwellError) for _, outcome in outcomes):
                    raise
