"""A fragment as a caller gets it: an immutable value, whatever happens to the original meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from msgspec import Struct

from stepwell.client.session.lazy import lazy_property
from stepwell.domain.checks import utf8
from stepwell.domain.tiers.body_refs import Digest
from stepwell.domain.tiers.model import Fragment, FragmentRow, Tier
from stepwell.memory.reader.mappings import content
from stepwell.protocol.handles import Handle


class HeldFragment(Struct, frozen=True, dict=True):
    """What is known of a fragment, and where its body is. `text` decodes it, once, when asked for."""

    row: FragmentRow
    handle: Handle

    def __repr__(self) -> str:
        return (
            f"<stepwell.{type(self).__name__} {self.fragment_id!r} of {self.project!r}, {self.tier}, "
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
        return _utc_time(self.row.created_at_ms)

    def _read(self) -> memoryview:
        raise NotImplementedError

    @lazy_property
    def body(self) -> memoryview:
        """The body, read-only: of a hot fragment the shared memory itself, of others what is compressed there."""
        return self._read()

    @lazy_property
    def text(self) -> str:
        """The body as text. A body that is not UTF-8 raises `UnicodeDecodeError`."""
        return str(self.body, "utf-8")


class StoredFragment(HeldFragment, frozen=True):
    """What `tiers.get` gives. It stays as it is, and readable, whatever happens to the original meanwhile."""

    stored: memoryview  # on shared memory
    last_accessed_ms: int
    access_count: int

    def _read(self) -> memoryview:
        return content(self.stored, self.handle)

    @property
    def last_accessed(self) -> datetime:
        return _utc_time(self.last_accessed_ms)


class ViewedFragment(HeldFragment, frozen=True):
    """A fragment of a view. Its body is looked for when it is asked for: deleted meanwhile, it may be `BodyGone`."""

    read: Callable[[bytes, Handle], memoryview]

    def _read(self) -> memoryview:
        return self.read(self.row.digest, self.handle)


def body_bytes(fragment: Fragment) -> bytes | memoryview:
    """The bytes of a fragment's body, not copied if that can be helped."""
    match fragment.body:
        case str() as text:
            return utf8(text, "body")
        case memoryview() as view:
            return view.cast("B") if view.c_contiguous else view.tobytes()
        case body:
            return body


def _utc_time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
