"""The values of the tiers: tiers, fragments as a caller gives them, fragments as the manager keeps them, budgets.

A fragment is a piece of context: a body of bytes with a project, an id, a source and a number of tokens. It is in one
of three tiers. The tier decides the form of its body (see `body_refs`) and how long it stays there without being read.

All values are frozen. A value that a caller constructs checks itself, so that one that exists is valid.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from stepwell import limits
from stepwell.domain.bounded_types import (
    ExpirySpan,
    ExpiryTime,
    FragmentId,
    Identifier,
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
from stepwell.text import PlainEnum, describe, plural, quoted


class Tier(PlainEnum):
    """The tier of a fragment. Hot is bounded by tokens, warm and cold by entries; all have a time to live."""

    HOT = "hot"
    WARM = "warm"
    COLD = "cold"


HOT, WARM, COLD = Tier
"""The members as names of the module, for code that runs with every store: `Tier.HOT` takes 100 ns in Python 3.11."""

# The next tier in each direction. Nothing is above hot and nothing below cold, where a demotion is a deletion.
ABOVE = {Tier.WARM: Tier.HOT, Tier.COLD: Tier.WARM}
BELOW = {Tier.HOT: Tier.WARM, Tier.WARM: Tier.COLD}

BodyRef = tuple[bytes, int]
"""A reference to a body whose bytes the manager keeps: its SHA-256 and its size."""

Depth = Annotated[
    int, Meta(ge=0, le=limits.DETAIL_DEPTH_MAX, description="a detail depth is a whole number from 0 to 16")
]


@checked
class Names(Struct, frozen=True):
    """The names of a fragment with their patterns, to check those of a type that only bounds their lengths."""

    project: ProjectName
    fragment_id: FragmentId
    kind: Label = "text"


@checked
class Fragment(Struct, frozen=True, kw_only=True):
    """A fragment as a caller gives it to `tiers.store`. Raises `InvalidArgument` if a field is out of bounds.

    Without `tokens`, the client counts them. Without `project`, the client's default project is used. A `str` body is
    stored as UTF-8. `detail_depth` is the caller's own measure of how detailed
    the fragment is; it is stored and listed.

    With `keep`, reads do not promote the fragment, and neither idleness nor a tier's budget moves or deletes it. It
    takes no tokens of hot; without `tokens` they are estimated as a third of its bytes. It is meant for state that a
    program reads by id: checkpoints, sessions, memories.

    `expires_at_ms`, in milliseconds since 1970, is when the fragment expires: from that moment on it is absent. With
    `expires_after_ms`, the store and each read move that time, so that it is at least so long after them. `peek` moves
    nothing.
    """

    fragment_id: UncheckedId
    body: str | bytes | memoryview
    project: UncheckedProject | None = None
    source: Source = ""
    tokens: Tokens | None = None
    kind: UncheckedLabel = "text"
    detail_depth: Depth = 0
    metadata: Metadata = {}
    keep: bool = False
    expires_at_ms: ExpiryTime | None = None
    expires_after_ms: ExpirySpan | None = None

    def __post_init__(self) -> None:
        # The order is from cheap to expensive. Most fragments have plain names and no metadata.
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

    def __repr__(self) -> str:
        name = quoted(self.fragment_id) if self.project is None else name_in(self.project, self.fragment_id)
        size = plural(len(self.body), "character" if isinstance(self.body, str) else "byte")
        tokens = "" if self.tokens is None else plural(self.tokens, "token")
        source = self.source and f"source {quoted(self.source)}"
        return describe(self, name, source, f"kind {quoted(self.kind)}", size, tokens)

    @property
    def _has_plain_names(self) -> bool:
        """True if the names are valid for certain. False only means that the patterns have to be matched.

        Matching all patterns takes longer than everything else in the constructor.
        """
        return (
            bool(self.fragment_id)
            and self.fragment_id.isprintable()
            and self.source.isprintable()
            and known_label(self.kind) is not None
            and (self.project is None or is_project(self.project))
        )

    @property
    def _size(self) -> int:
        """The number of bytes of the body, as it will be stored."""
        body = self.body
        if isinstance(body, memoryview):
            return body.nbytes
        if isinstance(body, str) and not body.isascii():
            return len(utf8(body, "body"))
        return len(body)

    @property
    def weight(self) -> int:
        """An upper bound of the bytes that the fragment takes in a frame, or beside it."""
        metadata = 2 * limits.METADATA_BYTES_MAX if self.metadata else 0
        return self._size + 4 * len(self.source) + metadata + limits.FRAGMENT_ROW_BYTES


def name_in(project: str, fragment_id: str) -> str:
    """Return the name of a fragment for a representation."""
    return f"{quoted(fragment_id)} of {quoted(project)}"


ENCODING: Final = "o200k_base"
"""The default encoding in which tokens are counted."""

NO_METADATA: Final[dict[str, str]] = {}
"""The metadata of all rows that have none. One object is enough, because a row is never changed."""


@checked
class Work(Struct, frozen=True, array_like=True, gc=False):
    """The plan, and perhaps the changeset, for which a caller stores a fragment, as the caller says it."""

    plan_id: Identifier
    changeset_id: Identifier | None = None


class Writer(Struct, frozen=True, array_like=True, gc=False):
    """The provenance of a fragment: who has stored its body.

    The manager knows the session and its process from the operating system. `label` is the client's own name for
    itself, and `work` what it said that it was doing. All fragments of a session with equal work share one object.
    """

    session_id: str
    pid: int
    label: str = ""
    work: Work | None = None

    def __str__(self) -> str:
        name = f"{self.label} (process {self.pid})" if self.label else f"process {self.pid}"
        if self.work is None:
            return name
        changeset = f", changeset {self.work.changeset_id}" if self.work.changeset_id else ""
        return f"{name} for plan {self.work.plan_id}{changeset}"


class FragmentRow(Struct, frozen=True, array_like=True, gc=False):
    """A fragment as the manager keeps it. A change of body, tier or metadata is a new row with the same key and serial.

    `revision` is that of the body: a move between tiers does not make a writer's `expected_revision` stale. `serial`
    grows with the order of creation, which pages follow. `placed_at_ms` is the time of the last move.

    A row with `keep` counts against no tier. It is hot, with its body raw in the arena, or cold if the arena had no
    room; it moves by request or for want of room only. `expires_at_ms` is when the fragment expires, unless a read
    moves that time: with `expires_after_ms`, it expires so long after the last read at the earliest.
    """

    project: str
    fragment_id: str
    source: str
    kind: str
    detail_depth: int
    tokens: int
    size: int
    digest: bytes
    tier: Tier
    placed_at_ms: int
    created_at_ms: int
    revision: int
    serial: int
    metadata: dict[str, str]
    writer: Writer | None = None  # None: stored by a version without it
    keep: bool = False
    expires_at_ms: int | None = None
    expires_after_ms: int | None = None

    def __repr__(self) -> str:
        tokens, size = plural(self.tokens, "token"), plural(self.size, "byte")
        kind, revision = f"kind {quoted(self.kind)}", f"revision {self.revision}"
        return describe(self, name_in(*self.key), kind, self.tier, tokens, size, revision)

    @property
    def key(self) -> tuple[str, str]:
        """The key of the fragment in its table."""
        return self.project, self.fragment_id

    @property
    def held(self) -> tuple[BodyRef, ...]:
        """The bodies that the row refers to: its own."""
        return ((self.digest, self.size),)


def above(row: FragmentRow) -> Tier:
    """Return the tier to which a fragment that is not hot is promoted."""
    return HOT if row.keep else ABOVE[row.tier]


def below(row: FragmentRow) -> Tier:
    """Return the tier to which a fragment that is not cold is demoted."""
    return COLD if row.keep else BELOW[row.tier]


@checked
class TierBudget(Struct, frozen=True, kw_only=True):
    """The bounds of the tiers, global to a runtime. No value means "unlimited".

    `kept_entries` bounds the fragments with `keep`, which are in no tier. `bodies_bytes` bounds the raw bytes of all
    bodies, wherever they are. `arena_bytes` bounds the shared memory for the
    bodies of hot and warm. The times to live count from the last read or move. `promotion_threshold` is the number of
    reads in a tier after which a fragment is promoted.
    """

    hot_tokens: Positive = limits.HOT_TOKENS
    warm_entries: Positive = limits.WARM_ENTRIES
    cold_entries: Positive = limits.COLD_ENTRIES
    kept_entries: Positive = limits.KEPT_ENTRIES
    bodies_bytes: Positive = limits.BODIES_BYTES_MAX
    arena_bytes: Positive = limits.ARENA_BYTES
    hot_ttl_ms: Positive = limits.HOT_TTL_MS
    warm_ttl_ms: Positive = limits.WARM_TTL_MS
    cold_retention_ms: Positive = limits.COLD_RETENTION_MS
    promotion_threshold: Positive = limits.PROMOTION_THRESHOLD

    def __post_init__(self) -> None:
        check(self)

    @property
    def key(self) -> str:
        """The key of the only row of its table."""
        return "budget"

    @property
    def live_bytes(self) -> int:
        """The bytes of the arena that bodies may need. The rest is for segments being filled and for dead space."""
        return self.arena_bytes * limits.ARENA_LIVE_PERCENT // 100

    @property
    def receipts_bytes(self) -> int:
        """The bytes that the bodies of receipts may have, so that most of `bodies_bytes` is left for fragments."""
        return min(limits.RECEIPTS_BYTES_MAX, self.bodies_bytes * limits.RECEIPTS_PERCENT_MAX // 100)
