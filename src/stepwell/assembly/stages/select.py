"""Select: which strategies are asked, and which of their answers are used."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from stepwell.assembly.candidate import Chosen
from stepwell.assembly.inputs import Failure, Key, Rows
from stepwell.domain.tiers.model import FragmentRow
from stepwell.errors import InvalidArgument
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyInfo, StrategyView
from stepwell.strategies.ranking import has_requested_kind

FALLBACK: Final = "keyword"  # needs nothing but words, and is always there
PREFERENCE: Final = 0.25  # added to the confidence of a strategy that the request prefers
INVALID: Final = "InvalidResult"

Select = Callable[[ContextRequest, Sequence[StrategyResult]], tuple[Chosen, ...]]


def names_to_ask(request: ContextRequest, offers: Iterable[StrategyInfo]) -> tuple[str, ...]:
    """Those that a request prefers, or else all that are offered, by name; without any, the fallback."""
    return tuple(request.strategies or sorted(each.name for each in offers)) or (FALLBACK,)


def by_confidence(request: ContextRequest, results: Sequence[StrategyResult]) -> tuple[Chosen, ...]:
    """Those that are sure of anything, a preference counted in; if none is, the fallback; without it, all."""
    chosen = [Chosen(result, _confidence(request, result)) for result in results]
    sure = tuple(each for each in chosen if each.confidence > 0 and each.result.fragments)
    if sure:
        return sure
    found = [Chosen(each.result, 1.0) for each in chosen if each.result.fragments]
    return tuple(each for each in found if each.result.strategy == FALLBACK) or tuple(found)


def everything(request: ContextRequest, results: Sequence[StrategyResult]) -> tuple[Chosen, ...]:  # noqa: ARG001 - the others' signature
    """All of them, each as sure as any other."""
    return tuple(Chosen(result, 1.0) for result in results if result.fragments)


def _confidence(request: ContextRequest, result: StrategyResult) -> float:
    boost = PREFERENCE if result.strategy in request.strategies else 0.0
    return min(1.0, result.confidence + boost)


class Sound(Struct, frozen=True):
    """Results that can be used, by name; the rows that they name; and who gave what cannot be true."""

    results: tuple[StrategyResult, ...]
    rows: Rows
    failures: tuple[Failure, ...]


def sound(request: ContextRequest, view: StrategyView, results: Sequence[StrategyResult]) -> Sound:
    """What can be used of some results. A strategy that gave what cannot be true costs only itself.

    What is not of a kind that was asked for is left out, whoever named it.
    """
    ordered = sorted(results, key=lambda result: result.strategy)
    names = [result.strategy for result in ordered]
    if len(names) != len(set(names)):
        raise InvalidArgument(f"there are two results of one strategy among {', '.join(names)}: give one of each")
    rows: dict[Key, FragmentRow] = {}
    usable: list[StrategyResult] = []
    failures: list[Failure] = []
    for result in ordered:
        checked = _checked(request, view, result, rows)
        if isinstance(checked, str):
            failures.append(Failure(result.strategy, INVALID, f"strategy {result.strategy!r} {checked}"))
        else:
            usable.append(replace(result, fragments=checked))
    return Sound(tuple(usable), rows, tuple(failures))


def _checked(
    request: ContextRequest, view: StrategyView, result: StrategyResult, rows: dict[Key, FragmentRow]
) -> tuple[ScoredFragment, ...] | str:
    """What is wanted of a result; or what is wrong with it, in a few words. The rows that it names are added."""
    if not 0 <= result.confidence <= 1:
        return f"is confident {result.confidence!r}, which is not from 0 to 1"
    wanted: list[ScoredFragment] = []
    projects = {*request.projects} & {*view.projects}
    for fragment in result.fragments:
        if reason := _falsehood(fragment, projects):
            return f"returned {fragment.fragment_id!r:.200} {reason}"
        key = fragment.project, fragment.fragment_id
        if key not in rows:
            seen = view.get(fragment.fragment_id, project=fragment.project)
            if seen is None:
                return f"returned {fragment.fragment_id!r:.200}, which does not exist"
            rows[key] = seen.row
        if has_requested_kind(request, rows[key]):
            wanted.append(fragment)
    return tuple(wanted)


def _falsehood(fragment: ScoredFragment, projects: Container[str]) -> str:
    if not math.isfinite(fragment.score):
        return f"with a score of {fragment.score!r}"
    if fragment.tokens < 0:
        return f"with {fragment.tokens} tokens"
    return "" if fragment.project in projects else f"of {fragment.project!r:.200}, which was not asked for"


COMPONENTS: Final[dict[str, Select]] = {"confidence": by_confidence, "everything": everything}
