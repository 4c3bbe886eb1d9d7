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
from stepwell.domain.checks import utf8
from stepwell.domain.content import Digest
from stepwell.domain.fragment import Fragment, FragmentRow, Tier
from stepwell.domain.replies import FragmentFound

_BYTES_PER_TOKEN: Final = 3  # English has about 4, code about 3: an estimate should not count less than is sent


class StoredFragment(Struct, frozen=True, dict=True):
    """What `tiers.get` gives. `body` is read-only; `text` decodes it, once, when asked for."""

    row: FragmentRow
    last_accessed_ms: int
    access_count: int
    body: memoryview

    def __repr__(self) -> str:
        return (
            f"<stepwell.StoredFragment {self.fragment_id!r} of {self.project!r}, {self.tier}, "
            f"{self.tokens} tokens, revision {self.revision}>"
        )

    @property
    def project(self) -> str:
        return self.row.project

    @property
    def fragment_id(self) -> str:
        return self.row.fragment_id

    @property
    def source(self) -> str:
        return self.row.source

    @property
    def kind(self) -> str:
        return self.row.kind

    @property
    def detail_depth(self) -> int:
        return self.row.detail_depth

    @property
    def tokens(self) -> int:
        return self.row.tokens

    @property
    def tier(self) -> Tier:
        return self.row.tier

    @property
    def digest(self) -> Digest:
        return Digest(self.row.digest)

    @property
    def revision(self) -> int:
        """Of the body: what `expected_revision` compares with."""
        return self.row.revision

    @property
    def metadata(self) -> Mapping[str, str]:
        return MappingProxyType(self.row.metadata)

    @property
    def created_at(self) -> datetime:
        return _moment(self.row.created_at_ms)

    @property
    def last_accessed(self) -> datetime:
        return _moment(self.last_accessed_ms)

    @functools.cached_property
    def text(self) -> str:
        """The body as text. A body that is not UTF-8 raises `UnicodeDecodeError`."""
        return str(self.body, "utf-8")


def stored(answered: Answered[FragmentFound]) -> StoredFragment:
    """The fragment in an answer."""
    reply = answered.reply
    body = memoryview(answered.bodies[reply.row.digest])
    return StoredFragment(reply.row, reply.last_accessed_ms, reply.access_count, body)


def content(fragment: Fragment) -> bytes:
    """The bytes of a fragment's body."""
    return utf8(fragment.body, "body") if isinstance(fragment.body, str) else bytes(fragment.body)


def estimate_tokens(body: bytes) -> int:
    """Tokens of a body that came without a count: a third of its bytes, at least 1."""
    return max(1, ceil(len(body) / _BYTES_PER_TOKEN))


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
