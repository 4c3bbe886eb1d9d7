"""The sentences of `docs/performance.md` on what limits a figure that misses its goal.

They are kept here, and not on the page, because the page is generated. A sentence is shown only while its goal is
missed, so it can stay when a figure improves.
"""

from __future__ import annotations

from typing import Final

LIMITS: Final[dict[tuple[str, str], str]] = {
    ("stepwell", "store, one at a time, 4 clients"): (
        "Each call wakes the manager and then its client, which have to share the cores with the other clients. A bare "
        "pipe has only this."
    ),
    ("stepwell", "store, batches of 100, 4 clients"): "The manager is busy all the time: see its CPU for an operation.",
}
"""A sentence by the contender and the work of a row."""
