"""Fragments as a caller gets them: immutable values with a body that is read when it is first asked for.

The value never changes, whatever happens to the fragment in the manager meanwhile. Two kinds differ in how long the
body stays readable: a `StoredFragment` holds its memory, a `ViewedFragment` only knows where the body was.

Both can be copied, and pickled for another process. A deep copy and a pickle have the bytes of the body themselves,
because shared memory is mapped by the process that has read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from msgspec import Struct

from stepwell.client.session.lazy import lazy_property
from stepwell.domain.checks import utf8
from stepwell.domain.tiers.body_refs import Digest
from stepwell.domain.tiers.model import Fragment, FragmentRow, Tier, Writer, name_in
from stepwell.memory.reader.mappings import content
from stepwell.protocol.handles import Handle
from stepwell.text import describe, plural


class HeldFragment(Struct, frozen=True, dict=True):
    """The row of a fragment, and the handle of its body. Any number of threads may use it.

    A body that has to be expanded or located, and `text`, are computed once, at their first use.
    """

    row: FragmentRow
    handle: Handle

    def __repr__(self) -> str:
        tokens = plural(self.tokens, "token")
        return describe(self, name_in(*self.row.key), self.tier, tokens, f"revision {self.revision}")

    @property
    def project(self) -> str:
        return self.row.project

    @property
    def fragment_id(self) -> str:
        return self.row.fragment_id

    @property
    def source(self) -> str:
        """The origin of the text, for example the path of a file; may be empty."""
        return self.row.source

    @property
    def kind(self) -> str:
        """The label of the content, "text" by default."""
        return self.row.kind

    @property
    def detail_depth(self) -> int:
        """The level of detail of the content, from 0 to 16."""
        return self.row.detail_depth

    @property
    def tokens(self) -> int:
        """The number of tokens that count against the budget."""
        return self.row.tokens

    @property
    def tier(self) -> Tier:
        """The tier at the time of the read; the manager may have moved the fragment since."""
        return self.row.tier

    @property
    def digest(self) -> Digest:
        """The digest of the body."""
        return Digest(self.row.digest)

    @property
    def revision(self) -> int:
        """The revision of the body, with which `expected_revision` is compared."""
        return self.row.revision

    @property
    def metadata(self) -> Mapping[str, str]:
        """The caller's own labels, read-only."""
        return MappingProxyType(self.row.metadata)

    @property
    def is_kept(self) -> bool:
        """True if reads do not promote the fragment, and no tier counts, demotes or deletes it."""
        return self.row.keep

    @property
    def expires_at(self) -> datetime | None:
        """The time at which the fragment expires, in UTC, if no read moves it; None for never."""
        return None if self.row.expires_at_ms is None else _utc_time(self.row.expires_at_ms)

    @property
    def writer(self) -> Writer | None:
        """The session, process, label and plan that stored the body; None if an older version did."""
        return self.row.writer

    @property
    def created_at(self) -> datetime:
        """The time at which the fragment was first stored, in UTC."""
        return _utc_time(self.row.created_at_ms)

    def _read(self) -> memoryview:
        """Return the bytes of the body."""
        raise NotImplementedError

    @property
    def body(self) -> memoryview:
        """The body, read-only: for a hot fragment the shared memory itself, otherwise an expanded copy."""
        return self._read()

    @lazy_property
    def text(self) -> str:
        """The body as text. A body that is not UTF-8 raises `UnicodeDecodeError`."""
        return str(self.body, "utf-8")


class StoredFragment(HeldFragment, frozen=True):
    """The result of `tiers.get`.

    It holds a view of the body's memory, so it stays readable after the fragment is deleted.
    """

    stored: memoryview  # of shared memory, which it keeps mapped; compressed or not, as `handle` says
    last_accessed_ms: int
    access_count: int

    def __reduce__(self) -> tuple[object, ...]:
        return _stored, (self.row, self.handle, bytes(self.stored), self.last_accessed_ms, self.access_count)

    def _read(self) -> memoryview:
        return self._expanded if self.handle.packed_bytes else self.stored

    @lazy_property
    def _expanded(self) -> memoryview:
        return content(self.stored, self.handle)

    @property
    def last_accessed(self) -> datetime:
        """The time of the last access, in UTC; this read is one."""
        return _utc_time(self.last_accessed_ms)


class ViewedFragment(HeldFragment, frozen=True):
    """A fragment of a view. Its body is located when it is asked for.

    A view may have millions of fragments, so it holds no memory of theirs: a body that was deleted meanwhile may be
    `BodyGone`. Pickling or deep-copying the fragment reads the body.
    """

    read: Callable[[bytes, Handle], memoryview]

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.row, self.handle, CopiedBody(bytes(self.body)))

    def _read(self) -> memoryview:
        return self._located

    @lazy_property
    def _located(self) -> memoryview:
        return self.read(self.row.digest, self.handle)


class CopiedBody(Struct, frozen=True):
    """The body of a fragment that has left its view; it stands where the reader of the view's bodies stood."""

    body: bytes

    def __call__(self, _digest: bytes, _handle: Handle) -> memoryview:
        return memoryview(self.body)


def _stored(
    row: FragmentRow, handle: Handle, stored: bytes, last_accessed_ms: int, access_count: int
) -> StoredFragment:
    """Return a fragment that was pickled, with memory of its own."""
    return StoredFragment(row, handle, memoryview(stored), last_accessed_ms, access_count)


def body_bytes(fragment: Fragment) -> bytes | memoryview:
    """Return the bytes of a fragment's body, without a copy if possible."""
    match fragment.body:
        case str() as text:
            return utf8(text, "body")
        case memoryview() as view:
            return view.cast("B") if view.c_contiguous else view.tobytes()
        case body:
            return body


def _utc_time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
