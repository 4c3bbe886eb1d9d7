"""Texts that people read: plural forms, clipped names, and representations of values that fit on two lines.

A representation is for a notebook, a debugger or a log. It has the facts by which a person tells one value from
another, and never the body of a fragment or a file: that may be large, and it may be private.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from enum import StrEnum
from typing import Final

from msgspec import Struct

from stepwell import limits

ELLIPSIS: Final = "…"


class PlainEnum(StrEnum):
    """An enum of texts whose members are shown by their value: `'hot'`, not `<Tier.HOT: 'hot'>`."""

    def __repr__(self) -> str:
        return repr(self.value)


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Return a number with its noun: `1 fragment`, `2 fragments`; `nouns` is a plural that has not only an s more."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def clip(text: str, chars_max: int) -> str:
    """Return the text, or its beginning and an ellipsis, in at most `chars_max` characters."""
    return text if len(text) <= chars_max else text[: chars_max - 1] + ELLIPSIS


def quoted(name: str) -> str:
    """Return a name in quotes, with escapes for what cannot be printed, and clipped if it is long."""
    return repr(clip(name, limits.REPR_NAME_CHARS_MAX))


def listed(names: Sequence[str]) -> str:
    """Return the first of several names in quotes, and the number of the others."""
    others = len(names) - 1
    return ", ".join(map(quoted, names)) if others < 1 else f"{quoted(names[0])} and {plural(others, 'other')}"


def describe(value: object, subject: str, *facts: str) -> str:
    """Return a representation: `<stepwell.Plan 'p1', execute/queued>`. Empty facts are left out."""
    shown = ", ".join([subject, *filter(None, facts)])
    head = f"<stepwell.{type(value).__name__} "
    return head + clip(shown, limits.REPR_CHARS_MAX - len(head) - 1) + ">"


def brief_repr(self: Struct) -> str:
    """Return the representation of a Struct by its fields, without large values. It is used as a `__repr__`.

    Empty fields are left out. Texts are clipped. Bytes and collections are shown by their size.
    """
    fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
    shown = ", ".join(f"{name}={_brief(field)}" for name, field in fields if field not in _EMPTY)
    head = f"{type(self).__name__}("
    return head + clip(shown, limits.REPR_CHARS_MAX - len(head) - 1) + ")"


_EMPTY: Final[tuple[object, ...]] = (None, "", (), {})


def _brief(field: object) -> str:
    """Return the value of one field in a few words."""
    match field:
        case str():
            return quoted(str(field))
        case bytes():
            return f"<{plural(len(field), 'byte')}>"
        case Sized() if not isinstance(field, Struct):
            return f"<{plural(len(field), 'item')}>"
        case _:
            return clip(repr(field), limits.REPR_NAME_CHARS_MAX)
