"""The planted defects, in the order of the promises that they break.

Each is a small change of the code, as a careless change would make it. A defect names the tests that show it best, and
not all that fail with it.
"""

from __future__ import annotations

from typing import Final

from tests.promises.defects import (
    answers,
    bounds,
    durability,
    logs,
    memory,
    order,
    peers,
    plans,
    requests,
    tasks,
    trees,
)
from tests.promises.model import Defect

TABLES = (order, bounds, plans, peers, durability, requests, tasks, memory, answers, trees, logs)

DEFECTS: Final[tuple[Defect, ...]] = tuple(
    sorted((each for table in TABLES for each in table.DEFECTS), key=lambda defect: defect.promise)
)
"""All defects. Those of one promise are in the order of their definition."""
