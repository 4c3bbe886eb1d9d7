"""Options of the commands that ask strategies: which of them, and how long each may take."""

from __future__ import annotations

from typing import Annotated

from stepwell.cli.common.completions import complete_strategies
from stepwell.cli.common.parameters import decimal_number, option

Strategies = Annotated[
    list[str] | None,
    option(
        "--strategies",
        metavar="NAME...",
        about="one or more strategies (default: all that the workers offer)",
        complete=complete_strategies,
    ),
]
Deadline = Annotated[
    float | None,
    option(
        "--deadline", metavar="SECONDS", about="time that each strategy may take (default: 60)", parse=decimal_number
    ),
]
