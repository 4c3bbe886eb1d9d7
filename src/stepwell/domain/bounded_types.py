"""The types of identifiers, texts and numbers with their bounds, and the only parser of action and actor names.

A bound is written once, in a `Meta`, with a description that tells the caller what to do. It is enforced in two places:
by the manager's decoder on every command that arrives, and by `checks.check` on the values that a caller constructs.
Code behind these two never checks a bound again.
"""

from __future__ import annotations

import functools
import re
from typing import Annotated, Final

from msgspec import Meta, Struct

from stepwell import limits
from stepwell.errors import InvalidArgument

# All patterns end with "\Z", because "$" would let a trailing newline pass.
_PROJECT: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*\Z")
_LABEL: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._/:-]*\Z")
# The advice stands in two types each, and ends up in error messages: it says what to give, not what was wrong.
_PROJECT_ADVICE: Final = "a project is 1 to 128 letters, digits, '.', '_' and '-', in parts separated by '/'"
_FRAGMENT_ADVICE: Final = "give 1 to 512 characters, none of them a control character"
_LABEL_ADVICE: Final = "give 1 to 64 letters, digits and any of '._/:-', beginning with a letter or digit"

ProjectName = Annotated[
    str, Meta(max_length=limits.PROJECT_CHARS_MAX, pattern=_PROJECT.pattern, description=_PROJECT_ADVICE)
]
FragmentId = Annotated[
    str,
    Meta(max_length=limits.FRAGMENT_ID_CHARS_MAX, pattern=r"^[^\x00-\x1f\x7f]+\Z", description=_FRAGMENT_ADVICE),
]
Label = Annotated[str, Meta(max_length=limits.LABEL_CHARS_MAX, pattern=_LABEL.pattern, description=_LABEL_ADVICE)]

OptionalLabel = Annotated[
    str,
    Meta(max_length=limits.LABEL_CHARS_MAX, pattern=rf"^(?:{_LABEL.pattern[1:-2]})?\Z", description=_LABEL_ADVICE),
]

# The same without the patterns, for the commands that are sent most often: matching takes longer than the rest of their
# decoding. Their deciders match the patterns of names that are not known already.
UncheckedProject = Annotated[str, Meta(max_length=limits.PROJECT_CHARS_MAX, description=_PROJECT_ADVICE)]
UncheckedId = Annotated[str, Meta(max_length=limits.FRAGMENT_ID_CHARS_MAX, description=_FRAGMENT_ADVICE)]
UncheckedLabel = Annotated[str, Meta(max_length=limits.LABEL_CHARS_MAX, description=_LABEL_ADVICE)]

StrategyName = Annotated[
    str,
    Meta(
        max_length=limits.LABEL_CHARS_MAX,
        pattern=r"^[a-z0-9][a-z0-9_-]*\Z",
        description="a strategy is 1 to 64 lower case letters, digits, '-' and '_', beginning with a letter or digit",
    ),
]
Identifier = Annotated[
    str,
    Meta(
        max_length=limits.IDENTIFIER_CHARS_MAX,
        pattern=r"^[0-9A-Za-z-]+\Z",
        description="give an id as stepwell returned it",
    ),
]
Source = Annotated[
    str, Meta(max_length=limits.SOURCE_CHARS_MAX, description="a source is a path or URI of at most 4096 characters")
]
MetadataKey = Annotated[
    str,
    Meta(min_length=1, max_length=limits.METADATA_KEY_CHARS_MAX, description="a metadata key has 1 to 128 characters"),
]
MetadataValue = Annotated[
    str,
    Meta(
        max_length=limits.METADATA_VALUE_CHARS_MAX,
        description="a metadata value has at most 8192 characters; store it as a body",
    ),
]
Metadata = Annotated[
    dict[MetadataKey, MetadataValue],
    Meta(
        max_length=limits.METADATA_ENTRIES_MAX,
        description="give at most 64 metadata entries, 16 KiB in all; store what is larger as a body",
    ),
]
# Numbers that a caller gives stay below 2**53, so that JSON and floats have them exactly.
Tokens = Annotated[int, Meta(ge=1, le=2**53, description="tokens are a whole number, at least 1")]
Revision = Annotated[int, Meta(ge=0, le=2**63 - 1, description="a revision is a whole number, 0 for 'absent'")]
Positive = Annotated[int, Meta(ge=1, le=2**53, description="give a whole number, at least 1")]
ExpiryTime = Annotated[
    int,
    Meta(
        ge=1,
        le=limits.EXPIRES_AT_MS_MAX,
        description="give the time of expiry in milliseconds since 1970, up to the year 9999",
    ),
]
ExpirySpan = Annotated[
    int,
    Meta(
        ge=1,
        le=limits.EXPIRES_AFTER_MS_MAX,
        description="give the milliseconds until expiry, from 1 up to 100 years; leave it out for never",
    ),
]
# A command carries a body inside it, or the number under which the body was uploaded on the same connection before.
Body = Annotated[
    bytes,
    Meta(
        max_length=limits.INLINE_BODY_BYTES_MAX,
        description="an inline body has at most 64 KiB; upload what is larger",
    ),
]
UploadNumber = Annotated[
    int, Meta(ge=0, le=2**31, description="give the number under which the body was offered on this connection")
]
# Texts of different lengths: a sentence for a person to read, and a text such as a description or a rationale.
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
Cursor = Annotated[
    str, Meta(max_length=limits.CURSOR_CHARS_MAX, description="give a cursor as the page before returned it")
]
RawDigest = Annotated[bytes, Meta(min_length=32, max_length=32, description="a digest is the 32 bytes of a SHA-256")]

_PART = rf"[a-z0-9][a-z0-9._-]{{0,{limits.NAME_PART_CHARS_MAX - 1}}}"
_NAME = re.compile(rf"^(?:(?:(?P<server>{_PART}):)?(?P<namespace>{_PART})/)?(?P<name>{_PART})\Z")


class Name(Struct, frozen=True):
    """The parsed name of an action or actor, `[[server:]namespace/]name`. The default namespace is `local`."""

    name: str
    namespace: str = "local"
    server: str | None = None

    def __str__(self) -> str:
        prefix = f"{self.server}:" if self.server else ""
        return f"{prefix}{self.namespace}/{self.name}"


def parse_name(text: str, what: str = "name") -> Name:
    """Parse the name of an action or actor. Raises `InvalidArgument` with a suggestion if there is an obvious one.

    `what` is the word for the argument in the error message.
    """
    match = _NAME.match(text)
    if match is None:
        hint = f"; did you mean {text.lower().strip().replace(' ', '-')!r}?" if _is_close(text) else ""
        raise InvalidArgument(
            f"{what} {text[:80]!r} is not '[[server:]namespace/]name' in lower case letters, digits, "
            f"'.', '_' and '-'{hint}"
        )
    return Name(match["name"], match["namespace"] or "local", match["server"])


# The caches bound the memory that a client can make the manager spend on names: the oldest ones are dropped.
@functools.lru_cache(maxsize=limits.NAMES_CACHED_MAX)
def canonical(text: str, what: str = "name") -> str:
    """Return the only spelling under which a name is stored: with its namespace, in lower case."""
    return str(parse_name(text, what))


@functools.lru_cache(maxsize=limits.NAMES_CACHED_MAX)
def known_label(text: str) -> str | None:
    """Return the label as a string object that all rows with it share, or None if it does not match the pattern.

    The caller has checked its length.
    """
    return text if _LABEL.match(text) else None


@functools.lru_cache(maxsize=limits.NAMES_CACHED_MAX)
def is_project(text: str) -> bool:
    """Return True if a text matches the pattern of a project's name. The caller has checked its length."""
    return _PROJECT.match(text) is not None


def _is_close(text: str) -> bool:
    """Return True if only case and spaces are wrong with a name."""
    return _NAME.match(text.lower().strip().replace(" ", "-")) is not None
