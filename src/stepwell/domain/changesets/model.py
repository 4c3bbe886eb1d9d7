"""The values of changesets: changes as a client gives them, and entries, changesets and contexts as they are stored.

A content is identified by its SHA-256 digest, never by a path or a time, so a proof can compare digests alone. The
operation of an entry is derived from its two contents, because the name of a tool says nothing about its effect.
"""

from __future__ import annotations

import unicodedata
from typing import Protocol

from msgspec import Struct

from stepwell import limits
from stepwell.domain.bounded_types import Label
from stepwell.domain.changesets.paths import Mode, check_mode, path_problem
from stepwell.domain.checks import check, checked, require_instance, utf8
from stepwell.domain.tiers.body_refs import Digest, digest_of
from stepwell.domain.tiers.model import BodyRef, Tier
from stepwell.errors import InvalidArgument
from stepwell.text import PlainEnum, brief_repr, plural


class Operation(PlainEnum):
    """The effect of a change on its path. It is derived from the digests, never from a tool's name."""

    CREATE = "create"
    MODIFY = "modify"
    DELETE = "delete"
    MOVE = "move"


class ChangesetState(PlainEnum):
    """Only an open changeset takes changes. Only a closed one counts. Both ends are final."""

    OPEN = "open"
    CLOSED = "closed"
    ABORTED = "aborted"


@checked
class Change(Struct, frozen=True, kw_only=True):
    """A change as a client gives it to `record_change`. `before` and `after` are bytes, a `Digest`, or None for
    "absent".

    The modes are those of `stat`: a regular file with its permissions; a link, whose content is its target; or an empty
    directory, whose content is b"". None means "not known": applying the change then keeps the mode that it finds.
    `source_path` is the path from which a move took the file.

    The constructor checks everything that the manager would refuse, so a mistake is raised where it was made.
    """

    path: str
    before: bytes | Digest | None = None
    after: bytes | Digest | None = None
    source_path: str | None = None
    tool: Label = "unknown"
    before_mode: Mode | None = None
    after_mode: Mode | None = None

    __repr__ = brief_repr

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
    """Return one side of a change as a `Content`; only its digest and mode matter for the checks."""
    if content is None:
        return None
    digest = content.value if isinstance(content, Digest) else digest_of(content)
    return Content(digest, None, held=False, mode=mode)


def _check_content(name: str, content: object) -> None:
    """Raise `InvalidArgument` unless the content is bytes of an allowed size, a `Digest` or None."""
    require_instance(content, (bytes, Digest, type(None)), f"{name} is bytes (text.encode()), a Digest or None")
    if isinstance(content, bytes) and len(content) > limits.BODY_BYTES_MAX:
        raise InvalidArgument(
            f"{name} has {plural(len(content), 'byte')}, at most {limits.BODY_BYTES_MAX:,} are allowed"
        )


def check_path(path: str) -> None:
    """Raise `InvalidArgument` unless the path is relative, normalised and in Unicode's normal form C.

    Form C is required, because file systems differ in whether two spellings of one character name the same file.
    """
    problem = path_problem(path)
    if problem is None and unicodedata.normalize("NFC", path) != path:
        problem = "is not in Unicode's normal form C"
    if problem:
        shown = path[: limits.PATH_CHARS_SHOWN]
        raise InvalidArgument(f"path {shown!r} {problem}: give it relative to the project's root, normalised")


def derive_operation(before: Content | None, after: Content | None, path: str, source_path: str | None) -> Operation:
    """Return the operation that the two contents show. Raise `InvalidArgument` if they show no change, or no valid
    move.
    """
    if source_path is not None:
        if source_path == path or before is None or after is None:
            raise InvalidArgument(
                "a move needs another source_path, the content there before it and the content at path after it"
            )
        return Operation.MOVE
    if is_same(before, after):
        shown = path[: limits.PATH_CHARS_SHOWN]
        raise InvalidArgument(f"path {shown!r}: before and after are the same, so nothing changed")
    if before is None:
        return Operation.CREATE
    return Operation.DELETE if after is None else Operation.MODIFY


class Content(Struct, frozen=True, array_like=True, gc=False):
    """One side of an entry. `held` is true if the manager stores the bytes, not only their digest.

    `size` is None if it is not known, because the client gave a digest. `mode` is None if it is not known.
    """

    digest: bytes
    size: int | None
    held: bool
    mode: int | None = None


def is_same(one: Content | None, other: Content | None) -> bool:
    """Return True if two contents are equal as far as is known: an unknown mode equals every mode."""
    if one is None or other is None:
        return one is other
    return one.digest == other.digest and (one.mode is None or other.mode is None or one.mode == other.mode)


class EntryRow(Struct, frozen=True, array_like=True, gc=False):
    """A recorded change. `before` or `after` is None if there was, or is, no file.

    `seq` is the number of the entry in its changeset, from 1. `ordinal` is its number among all entries of its plan,
    which gives the order of entries that were recorded into two open changesets in turn. It is 0 for entries that an
    early version stored without counting; they come before all others.
    """

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
    ordinal: int = 0

    __repr__ = brief_repr

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
    def held(self) -> tuple[BodyRef, ...]:
        """The digest and size of each body that the manager stores for this entry."""
        before, after = self.before, self.after
        held: tuple[BodyRef, ...] = ()
        if before is not None and before.held:
            held = ((before.digest, before.size or 0),)
        if after is not None and after.held:
            held += ((after.digest, after.size or 0),)
        return held

    @property
    def tier(self) -> Tier:
        """The tier of the entry's bodies: cold, because they are read seldom, mostly once to be applied or compared."""
        return Tier.COLD


class Changeset(Struct, frozen=True, array_like=True):
    """A group of entries that one execution context of a plan recorded in one attempt, and that count together.

    `entry_count` is also the `seq` of the last entry. `ended_at_ms` is None while the changeset is open.
    """

    changeset_id: str
    plan_id: str
    context_id: str
    attempt: int
    state: ChangesetState
    entry_count: int
    started_at_ms: int
    ended_at_ms: int | None = None

    __repr__ = brief_repr

    @property
    def key(self) -> str:
        return self.changeset_id


class ChangesetOwner(Protocol):
    """The part of a plan that the rules of changesets read.

    It is a protocol, because plans depend on changesets and not the other way round.
    """

    @property
    def plan_id(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def changeset_ids(self) -> tuple[str, ...]: ...


class ContextRow(Struct, frozen=True, array_like=True):
    """An execution context: the stack of its open changesets, the latest last.

    The row exists while the stack is not empty. A client has one context for each thread or task that records, so that
    concurrent recordings do not mix.
    """

    context_id: str
    plan_id: str
    active: tuple[str, ...]

    @property
    def key(self) -> str:
        return self.context_id
