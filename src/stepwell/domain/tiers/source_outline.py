"""Outlines: the place of a fragment in its source file, and the fragment that stands for a whole file.

Ingesting splits a file into parts, each of them a fragment. The outline of a part says which lines it has, its name,
its order, its speaker (in a conversation), the names that it refers to and the places at which a secret was redacted.
A fragment keeps its outline in its metadata, as texts. A client may write any metadata, so that reading is tolerant: a
value that makes no sense counts as unknown.

A file has a row of its own, of kind `file`. Its body lists the parts. Its metadata, a `FileOutline`, identifies the
bytes of the file and the rows of its parts. A file that has not changed need therefore not be read again, and a file
that has lost a part is noticed.

The ids of parts are derived from the source and the parts' names, so that ingesting a file again replaces the same
fragments: see `part_ids`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.model import FragmentRow

FILE_KIND: Final = "file"
PART_KEY: Final = "split"
"""The metadata key that marks a part; its value is the version of the splitter. Other fragments do not have it."""

_DIGEST_CHARS: Final = 16  # 64 bits of a SHA-256: enough to tell the parts of one project apart
_COUNTER_CHARS: Final = 8  # left in an id for `~2`, `~3`, … behind equal names
_NUMBER: Final = re.compile(r"[0-9]{1,9}\Z")
_PLACE: Final = re.compile(r"([0-9]{1,9}-[0-9]{1,9}) (.{1,64})\Z")
_LINES: Final = re.compile(r"([0-9]{1,9})-([0-9]{1,9})\Z")
_UNSAFE_IN_NAME: Final = re.compile(r"[\x00-\x1f\x7f%]")
_UNSAFE_IN_SOURCE: Final = re.compile(r"[\x00-\x1f\x7f%#]")


class RedactedPlace(Struct, frozen=True, array_like=True, gc=False):
    """A place of a source at which a secret was redacted: the kind of the secret, and the first and last line."""

    kind: str
    lines: tuple[int, int]

    def __str__(self) -> str:
        first, last = self.lines
        return f"{self.kind} (line {first})" if first == last else f"{self.kind} (lines {first}-{last})"


class Outline(Struct, frozen=True, gc=False):
    """The place of a fragment in its source, its name, and its references. Unknown fields are None or empty.

    `redacted` are the places in it at which ingesting has redacted a secret.
    """

    lines: tuple[int, int] | None = None  # from 1, both included
    name: str = ""  # `Index.catch_up`, or `Design > Layout`
    order: int | None = None  # the position among the parts of its source, from 0
    speaker: str = ""
    refs: tuple[str, ...] = ()
    redacted: tuple[RedactedPlace, ...] = ()

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Outline:
        """Return the outline in a fragment's metadata. Malformed values count as unknown."""
        return cls(
            lines=_lines(metadata.get("lines", "")),
            name=metadata.get("name", ""),
            order=order_of(metadata),
            speaker=metadata.get("speaker", ""),
            refs=tuple(refs_of(metadata)),
            redacted=redacted_of(metadata),
        )

    def metadata(self) -> dict[str, str]:
        """Return the outline as metadata: known fields only, cut to their bounds."""
        texts: dict[str, str] = {}
        if self.lines:
            texts["lines"] = f"{self.lines[0]}-{self.lines[1]}"
        if self.name:
            texts["name"] = self.name[: limits.OUTLINE_NAME_CHARS_MAX]
        if self.order is not None:
            texts["order"] = str(self.order)
        if self.speaker:
            texts["speaker"] = self.speaker[: limits.OUTLINE_NAME_CHARS_MAX]
        if refs := _joined_refs(self.refs):
            texts["refs"] = refs
        if self.redacted:
            texts["redacted"] = "\n".join(f"{each.lines[0]}-{each.lines[1]} {each.kind}" for each in self.redacted)
        return texts


class FileOutline(Struct, frozen=True):
    """The identity of a file's bytes and of the rows of its parts: enough to notice a change of either."""

    size: int
    mtime_ns: int  # 0: so recent that the bytes may change again without it
    digest: str  # of the file's bytes; empty while its parts are being stored
    parts: str = ""  # the `fingerprint` of the rows of its parts
    root: str = ""  # the directory that the source is relative to
    skipped: str = ""  # the reason why it has no parts
    version: str = ""  # of the rules: how the file is split, and which secrets are redacted
    redacted: int = 0  # the number of secrets that were redacted in it

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> FileOutline:
        """Return the outline in the metadata of a file's row. Malformed values count as unknown."""
        return cls(
            size=_number(metadata.get("size", "")) or 0,
            mtime_ns=_nanoseconds(metadata.get("mtime_ns", "")),
            digest=metadata.get("digest", ""),
            parts=metadata.get("parts", ""),
            root=metadata.get("root", ""),
            skipped=metadata.get("skipped", ""),
            version=metadata.get("version", ""),
            redacted=_number(metadata.get("redacted", "")) or 0,
        )

    def metadata(self) -> dict[str, str]:
        """Return the outline as metadata, without empty fields."""
        texts = {field: str(getattr(self, field)) for field in self.__struct_fields__}
        texts["redacted"] = str(self.redacted or "")
        return {key: text for key, text in texts.items() if text}


def is_content(row: FragmentRow) -> bool:
    """Return True if a row has content of its own. A row that stands for a file only lists other rows."""
    return row.kind != FILE_KIND


def stands_for_file(row: FragmentRow) -> bool:
    """Return True if a row is the one that ingesting made for a file as a whole.

    It is no fragment to a user. A fragment of the same kind that a client stored has another id.
    """
    return row.kind == FILE_KIND and row.fragment_id == file_id(row.source)


def is_part(row: FragmentRow) -> bool:
    """Return True if a row is a part that ingesting made of its source, and not a fragment that a client stored."""
    return is_content(row) and PART_KEY in row.metadata and row.fragment_id.startswith(part_prefix(row.source))


def lines_of(metadata: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the lines alone: `Outline.of` is too slow for thousands of rows."""
    text = metadata.get("lines")
    return _lines(text) if text else None


def order_of(metadata: Mapping[str, str]) -> int | None:
    """Return the order alone, as `lines_of` does for lines."""
    text = metadata.get("order")
    return _number(text) if text else None


def refs_of(metadata: Mapping[str, str]) -> list[str]:
    """Return the references alone, as `lines_of` does for lines."""
    text = metadata.get("refs")
    return [*filter(None, text.split("\n"))][: limits.OUTLINE_REFS_MAX] if text else []


def redacted_of(metadata: Mapping[str, str]) -> tuple[RedactedPlace, ...]:
    """Return the redacted places alone, as `lines_of` does for lines. Malformed ones are left out."""
    text = metadata.get("redacted")
    if not text:
        return ()
    found = (_place(each) for each in text.split("\n")[: limits.OUTLINE_REDACTED_MAX])
    return tuple(place for place in found if place is not None)


def places_within(places: Sequence[RedactedPlace], lines: tuple[int, int] | None) -> tuple[RedactedPlace, ...]:
    """Return the places that some lines have a part of.

    If there are too many to be listed, the last one stands for all that follow.
    """
    if lines is None:
        return ()
    found = [each for each in places if each.lines[0] <= lines[1] and each.lines[1] >= lines[0]]
    if len(found) <= limits.OUTLINE_REDACTED_MAX:
        return tuple(found)
    others = found[limits.OUTLINE_REDACTED_MAX - 1 :]
    rest = RedactedPlace(f"{len(others)} more", (others[0].lines[0], others[-1].lines[1]))
    return (*found[: limits.OUTLINE_REDACTED_MAX - 1], rest)


def file_id(source: str) -> str:
    """Return the id of the row that stands for a file."""
    return f"{FILE_KIND}:{_anchor(source)}"


def part_prefix(source: str) -> str:
    """Return the prefix of the ids of a file's parts."""
    return f"{_anchor(source)}#"


def part_ids(source: str, names: Iterable[str]) -> list[str]:
    """Return an id for each part of a file, made of the part's name.

    An id stays the same as long as the part's name does, wherever the part moves in the file. Parts without a name get
    their number among these; parts with equal names get a counter from the second one on.
    """
    prefix = part_prefix(source)
    ids: dict[str, None] = {}
    counts: dict[str, int] = {}
    nameless = 0
    for name in names:
        nameless += not name
        own_name = _UNSAFE_IN_NAME.sub(_escaped, name) if name else str(nameless)
        wanted = _shortened(prefix + own_name, limits.FRAGMENT_ID_CHARS_MAX - _COUNTER_CHARS)
        found = wanted
        while found in ids:
            counts[wanted] = counts.get(wanted, 1) + 1
            found = f"{wanted}~{counts[wanted]}"
        ids[found] = None
    return list(ids)


def fingerprint(parts: Iterable[tuple[str, bytes]]) -> str:
    """Return a hash of the ids and digests of a file's parts. It differs if a part was changed, added or lost."""
    text = b"".join(digest + part_id.encode() + b"\n" for part_id, digest in sorted(parts))
    return digest_of(text).hex()[:_DIGEST_CHARS]


@lru_cache(maxsize=limits.OUTLINE_ANCHORS_CACHED_MAX)
def _anchor(source: str) -> str:
    """Return the source as it stands in ids: escaped, and shortened if it is long."""
    return _shortened(_UNSAFE_IN_SOURCE.sub(_escaped, source), limits.OUTLINE_ANCHOR_CHARS_MAX)


def _escaped(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"


def _shortened(text: str, chars_max: int) -> str:
    """Return a text of at most `chars_max` characters. A longer one is cut and ends with a digest of the whole."""
    if len(text) <= chars_max:
        return text
    return f"{text[: chars_max - _DIGEST_CHARS - 1]}~{digest_of(text.encode()).hex()[:_DIGEST_CHARS]}"


def _joined_refs(refs: Sequence[str]) -> str:
    """Return the first references that fit into the bounds, a line for each."""
    text = "\n".join(refs)
    if len(refs) <= limits.OUTLINE_REFS_MAX and len(text) < limits.OUTLINE_REFS_CHARS_MAX:
        return text
    fitting: list[str] = []
    chars = 0
    for ref in refs:
        chars += len(ref) + 1
        if len(fitting) == limits.OUTLINE_REFS_MAX or chars > limits.OUTLINE_REFS_CHARS_MAX:
            break
        fitting.append(ref)
    return "\n".join(fitting)


def _number(text: str) -> int | None:
    """Return a number that is not negative; None if it is malformed or too long."""
    return int(text) if _NUMBER.match(text) else None


def _nanoseconds(text: str) -> int:
    """Return a time of modification, which may lie before 1970; 0 if it is malformed."""
    return int(text) if re.match(r"-?[0-9]{1,19}\Z", text) else 0


def _place(text: str) -> RedactedPlace | None:
    """Return the place of `3-7 private key`; None if it is malformed."""
    found = _PLACE.match(text)
    lines = _lines(found[1]) if found else None
    return RedactedPlace(found[2], lines) if found and lines else None


def _lines(text: str) -> tuple[int, int] | None:
    """Return the first and last line of `3-7`; None if it is malformed."""
    found = _LINES.match(text)
    if found is None:
        return None
    first, last = int(found[1]), int(found[2])
    return (first, last) if 1 <= first <= last else None
