"""The stages of the pipeline, each of which can be replaced: by another one of this table, or by a function."""

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
    score,
    select,
    skeleton,
)
from stepwell.errors import InvalidArgument


class Components(Struct, frozen=True, kw_only=True):
    """A pipeline, in the order in which its stages have their turn."""

    select: select.Select = select.by_confidence
    allocate: allocate.Allocate = allocate.proportional
    fuse: fuse.Fuse = fuse.weighted
    expand: expand.Expand = expand.nearby
    dedupe: dedupe.Dedupe = dedupe.by_content
    score: score.Score = score.balanced
    depth: depth.Depth = depth.deepest
    pack: pack.Pack = pack.dense
    order: order.Order = order.coherent
    preamble: preamble.Preamble = preamble.brief
    skeleton: skeleton.Skeleton = skeleton.decisions_first


DEFAULT: Final = Components()

NAMED: Final[Mapping[str, Mapping[str, object]]] = {
    "select": select.COMPONENTS,
    "allocate": allocate.COMPONENTS,
    "fuse": fuse.COMPONENTS,
    "expand": expand.COMPONENTS,
    "dedupe": dedupe.COMPONENTS,
    "score": score.COMPONENTS,
    "depth": depth.COMPONENTS,
    "pack": pack.COMPONENTS,
    "order": order.COMPONENTS,
    "preamble": preamble.COMPONENTS,
    "skeleton": skeleton.COMPONENTS,
}
"""For each stage, what there is by name; the first is the default."""

ALONE: Final[Mapping[str, str]] = {"expand": "alone", "score": "relevance", "pack": "full", "preamble": "silent"}
"""The names of a pipeline that shows what a strategy ranks highest, and adds nothing of its own."""


def named(names: Mapping[str, str]) -> Components:
    """The usual pipeline with some stages replaced: `{"fuse": "reciprocal"}`."""
    replaced: dict[str, object] = {}
    for stage, name in names.items():
        if stage not in NAMED:
            raise InvalidArgument(f"there is no stage {stage!r}: there are {', '.join(NAMED)}")
        if name not in NAMED[stage]:
            raise InvalidArgument(f"there is no {stage} {name!r}: there are {', '.join(NAMED[stage])}")
        replaced[stage] = NAMED[stage][name]
    return replace(DEFAULT, **replaced)
