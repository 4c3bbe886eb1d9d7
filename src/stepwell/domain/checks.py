"""Holding values to the bounds in their types, and saying in a sentence what is wrong with them."""

from __future__ import annotations

import contextlib
import functools
import re
from typing import TypeVar, get_type_hints

import msgspec
from msgspec import Meta, Struct

from stepwell import limits
from stepwell.errors import InvalidArgument

K = TypeVar("K", bound=type[Struct])

_bounds: dict[type[Struct], type[Struct]] = {}
"""For each checked Struct, one of its bounded fields alone."""


def checked(kind: K) -> K:
    """Prepare a Struct for `check`, while its module is imported.

    The converter compiles a type when it first meets it, and crashes if two threads make it do so at once.
    """
    hints = _hints(kind)
    fields = [(name, hints[name]) for name in kind.__struct_fields__ if _descriptions(hints[name])]
    _bounds[kind] = msgspec.defstruct(kind.__name__, fields)
    with contextlib.suppress(msgspec.ValidationError):  # fields are missing, but the type is compiled
        msgspec.convert({}, _bounds[kind])
    return kind


@functools.cache
def _hints(kind: type[Struct]) -> dict[str, object]:
    return get_type_hints(kind, include_extras=True)


def _descriptions(hint: object) -> list[str]:
    """The advice of a type, outermost first."""
    own = [m.description for m in getattr(hint, "__metadata__", ()) if isinstance(m, Meta) and m.description]
    if own:
        return own
    if members := getattr(hint, "__members__", None):
        return [f"give one of {', '.join(str(member.value) for member in members.values())}"]
    return [text for part in getattr(hint, "__args__", ()) for text in _descriptions(part)]


def check(value: Struct) -> None:
    """Hold a constructed value to the bounds in its types: an object that exists is valid."""
    try:
        msgspec.convert(msgspec.structs.asdict(value), _bounds[type(value)])
    except msgspec.ValidationError as error:
        raise InvalidArgument(explain(type(value), error)) from None


# The place comes last; before it stands text that the caller chose, which may look like a place.
_WHERE = re.compile(
    r"(?s:(?P<complaint>.*)) - at (?:`key` in )?`\$(?:\[(?P<position>\d{1,4})\]|\.(?P<name>\w+))?[^`]*`\Z"
)


def explain(kind: type[Struct], error: Exception) -> str:
    """Turn the decoder's complaint about a Struct into a sentence that names the field and what to do."""
    where = _WHERE.match(str(error))
    name = (where["name"] or _field_at(kind, where["position"])) if where else None
    hint = _hints(kind).get(name) if name else None
    if where is None or name is None or hint is None:
        return f"{kind.__name__}: {error}"
    return _sentence(name, hint, where["complaint"])


def _field_at(kind: type[Struct], position: str | None) -> str | None:
    """The field at a place of an `array_like` Struct, whose tag comes first."""
    index = int(position or 0) - 1
    return kind.__struct_fields__[index] if 0 <= index < len(kind.__struct_fields__) else None


def _sentence(name: str, kind: object, complaint: str) -> str:
    complaint = complaint.split(" matching regex ", 1)[0] if " matching regex " in complaint else complaint
    advice = _descriptions(kind)
    problem = "is malformed" if complaint == "Expected `str`" and advice else f"was refused ({complaint})"
    return f"{name} {problem}: {advice[0]}" if advice else f"{name} {problem}"


def require_instance(value: object, kinds: tuple[type, ...], advice: str) -> None:
    """A caller without a type checker gives anything, and gets a typed error for it."""
    if not isinstance(value, kinds):
        raise InvalidArgument(f"{advice}, not a {type(value).__name__}")


def utf8(text: str, what: str) -> bytes:
    """The bytes of a text. What Python calls a text may still not be Unicode."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"{what} contains a lone surrogate, which is not Unicode: decode its bytes with the encoding that they have"
        ) from None


def check_metadata(metadata: dict[str, str]) -> None:
    """Bound the whole of a fragment's metadata, which the types bound only one by one."""
    total = sum(len(utf8(key, "metadata")) + len(utf8(text, "metadata")) for key, text in metadata.items())
    if total > limits.METADATA_BYTES_MAX:
        raise InvalidArgument(
            f"metadata has {total} bytes, at most {limits.METADATA_BYTES_MAX} are allowed: "
            "store what is large as a body",
        )
