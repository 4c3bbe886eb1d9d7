"""A fragment as a caller gets it: an immutable value, whatever happens to the original meanwhile."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import UTC, datetime
from math import ceil
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from stepwell.client.calls import Answered
from stepwell.domain.content import Digest
from stepwell.domain.fragment import Fragment, Tier
from stepwell.domain.names import utf8
from stepwell.domain.replies import FragmentFound

_BYTES_PER_TOKEN: Final = 3  # English has about 4, code about 3: an estimate should not count less than is sent


class StoredFragment(Struct, frozen=True, dict=True):
    """What `tiers.get` gives. `body` is read-only; `text` decodes it, once, when asked for."""

    project: str
    fragment_id: str
    source: str
    kind: str
    detail_depth: int
    tokens: int
    tier: Tier
    digest: Digest
    revision: int
    created_at: datetime
    last_accessed: datetime
    access_count: int
    metadata: Mapping[str, str]
    body: memoryview

    @functools.cached_property
    def text(self) -> str:
        """The body as text. A body that is not UTF-8 raises `UnicodeDecodeError`."""
        return str(self.body, "utf-8")


def stored(answered: Answered[FragmentFound]) -> StoredFragment:
    """The fragment in an answer."""
    reply, row = answered.reply, answered.reply.row
    return StoredFragment(
        project=row.project,
        fragment_id=row.fragment_id,
        source=row.source,
        kind=row.kind,
        detail_depth=row.detail_depth,
        tokens=row.tokens,
        tier=row.tier,
        digest=Digest(row.digest),
        revision=row.revision,
        created_at=_moment(row.created_at_ms),
        last_accessed=_moment(reply.last_accessed_ms),
        access_count=reply.access_count,
        metadata=MappingProxyType(row.metadata),
        body=memoryview(answered.bodies[row.digest]),
    )


def content(fragment: Fragment) -> bytes:
    """The bytes of a fragment's body."""
    return utf8(fragment.body, "body") if isinstance(fragment.body, str) else bytes(fragment.body)


def estimate_tokens(body: bytes) -> int:
    """Tokens of a body that came without a count: a third of its bytes, at least 1."""
    return max(1, ceil(len(body) / _BYTES_PER_TOKEN))


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
