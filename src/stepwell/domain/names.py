"""Identifiers and texts: their bounds as types, and the one parser of action and actor names.

A bound stands once, in a `Meta`, with a description that tells the caller what to do. The manager's decoder
enforces it on everything that arrives; `check` enforces it on the values that a caller constructs.
"""

from __future__ import annotations

import functools
import re
from typing import Annotated, get_type_hints

import msgspec
from msgspec import Meta, Struct

from stepwell import limits
from stepwell.errors import InvalidArgument

# "\Z", not "$": the latter lets a trailing newline pass.
ProjectName = Annotated[
    str,
    Meta(
        max_length=128,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*\Z",
        description="a project is 1 to 128 letters, digits, '.', '_' and '-', in parts separated by '/'",
    ),
]
FragmentId = Annotated[
    str,
    Meta(
        max_length=512,
        pattern=r"^[^\x00-\x1f\x7f]+\Z",
        description="give 1 to 512 characters, none of them a control character",
    ),
]
Label = Annotated[
    str,
    Meta(
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]*\Z",
        description="give 1 to 64 letters, digits and any of '._/:-', beginning with a letter or digit",
    ),
]
Identifier = Annotated[
    str,
    Meta(max_length=64, pattern=r"^[0-9A-Za-z-]+\Z", description="give an id as stepwell returned it"),
]
Source = Annotated[str, Meta(max_length=4096, description="a source is a path or URI of at most 4096 characters")]
MetadataKey = Annotated[str, Meta(min_length=1, max_length=128, description="a metadata key has 1 to 128 characters")]
MetadataValue = Annotated[
    str, Meta(max_length=8192, description="a metadata value has at most 8192 characters; store it as a body")
]
Metadata = Annotated[
    dict[MetadataKey, MetadataValue],
    Meta(
        max_length=limits.METADATA_ENTRIES_MAX,
        description="give at most 64 metadata entries, 16 KiB in all; store what is larger as a body",
    ),
]
Tokens = Annotated[int, Meta(ge=1, le=2**53, description="tokens are a whole number, at least 1")]
Revision = Annotated[int, Meta(ge=0, le=2**63 - 1, description="a revision is a whole number, 0 for 'absent'")]
Positive = Annotated[int, Meta(ge=1, le=2**53, description="give a whole number, at least 1")]
Body = Annotated[bytes, Meta(max_length=limits.BODY_BYTES_MAX, description="a body has at most 4 MiB; split it")]
Sentence = Annotated[str, Meta(max_length=limits.ERROR_CHARS_MAX, description="give at most 2000 characters")]
Text = Annotated[str, Meta(max_length=limits.TEXT_CHARS_MAX, description="give at most 64000 characters")]
Glob = Annotated[
    str,
    Meta(min_length=1, max_length=limits.PATTERN_CHARS_MAX, description="give a glob such as 'src/**/*.py'"),
]
PageLimit = Annotated[
    int,
    Meta(ge=1, le=limits.PAGE_ROWS_MAX, description="a page has 1 to 1000 rows; follow its cursor for more"),
]
Cursor = Annotated[str, Meta(max_length=600, description="give a cursor as the page before returned it")]
RawDigest = Annotated[bytes, Meta(min_length=32, max_length=32, description="a digest is the 32 bytes of a SHA-256")]

_PART = r"[a-z0-9][a-z0-9._-]{0,63}"
_NAME = re.compile(rf"^(?:(?:(?P<server>{_PART}):)?(?P<namespace>{_PART})/)?(?P<name>{_PART})\Z")


class Name(Struct, frozen=True):
    """A parsed `[[server:]namespace/]name`; the namespace is `local` unless given."""

    name: str
    namespace: str = "local"
    server: str | None = None

    def __str__(self) -> str:
        prefix = f"{self.server}:" if self.server else ""
        return f"{prefix}{self.namespace}/{self.name}"


def parse_name(text: str, what: str = "name") -> Name:
    """Parse an action's or actor's name, or say what is wrong with it."""
    match = _NAME.match(text)
    if match is None:
        hint = f"; did you mean {text.lower().strip().replace(' ', '-')!r}?" if _is_close(text) else ""
        raise InvalidArgument(
            f"{what} {text[:80]!r} is not '[[server:]namespace/]name' in lower case letters, digits, "
            f"'.', '_' and '-'{hint}"
        )
    return Name(match["name"], match["namespace"] or "local", match["server"])


def canonical(text: str, what: str = "name") -> str:
    """The one spelling of a name: with its namespace."""
    return str(parse_name(text, what))


def _is_close(text: str) -> bool:
    return _NAME.match(text.lower().strip().replace(" ", "-")) is not None


@functools.cache
def _bounds(kind: type[Struct]) -> type[Struct]:
    """A Struct of the bounded fields alone: the converter compiles a Struct's bounds once."""
    hints = get_type_hints(kind, include_extras=True)
    return msgspec.defstruct(
        kind.__name__, [(name, hints[name]) for name in kind.__struct_fields__ if _descriptions(hints[name])]
    )


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
    bounds = _bounds(type(value))
    try:
        msgspec.convert(msgspec.structs.asdict(value), bounds)
    except msgspec.ValidationError as error:
        raise InvalidArgument(explain(type(value), error)) from None


_WHERE = re.compile(r" - at (?:`key` in )?`\$(?:\[(?P<position>\d+)\]|\.(?P<name>\w+))?.*`$")


def explain(kind: type[Struct], error: Exception) -> str:
    """Turn the decoder's complaint about a Struct into a sentence that names the field and what to do."""
    where = _WHERE.search(str(error))
    if where is None or not (name := where["name"] or _field_at(kind, where["position"])):
        return f"{kind.__name__}: {error}"
    return _sentence(name, get_type_hints(kind, include_extras=True)[name], error)


def _field_at(kind: type[Struct], position: str | None) -> str | None:
    """The field at a place of an `array_like` Struct, whose tag comes first."""
    index = int(position or 0) - 1
    return kind.__struct_fields__[index] if 0 <= index < len(kind.__struct_fields__) else None


def _sentence(name: str, kind: object, error: Exception) -> str:
    complaint = _WHERE.sub("", str(error))
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
