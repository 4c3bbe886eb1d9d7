"""One run of a strategy on a view: its confidence, its checked fragments, and the text of its error.

Strategies are written by users, too. So their fragments are compared with the view, and an error is described with the
line of the strategy that raised it.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterable

from stepwell import limits
from stepwell.domain.checks import require_instance
from stepwell.errors import InvalidArgument
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, Strategy, StrategyView


def run(
    strategy: Strategy, request: ContextRequest, view: StrategyView, budget_tokens: int, whole: StrategyView
) -> tuple[float, tuple[ScoredFragment, ...]]:
    """Return the confidence of a strategy and the fragments that it finds in a view, which is `whole` or a share of it.

    Raise `InvalidArgument` for a fragment that `whole` does not contain, and whatever the strategy raises.
    """
    confidence = float(strategy.can_handle(request, view))
    return confidence, _checked(strategy, strategy.assemble(request, view, budget_tokens), whole)


def _checked(strategy: Strategy, found: Iterable[object], view: StrategyView) -> tuple[ScoredFragment, ...]:
    """Return the fragments that a strategy found. Raise InvalidArgument for one that its view does not contain."""
    fragments: list[ScoredFragment] = []
    for each in found:
        if not isinstance(each, ScoredFragment) or not math.isfinite(each.score):
            raise InvalidArgument(f"strategy {strategy.name!r} returned {each!r:.200}, which is no scored fragment")
        seen = view.get(each.fragment_id, project=each.project) if each.project in view.projects else None
        if seen is None or seen.row.revision != each.revision or each.tokens < 0:
            raise InvalidArgument(f"strategy {strategy.name!r} returned {each!r:.200}, which its view does not have")
        fragments.append(each)
    return tuple(fragments)


def checked_deadline(deadline_s: float) -> float:
    """Return the deadline; `InvalidArgument` unless the manager would accept it."""
    require_instance(deadline_s, (int, float), "deadline_s is a number of seconds")
    if not 0 < deadline_s <= limits.TASK_DEADLINE_MS_MAX / 1000:
        raise InvalidArgument(f"deadline_s is {deadline_s}: give more than 0 and at most a day")
    return deadline_s


def describe_error(strategy: str, error: BaseException) -> str:
    """Return the error and the line of the strategy where it happened, as text that can be encoded."""
    summary = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    message = f"strategy {strategy!r} raised {summary}{where}"[: limits.ERROR_CHARS_MAX]
    return message.encode("utf-8", "replace").decode()  # the name of a file may not be valid text
