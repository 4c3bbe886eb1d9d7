"""Changesets as values: the changes of one execution, by content. Also the rules for paths."""

from __future__ import annotations

import unicodedata
from enum import StrEnum

from msgspec import Struct

from stepwell import limits
from stepwell.domain.bounded_types import Label
from stepwell.domain.changesets.paths import Mode, check_mode, path_problem
from stepwell.domain.checks import check, checked, require_instance, utf8
from stepwell.domain.tiers.body_refs import Digest, Held, digest_of
from stepwell.domain.tiers.tier import Tier
from stepwell.errors import InvalidArgument


class Operation(StrEnum):
    """What a change does to its path. Derived from the digests, never from a tool's name."""

    CREATE = "create"
    MODIFY = "modify"
    DELETE = "delete"
    MOVE = "move"


class ChangesetState(StrEnum):
    """Only an open changeset takes changes. Only a closed one counts."""

    OPEN = "open"
    CLOSED = "closed"
    ABORTED = "aborted"


@checked
class Change(Struct, frozen=True, kw_only=True):
    """What you give to `record_change`. `before` and `after` are bytes, a `Digest`, or None for "absent".

    Their modes are as `stat` has them: a regular file with its permissions, a link, whose content is its target, or an
    empty directory, whose content is b"". None is "not known": what is applied then keeps the mode that it finds.
    """

    path: str
    before: bytes | Digest | None = None
    after: bytes | Digest | None = None
    source_path: str | None = None  # where a move came from
    tool: Label = "unknown"
    before_mode: Mode | None = None
    after_mode: Mode | None = None

    def __post_init__(self) -> None:
        check(self)
        for name, path in (("path", self.path), ("source_path", self.source_path)):
            require_instance(path, (str,) if name == "path" else (str, type(None)), f"{name} is a str")
            if path is not None:
                check_path(path)
                utf8(path, name)
        for name in ("before", "after"):
            _check_content(name, getattr(self, name))
        before, after = _content_of(self.before, self.before_mode), _content_of(self.after, self.after_mode)
        for name, mode, side in (("before", self.before_mode, before), ("after", self.after_mode, after)):
            check_mode(mode, side.digest if side else None, name)
        derive_operation(before, after, self.path, self.source_path)


def _content_of(content: bytes | Digest | None, mode: int | None) -> Content | None:
    if content is None:
        return None
    digest = content.value if isinstance(content, Digest) else digest_of(content)
    return Content(digest, None, held=False, mode=mode)


def _check_content(name: str, content: object) -> None:
    require_instance(content, (bytes, Digest, type(None)), f"{name} is bytes (text.encode()), a Digest or None")
    if isinstance(content, bytes) and len(content) > limits.BODY_BYTES_MAX:
        raise InvalidArgument(f"{name} has {len(content)} bytes, at most {limits.BODY_BYTES_MAX} are allowed")


def check_path(path: str) -> None:
    """Refuse a path that is not relative and normalised: no '..', no '.', no '//', not absolute."""
    problem = path_problem(path)
    if problem is None and unicodedata.normalize("NFC", path) != path:
        problem = "is not in Unicode's normal form C"
    if problem:
        raise InvalidArgument(f"path {path[:200]!r} {problem}: give it relative to the project's root, normalised")


def derive_operation(before: Content | None, after: Content | None, path: str, source_path: str | None) -> Operation:
    """The operation that the digests and modes show, or why they show none."""
    if source_path is not None:
        if source_path == path or before is None or after is None:
            raise InvalidArgument(
                "a move needs another source_path, the content there before it and the content at path after it"
            )
        return Operation.MOVE
    if is_same(before, after):
        raise InvalidArgument(f"path {path[:200]!r}: before and after are the same, so nothing changed")
    if before is None:
        return Operation.CREATE
    return Operation.DELETE if after is None else Operation.MODIFY


class Content(Struct, frozen=True, array_like=True, gc=False):
    """One side of an entry. `held` means that the manager has the bytes, not only their digest."""

    digest: bytes
    size: int | None
    held: bool
    mode: int | None = None  # None: not known


def is_same(one: Content | None, other: Content | None) -> bool:
    """Whether two contents are one, as far as is known: a mode that is not known is any."""
    if one is None or other is None:
        return one is other
    return one.digest == other.digest and (one.mode is None or other.mode is None or one.mode == other.mode)


class EntryRow(Struct, frozen=True, array_like=True, gc=False):
    """A recorded change. None for `before` or `after` means that there was, or is, no file."""

    plan_id: str
    changeset_id: str
    seq: int
    operation: Operation
    path: str
    source_path: str | None
    before: Content | None
    after: Content | None
    tool: str
    recorded_at_ms: int
    ordinal: int = 0  # its place among all entries of its plan; 0: recorded when nobody counted, before all others

    @property
    def before_digest(self) -> Digest | None:
        return Digest(self.before.digest) if self.before else None

    @property
    def after_digest(self) -> Digest | None:
        return Digest(self.after.digest) if self.after else None

    @property
    def key(self) -> tuple[str, int]:
        return self.changeset_id, self.seq

    @property
    def held(self) -> tuple[Held, ...]:
        sides = (self.before, self.after)
        return tuple((side.digest, side.size or 0) for side in sides if side and side.held)

    @property
    def tier(self) -> Tier:
        """Where its bodies are kept: recorded to be proven once, seldom read."""
        return Tier.COLD


class Changeset(Struct, frozen=True, array_like=True):
    """A collection of entries of one plan, attempt and execution context."""

    changeset_id: str
    plan_id: str
    context_id: str
    attempt: int
    state: ChangesetState
    entry_count: int
    started_at_ms: int
    ended_at_ms: int | None = None

    @property
    def key(self) -> str:
        return self.changeset_id


class ContextRow(Struct, frozen=True, array_like=True):
    """An execution context: it owns a stack of open changesets, and exists as long as that is not empty."""

    context_id: str
    plan_id: str
    active: tuple[str, ...]

    @property
    def key(self) -> str:
        return self.context_id
