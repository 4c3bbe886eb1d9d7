"""Checks of values against the bounds in their types, and the sentences that explain a violation.

A constructor does not check its arguments by itself: msgspec enforces types and bounds only when it decodes. `check`
has a constructed value converted once more, so that a value that exists is valid. `explain` turns msgspec's message
into a sentence that names the field and says what to give, with the description from the field's `Meta`.
"""

from __future__ import annotations

import contextlib
import functools
import re
from typing import Final, TypeVar, get_type_hints

import msgspec
from msgspec import Meta, Struct

from stepwell import limits
from stepwell.errors import InvalidArgument

K = TypeVar("K", bound=type[Struct])

_UTF8_BYTES_PER_CHAR_MAX: Final = 4

_bounds: dict[type[Struct], type[Struct]] = {}
"""For each checked Struct, a Struct that has only its bounded fields. Converting to it checks nothing else."""


def checked(kind: K) -> K:
    """Prepare a Struct for `check`. A class decorator, so that this happens while its module is imported.

    msgspec compiles a type when it first converts to it, and crashes if two threads make it do so at the same time.
    """
    hints = _hints(kind)
    fields = [(name, hints[name]) for name in kind.__struct_fields__ if _descriptions(hints[name])]
    _bounds[kind] = msgspec.defstruct(kind.__name__, fields)
    with contextlib.suppress(msgspec.ValidationError):  # fields are missing, but the type is compiled
        msgspec.convert({}, _bounds[kind])
    return kind


@functools.cache
def _hints(kind: type[Struct]) -> dict[str, object]:
    """Return the types of a Struct's fields with their `Meta`. Resolving them is slow, and there are few Structs."""
    return get_type_hints(kind, include_extras=True)


def _descriptions(hint: object) -> list[str]:
    """Return the descriptions in a type, the outermost first: the advice that an error message quotes."""
    own = [m.description for m in getattr(hint, "__metadata__", ()) if isinstance(m, Meta) and m.description]
    if own:
        return own
    if members := getattr(hint, "__members__", None):
        return [f"give one of {', '.join(str(member.value) for member in members.values())}"]
    return [text for part in getattr(hint, "__args__", ()) for text in _descriptions(part)]


def check(value: Struct) -> None:
    """Raise `InvalidArgument` if a field of a constructed value is out of its bounds. For `__post_init__`."""
    try:
        msgspec.convert(msgspec.structs.asdict(value), _bounds[type(value)])
    except msgspec.ValidationError as error:
        raise InvalidArgument(explain(type(value), error)) from None


# msgspec's message ends with the place of the problem. The text before it may quote the caller, and look like a place.
_WHERE = re.compile(
    r"(?s:(?P<complaint>.*)) - at (?:`key` in )?`\$(?:\[(?P<position>\d{1,4})\]|\.(?P<name>\w+))?[^`]*`\Z"
)


def explain(kind: type[Struct], error: Exception) -> str:
    """Return the sentence for a validation error of a Struct: the field, the problem and the advice."""
    where = _WHERE.match(str(error))
    name = (where["name"] or _field_at(kind, where["position"])) if where else None
    hint = _hints(kind).get(name) if name else None
    if where is None or name is None or hint is None:
        return f"{kind.__name__}: {error}"
    return _sentence(name, hint, where["complaint"])


def _field_at(kind: type[Struct], position: str | None) -> str | None:
    """Return the name of the field at a position of an `array_like` Struct, where the tag has position 0."""
    index = int(position or 0) - 1
    return kind.__struct_fields__[index] if 0 <= index < len(kind.__struct_fields__) else None


def _sentence(name: str, kind: object, complaint: str) -> str:
    """Return the sentence about one field. A regular expression is left out, because the advice says the same."""
    complaint = complaint.split(" matching regex ", 1)[0] if " matching regex " in complaint else complaint
    advice = _descriptions(kind)
    problem = "is malformed" if complaint == "Expected `str`" and advice else f"was refused ({complaint})"
    return f"{name} {problem}: {advice[0]}" if advice else f"{name} {problem}"


def require_instance(value: object, kinds: tuple[type, ...], advice: str) -> None:
    """Raise `InvalidArgument` if a value is of none of these types: not every caller has a type checker."""
    if not isinstance(value, kinds):
        raise InvalidArgument(f"{advice}, not a {type(value).__name__}")


def utf8(text: str, what: str) -> bytes:
    """Return a text as UTF-8.

    Raises `InvalidArgument` for a lone surrogate, which Python allows and Unicode does not.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"{what} contains a lone surrogate, which is not Unicode: decode its bytes with the encoding that they have"
        ) from None


def is_small_metadata(metadata: dict[str, str]) -> bool:
    """Return True if metadata passes `check_metadata` for certain. False only means that it has to be measured."""
    chars = sum(len(key) + len(text) for key, text in metadata.items())
    return _UTF8_BYTES_PER_CHAR_MAX * chars <= limits.METADATA_BYTES_MAX


def check_metadata(metadata: dict[str, str]) -> None:
    """Raise `InvalidArgument` if a fragment's metadata is too large as a whole: the types bound each entry only."""
    total = sum(len(utf8(key, "metadata")) + len(utf8(text, "metadata")) for key, text in metadata.items())
    if total > limits.METADATA_BYTES_MAX:
        raise InvalidArgument(
            f"metadata has {total} bytes, at most {limits.METADATA_BYTES_MAX} are allowed: "
            "store what is large as a body",
        )
