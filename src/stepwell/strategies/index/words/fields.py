"""The fields of a fragment: which texts it is found by, and how much a word counts in each of them.

| field | weight | text |
|---|---|---|
| path | 4 | the source |
| name | 5 | the qualified names of what is defined in it; of prose, its headings |
| signature | 1 | of the first definition, without its body |
| docstring | 0.7 | the comment above a definition or, in Python, the string below its signature |
| code | 0.4 | identifiers |
| strings | 1 | |
| comments | 0.5 | |
| prose | 1 | the body of anything that is no program |
| speaker | 2 | of a conversation |

Weights are whole numbers of tenths, so that sums are exact. Fields are made from the body and the row when a fragment
is indexed, and nothing of them is stored. A field that a fragment does not have costs nothing.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import part_prefix
from stepwell.strategies.index.words.lexical_syntax import LexicalSyntax, is_string, syntax_of

TURN_KIND: Final = "turn"
CODE_KIND: Final = "code"

WEIGHT_UNIT: Final = 10
"""The number of steps in a weight of 1."""


class Weights(Struct, frozen=True):
    """The weight of a term in each field, in tenths; 0 leaves a field out."""

    path: int = 40
    name: int = 50
    fragment_id: int = 30
    speaker: int = 20
    signature: int = 10
    docstring: int = 7
    code: int = 4
    strings: int = 10
    comments: int = 5
    prose: int = 10


class Field(Struct, frozen=True, gc=False):
    """A text of a fragment, and the weight of its words.

    `is_body` says that it is a part of the body; every byte of the body is in one such field. `is_code` says that the
    keywords of programming languages are left out.
    """

    text: bytes
    weight: int
    is_body: bool = True
    is_code: bool = False


_HEAD_BYTES_MAX: Final = 1_000  # of a signature
_PYTHON_HEAD: Final = re.compile(
    rb"(?:\s*(?:@[^\n]*|#[^\n]*)?\n)*+[ \t]*(?:(?:async[ \t]+)?def|class)\b"
    rb".*?(?:\)[ \t]*:|->[^:\n]*:|\w[ \t]*:[ \t]*(?:#[^\n]*)?\n)",
    re.DOTALL,
)
_HEAD: Final = re.compile(rb"[^\n{;]*[\n{;]")
_SPACE: Final = re.compile(rb"\s*")


def fields_of(row: FragmentRow, body: memoryview, weights: Weights) -> Iterator[Field]:
    """Yield the fields of a fragment. A body that is not UTF-8 has none."""
    yield from _names(row, weights)
    text = indexed_text(body)
    syntax = syntax_of(row.source) if row.kind == CODE_KIND else None
    if syntax is None:
        yield Field(text, weights.prose)
    else:
        yield from _program(text, syntax, weights)


def _names(row: FragmentRow, weights: Weights) -> Iterator[Field]:
    """Yield the fields that are not in the body. The id of a part repeats its source and name, so it counts nothing."""
    yield Field(row.source.encode(), weights.path, is_body=False)
    if not row.fragment_id.startswith(_prefix(row.source)):
        yield Field(row.fragment_id.encode(), weights.fragment_id, is_body=False)
    if row.metadata:
        name, speaker = labels(row)
        yield Field(name.encode(), weights.name, is_body=False)
        yield Field(speaker.encode(), weights.speaker, is_body=False)


def labels(row: FragmentRow) -> tuple[str, str]:
    """Return the name and the speaker of a fragment."""
    metadata = row.metadata
    return metadata.get("name", ""), metadata.get("speaker", "")


_prefix: Final = lru_cache(maxsize=1_000)(part_prefix)


def _program(text: bytes, syntax: LexicalSyntax, weights: Weights) -> Iterator[Field]:
    """Yield the fields of a piece of a program."""
    head_from, head_to = _head(text, syntax)
    found = syntax.split(text, head_to)
    documentation, code, others = text[:head_from], found[::2], found[1::2]
    if syntax.is_documented_inside and others and is_string(others[0]) and code[0].isspace():
        documentation = b" ".join((documentation, others.pop(0)))
    strings = [each for each in others if is_string(each)]
    comments = [each for each in others if not is_string(each)] if len(strings) < len(others) else []
    yield Field(text[head_from:head_to], weights.signature, is_code=True)
    yield Field(documentation, weights.docstring)
    yield Field(b" ".join(code), weights.code, is_code=True)
    yield Field(b" ".join(strings), weights.strings)
    yield Field(b" ".join(comments), weights.comments)


def _head(text: bytes, syntax: LexicalSyntax) -> tuple[int, int]:
    """Return the position of the signature of the definition that a text begins with; empty if it begins with none.

    The documentation of the definition stands before it, unless the language has it inside.
    """
    if syntax.is_documented_inside:
        found = _PYTHON_HEAD.match(text, 0, _HEAD_BYTES_MAX)
        return 0, found.end() if found else 0
    at = _after_space(text, 0)
    while (comment := syntax.pattern.match(text, at)) and comment.lastindex == 1:
        at = _after_space(text, comment.end())
    head = _HEAD.match(text, at, at + _HEAD_BYTES_MAX)
    return at, head.end() if head else at


def _after_space(text: bytes, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def indexed_text(body: memoryview) -> bytes:
    """Return the beginning of a body, up to a whole character; nothing if it is not UTF-8."""
    text = bytes(body[: limits.INDEXED_BODY_BYTES_MAX])
    if text.isascii():
        return text
    try:
        return text[: codecs.utf_8_decode(text, "strict", len(text) == len(body))[1]]
    except UnicodeDecodeError:
        return b""


def has_same_fields(before: FragmentRow, after: FragmentRow) -> bool:
    """Return True if two rows of a fragment have the same fields; the tier may differ."""
    return (
        before.digest == after.digest
        and before.source == after.source
        and (before.kind == after.kind or not {before.kind, after.kind} & {CODE_KIND, TURN_KIND})
        and (before.metadata == after.metadata or _indexed_metadata(before) == _indexed_metadata(after))
    )


def _indexed_metadata(row: FragmentRow) -> tuple[str, ...]:
    """Return the metadata that are fields; the lines of a fragment, for instance, are not."""
    return *labels(row), row.metadata.get("refs", "")
