"""What is known of a piece of a file: where it stands, what it is called, who said it, what it refers to.

A fragment keeps that in its metadata, as texts. Whoever stores a fragment may write there what they like, so that
reading is tolerant: a value that makes no sense is as good as none.

A file has a row of its own, of kind `file`. Its body lists the parts; its metadata says of which bytes they are, so
that a file that has not changed need not be read again, and one that has lost a part is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from msgspec import Struct

from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.model import FragmentRow

FILE_KIND: Final = "file"
PART_KEY: Final = "split"
"""The metadata of a part has this key, with the version of the way of splitting; nobody else's has."""

NAME_CHARS_MAX: Final = 256  # of a heading path, say: nobody reads more
REFS_MAX: Final = 64
REFS_CHARS_MAX: Final = 2_000  # together: a fragment is not to be mostly metadata

_ID_CHARS_MAX: Final = 512
_ANCHOR_CHARS_MAX: Final = 400  # of a source in an id: what is left is for the part's name
_DIGEST_CHARS: Final = 16
_NUMBER: Final = re.compile(r"[0-9]{1,9}\Z")
_LINES: Final = re.compile(r"([0-9]{1,9})-([0-9]{1,9})\Z")
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f%]")
_UNFIT_SOURCE: Final = re.compile(r"[\x00-\x1f\x7f%#]")


class Outline(Struct, frozen=True):
    """Where a fragment stands in its source, and what it is there. What is not known is None, or empty."""

    lines: tuple[int, int] | None = None  # from 1, both included
    name: str = ""  # `Index.catch_up`, or `Design > Layout`
    order: int | None = None  # its place among the parts of its source, from 0
    speaker: str = ""
    refs: tuple[str, ...] = ()

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Outline:
        """What a fragment's metadata says."""
        refs = metadata.get("refs", "")
        return cls(
            lines=_lines(metadata.get("lines", "")),
            name=metadata.get("name", ""),
            order=_number(metadata.get("order", "")),
            speaker=metadata.get("speaker", ""),
            refs=tuple(each for each in refs.split("\n") if each)[:REFS_MAX] if refs else (),
        )

    def metadata(self) -> dict[str, str]:
        """The same as texts; what is not known is left out."""
        texts = {
            "lines": f"{self.lines[0]}-{self.lines[1]}" if self.lines else "",
            "name": self.name[:NAME_CHARS_MAX],
            "order": "" if self.order is None else str(self.order),
            "speaker": self.speaker[:NAME_CHARS_MAX],
            "refs": "\n".join(_bounded(self.refs)),
        }
        return {key: text for key, text in texts.items() if text}


class FileOutline(Struct, frozen=True):
    """Which bytes of a file were stored, and as what."""

    size: int
    mtime_ns: int  # 0: too young to be sure that the bytes cannot change without it
    digest: str  # of the file's bytes; empty while its parts are being stored
    parts: str = ""  # `fingerprint` of the rows that they came to
    root: str = ""  # the directory that the source is relative to
    skipped: str = ""  # why it has no parts
    version: str = ""  # of the way of splitting

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> FileOutline:
        """What the metadata of a file's row says."""
        return cls(
            size=_number(metadata.get("size", "")) or 0,
            mtime_ns=_nanoseconds(metadata.get("mtime_ns", "")),
            digest=metadata.get("digest", ""),
            parts=metadata.get("parts", ""),
            root=metadata.get("root", ""),
            skipped=metadata.get("skipped", ""),
            version=metadata.get("version", ""),
        )

    def metadata(self) -> dict[str, str]:
        """The same as texts; what is empty is left out."""
        texts = {field: str(getattr(self, field)) for field in self.__struct_fields__}
        return {key: text for key, text in texts.items() if text}


def is_content(row: FragmentRow) -> bool:
    """Whether a row has a body to be read: one that stands for a file has a listing of others."""
    return row.kind != FILE_KIND


def is_part(row: FragmentRow) -> bool:
    """Whether a row is a part of the file that is its source, and not what somebody else said about that file."""
    return is_content(row) and PART_KEY in row.metadata and row.fragment_id.startswith(part_prefix(row.source))


def lines_of(metadata: Mapping[str, str]) -> tuple[int, int] | None:
    """The lines alone, for whoever looks at thousands."""
    text = metadata.get("lines")
    return _lines(text) if text else None


def file_id(source: str) -> str:
    """The id of the row that stands for a file."""
    return f"{FILE_KIND}:{_anchor(source)}"


def part_prefix(source: str) -> str:
    """What the ids of a file's parts begin with."""
    return f"{_anchor(source)}#"


def part_ids(source: str, names: Iterable[str]) -> list[str]:
    """The ids of a file's parts, by their names: the same as long as their names are, whatever else is in the file.

    Those without a name are numbered; of equal ones, the later are told apart by their number.
    """
    prefix = part_prefix(source)
    ids: dict[str, None] = {}
    counts: dict[str, int] = {}
    nameless = 0
    for name in names:
        nameless += not name
        wanted = _fitted(prefix + (_UNFIT.sub(_escaped, name) if name else str(nameless)), _ID_CHARS_MAX - 8)
        found = wanted
        while found in ids:
            counts[wanted] = counts.get(wanted, 1) + 1
            found = f"{wanted}~{counts[wanted]}"
        ids[found] = None
    return list(ids)


def fingerprint(parts: Iterable[tuple[str, bytes]]) -> str:
    """Of the ids and digests of a file's parts: it differs if one of them is another, or is gone."""
    text = b"".join(digest + part_id.encode() + b"\n" for part_id, digest in sorted(parts))
    return digest_of(text).hex()[:_DIGEST_CHARS]


@lru_cache(maxsize=256)  # the rows of a file stand side by side
def _anchor(source: str) -> str:
    return _fitted(_UNFIT_SOURCE.sub(_escaped, source), _ANCHOR_CHARS_MAX)


def _escaped(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"


def _fitted(text: str, chars_max: int) -> str:
    """What is too long is cut, and ends with a digest of all of it."""
    if len(text) <= chars_max:
        return text
    return f"{text[: chars_max - _DIGEST_CHARS - 1]}~{digest_of(text.encode()).hex()[:_DIGEST_CHARS]}"


def _bounded(refs: Iterable[str]) -> list[str]:
    kept: list[str] = []
    chars = 0
    for ref in refs:
        chars += len(ref) + 1
        if len(kept) == REFS_MAX or chars > REFS_CHARS_MAX:
            break
        kept.append(ref)
    return kept


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.match(text) else None


def _nanoseconds(text: str) -> int:
    """Of a moment, which may lie before 1970."""
    return int(text) if re.match(r"-?[0-9]{1,19}\Z", text) else 0


def _lines(text: str) -> tuple[int, int] | None:
    found = _LINES.match(text)
    if found is None:
        return None
    first, last = int(found[1]), int(found[2])
    return (first, last) if 1 <= first <= last else None
