"""Options of the commands that ask strategies: which of them, how long each may take, and what is left out."""

from __future__ import annotations

from typing import Annotated

from stepwell import limits
from stepwell.cli.common.completions import complete_strategies
from stepwell.cli.common.parameters import decimal_number, flag, option
from stepwell.errors import InvalidArgument

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
Fill = Annotated[bool, flag("--fill", "fill the budget, also with what matches the question badly or not at all")]
StopScore = Annotated[
    float | None,
    option(
        "--stop-score",
        metavar="PART",
        about=f"leave out what scores less than this part of the best, from 0 to 1 (default: {limits.STOP_SCORE})",
        parse=decimal_number,
    ),
]


def stop_score_of(given: float | None, *, fill: bool) -> float:
    """Return the stop score that `--fill` or `--stop-score` give, or the default."""
    if fill and given is not None:
        raise InvalidArgument("give --fill or --stop-score, not both: --fill is --stop-score 0")
    return 0.0 if fill else limits.STOP_SCORE if given is None else given
