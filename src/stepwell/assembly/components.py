"""The table of the pipeline's stages. Each stage can be replaced by another function, or by one of its named variants.

A stage is a function without state; its module has the type, the variants, and `COMPONENTS`, which names them. A new
variant needs one function and one entry there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from stepwell.assembly.stages import (
    allocate,
    dedupe,
    depth,
    expand,
    fuse,
    order,
    pack,
    preamble,
    rank,
    score,
    select,
    skeleton,
)
from stepwell.errors import InvalidArgument


class Components(Struct, frozen=True, kw_only=True):
    """A pipeline: one function for each stage, in the order in which they run.

    `depth` is called by `pack`, and `skeleton` only for a request that has a plan. A caller may pass any function of
    the right type, which makes the assembly as deterministic as that function.
    """

    select: select.Select = select.by_confidence
    allocate: allocate.Allocate = allocate.proportional
    fuse: fuse.Fuse = fuse.weighted
    expand: expand.Expand = expand.nearby
    dedupe: dedupe.Dedupe = dedupe.by_content
    score: score.Score = score.balanced
    rank: rank.Rank = rank.matches_first
    depth: depth.Depth = depth.deepest
    pack: pack.Pack = pack.best_first
    order: order.Order = order.coherent
    preamble: preamble.Preamble = preamble.brief
    skeleton: skeleton.Skeleton = skeleton.decisions_first


DEFAULT: Final = Components()
"""The pipeline that is used unless a caller asks for another one."""

NAMED: Final[Mapping[str, Mapping[str, object]]] = {
    "select": select.COMPONENTS,
    "allocate": allocate.COMPONENTS,
    "fuse": fuse.COMPONENTS,
    "expand": expand.COMPONENTS,
    "dedupe": dedupe.COMPONENTS,
    "score": score.COMPONENTS,
    "rank": rank.COMPONENTS,
    "depth": depth.COMPONENTS,
    "pack": pack.COMPONENTS,
    "order": order.COMPONENTS,
    "preamble": preamble.COMPONENTS,
    "skeleton": skeleton.COMPONENTS,
}
"""The variants of each stage by name; the first is the default."""

SINGLE_STRATEGY: Final[Mapping[str, str]] = {
    "expand": "alone",
    "score": "relevance",
    "rank": "score",
    "pack": "full",
    "preamble": "silent",
}
"""The variants of a pipeline that shows the best fragments of one strategy and adds nothing; evaluations use it."""


def named(names: Mapping[str, str]) -> Components:
    """Return the default pipeline with some stages replaced by named variants: `{"fuse": "reciprocal"}`.

    Raise `InvalidArgument` for an unknown stage or name; the message lists the known ones.
    """
    replaced: dict[str, object] = {}
    for stage, name in names.items():
        if stage not in NAMED:
            raise InvalidArgument(f"there is no stage {stage!r}: there are {', '.join(NAMED)}")
        if name not in NAMED[stage]:
            raise InvalidArgument(f"there is no {stage} {name!r}: there are {', '.join(NAMED[stage])}")
        replaced[stage] = NAMED[stage][name]
    return replace(DEFAULT, **replaced)
