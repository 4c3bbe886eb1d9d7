"""A fragment: a piece of context. What a caller gives, and the row that the manager keeps of it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from stepwell import limits
from stepwell.domain.bounded_types import (
    FragmentId,
    Label,
    Metadata,
    Positive,
    ProjectName,
    Source,
    Tokens,
    UncheckedId,
    UncheckedLabel,
    UncheckedProject,
    is_project,
    known_label,
)
from stepwell.domain.checks import check, check_metadata, checked, require_instance, utf8
from stepwell.errors import InvalidArgument


class Tier(StrEnum):
    """Where a fragment is. Hot is bounded by tokens, warm and cold by entries."""

    HOT = "hot"
    WARM = "warm"
    COLD = "cold"


HOT, WARM, COLD = Tier
"""The same for what runs with every store: Python 3.11 takes 100 ns to find a member by its class."""

ABOVE = {Tier.WARM: Tier.HOT, Tier.COLD: Tier.WARM}
BELOW = {Tier.HOT: Tier.WARM, Tier.WARM: Tier.COLD}

BodyRef = tuple[bytes, int]
"""A reference to a body whose bytes the manager keeps: its digest and its size."""

Depth = Annotated[int, Meta(ge=0, le=16, description="a detail depth is a whole number from 0 to 16")]


@checked
class Names(Struct, frozen=True):
    """What names have to be, where the types that were checked do not look at their patterns."""

    project: ProjectName
    fragment_id: FragmentId
    kind: Label = "text"


@checked
class Fragment(Struct, frozen=True, kw_only=True):
    """What you give to `tiers.store`. Left out, `tokens` is counted; a `str` body is stored as UTF-8."""

    fragment_id: UncheckedId
    body: str | bytes | memoryview
    project: UncheckedProject | None = None
    source: Source = ""
    tokens: Tokens | None = None
    kind: UncheckedLabel = "text"
    detail_depth: Depth = 0
    metadata: Metadata = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        check(self)
        if not self._has_plain_names:
            check(Names("any" if self.project is None else self.project, self.fragment_id, self.kind))
            utf8(self.fragment_id, "fragment_id")
            utf8(self.source, "source")
        if self.metadata:
            check_metadata(self.metadata)
        require_instance(self.body, (str, bytes, memoryview), "a body is str, bytes or a memoryview")
        size = self._size
        if size > limits.BODY_BYTES_MAX:
            raise InvalidArgument(
                f"body has {size} bytes, at most {limits.BODY_BYTES_MAX} are allowed: split it into fragments"
            )

    @property
    def _has_plain_names(self) -> bool:
        """Whether its names are surely right: to match all patterns takes longer than whatever else is done here."""
        return (
            bool(self.fragment_id)
            and self.fragment_id.isprintable()
            and self.source.isprintable()
            and known_label(self.kind) is not None
            and (self.project is None or is_project(self.project))
        )

    @property
    def _size(self) -> int:
        """Bytes of the body, as it will be stored."""
        body = self.body
        if isinstance(body, memoryview):
            return body.nbytes
        if isinstance(body, str) and not body.isascii():
            return len(utf8(body, "body"))
        return len(body)

    @property
    def weight(self) -> int:
        """How many bytes it takes in a frame, or beside it, at the most."""
        metadata = 2 * limits.METADATA_BYTES_MAX if self.metadata else 0
        return self._size + 4 * len(self.source) + metadata + 4096


NO_METADATA: Final[dict[str, str]] = {}
"""One for all rows that have none: nobody changes what a row holds."""


class FragmentRow(Struct, frozen=True, array_like=True, gc=False):
    """A fragment as the manager keeps it. A new body, a new tier: a new row."""

    project: str
    fragment_id: str
    source: str
    kind: str
    detail_depth: int
    tokens: int
    size: int
    digest: bytes
    tier: Tier
    placed_at_ms: int  # when it came into its tier
    created_at_ms: int
    revision: int  # of the body: moving between tiers does not make a writer stale
    serial: int  # its place in the order of creation, which pages follow
    metadata: dict[str, str]

    @property
    def key(self) -> tuple[str, str]:
        return self.project, self.fragment_id

    @property
    def held(self) -> tuple[BodyRef, ...]:
        return ((self.digest, self.size),)


@checked
class TierBudget(Struct, frozen=True, kw_only=True):
    """The bounds of the tiers, global to a runtime. None of them can mean "unlimited"."""

    hot_tokens: Positive = limits.HOT_TOKENS
    warm_entries: Positive = limits.WARM_ENTRIES
    cold_entries: Positive = limits.COLD_ENTRIES
    bodies_bytes: Positive = limits.BODIES_BYTES_MAX
    arena_bytes: Positive = limits.ARENA_BYTES  # of segments in shared memory
    hot_ttl_ms: Positive = limits.HOT_TTL_MS
    warm_ttl_ms: Positive = limits.WARM_TTL_MS
    cold_retention_ms: Positive = limits.COLD_RETENTION_MS
    promotion_threshold: Positive = limits.PROMOTION_THRESHOLD

    def __post_init__(self) -> None:
        check(self)

    @property
    def key(self) -> str:
        return "budget"

    @property
    def live_bytes(self) -> int:
        """What bodies may need of the arena; the rest is for segments being filled and dead space."""
        return self.arena_bytes * limits.ARENA_LIVE_PERCENT // 100

    @property
    def receipts_bytes(self) -> int:
        """What receipts may have of the bodies' bytes: however many are stored, most is left for fragments."""
        return min(limits.RECEIPTS_BYTES_MAX, self.bodies_bytes * limits.RECEIPTS_PERCENT_MAX // 100)
