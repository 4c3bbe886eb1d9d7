"""Bugs that the simulator has to find: each puts one realistic defect into the real code while it is active.

No bug edits a file. Each replaces a function of `stepwell` by one that has forgotten a step, as a careless change
would. `python -m tests.simulator --bugs` counts the seeds until each is found.
"""

from tests.simulator.bugs import (  # noqa: F401 - importing a module enters its bugs into the table
    client,
    domain,
    events,
    index,
    logs,
    loop,
    memory,
    pools,
    replies,
    storage,
    tasks,
    teams,
)
from tests.simulator.bugs.registry import BUGS, Bug

__all__ = ["BUGS", "Bug"]
