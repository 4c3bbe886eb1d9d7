"""The select stage: which strategies are asked, and which of their results are used.

Before selection, `validate_results` checks what the strategies returned: they run in other processes, and some are
written by users.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from stepwell.assembly.candidate import SelectedResult
from stepwell.assembly.inputs import Failure, Key, Rows
from stepwell.domain.tiers.model import FragmentRow
from stepwell.errors import InvalidArgument
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyInfo, StrategyView
from stepwell.strategies.ranking import has_requested_kind

FALLBACK: Final = "keyword"  # it needs nothing but words, and is always installed
PREFERENCE: Final = 0.25  # added to the confidence of a strategy that the request prefers
INVALID: Final = "InvalidResult"  # the kind of a failure that `validate_results` found

Select = Callable[[ContextRequest, Sequence[StrategyResult]], tuple[SelectedResult, ...]]
"""A function of the request and the validated results to the results that are used."""


def names_to_ask(request: ContextRequest, offers: Iterable[StrategyInfo]) -> tuple[str, ...]:
    """Return the strategies that a request prefers, or else all that are offered, by name; without
    any, the fallback.
    """
    return tuple(request.strategies or sorted(each.name for each in offers)) or (FALLBACK,)


def by_confidence(request: ContextRequest, results: Sequence[StrategyResult]) -> tuple[SelectedResult, ...]:
    """Return the results with any confidence; if there are none, that of the fallback; without it, all results."""
    chosen = [SelectedResult(result, _confidence(request, result)) for result in results]
    confident = tuple(each for each in chosen if each.confidence > 0 and each.result.fragments)
    if confident:
        return confident
    found = [SelectedResult(each.result, 1.0) for each in chosen if each.result.fragments]
    return tuple(each for each in found if each.result.strategy == FALLBACK) or tuple(found)


def everything(request: ContextRequest, results: Sequence[StrategyResult]) -> tuple[SelectedResult, ...]:  # noqa: ARG001 - the others' signature
    """Return all results that have fragments, with equal confidence."""
    return tuple(SelectedResult(result, 1.0) for result in results if result.fragments)


def _confidence(request: ContextRequest, result: StrategyResult) -> float:
    """Return the confidence of a strategy, raised if the request prefers the strategy."""
    boost = PREFERENCE if result.strategy in request.strategies else 0.0
    return min(1.0, result.confidence + boost)


class ValidatedResults(Struct, frozen=True):
    """The usable results in order of name, the rows of their fragments, and a failure for each unusable result."""

    results: tuple[StrategyResult, ...]
    rows: Rows
    failures: tuple[Failure, ...]


def validate_results(
    request: ContextRequest, view: StrategyView, results: Sequence[StrategyResult]
) -> ValidatedResults:
    """Check results against the view, and return the usable ones.

    A result is unusable if it names a fragment that does not exist, another project, or an impossible number; that
    costs its own strategy only. Fragments of other kinds than the request asks for are left out. Raise
    `InvalidArgument` if two results are of one strategy, because that is a mistake of the caller.
    """
    ordered = sorted(results, key=lambda result: result.strategy)
    names = [result.strategy for result in ordered]
    if len(names) != len(set(names)):
        raise InvalidArgument(f"there are two results of one strategy among {', '.join(names)}: give one of each")
    rows: dict[Key, FragmentRow] = {}
    usable: list[StrategyResult] = []
    failures: list[Failure] = []
    for result in ordered:
        fragments = _requested_fragments(request, view, result, rows)
        if isinstance(fragments, str):
            failures.append(Failure(result.strategy, INVALID, f"strategy {result.strategy!r} {fragments}"))
        else:
            usable.append(replace(result, fragments=fragments))
    return ValidatedResults(tuple(usable), rows, tuple(failures))


def _requested_fragments(
    request: ContextRequest, view: StrategyView, result: StrategyResult, rows: dict[Key, FragmentRow]
) -> tuple[ScoredFragment, ...] | str:
    """Return the fragments of a result that are of a requested kind, and add their rows to `rows`.

    Return a text instead if the result is unusable: the reason, to be read after the strategy's name.
    """
    if not 0 <= result.confidence <= 1:
        return f"is confident {result.confidence!r}, which is not from 0 to 1"
    wanted: list[ScoredFragment] = []
    projects = {*request.projects} & {*view.projects}
    for fragment in result.fragments:
        if reason := _invalid_reason(fragment, projects):
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


def _invalid_reason(fragment: ScoredFragment, projects: Container[str]) -> str:
    """Return why a scored fragment cannot be true; empty if it can."""
    if not math.isfinite(fragment.score):
        return f"with a score of {fragment.score!r}"
    if fragment.tokens < 0:
        return f"with {fragment.tokens} tokens"
    return "" if fragment.project in projects else f"of {fragment.project!r:.200}, which was not asked for"


COMPONENTS: Final[dict[str, Select]] = {"confidence": by_confidence, "everything": everything}
