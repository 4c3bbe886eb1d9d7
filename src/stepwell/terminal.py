"""Text on a terminal: characters that a terminal would interpret are written as escapes.

A file name, a body or a message of a peer can contain sequences that clear the screen, set the title of the window or
paste commands, and characters that reverse or hide text. Where such data are written to a terminal, they are escaped
as Python writes them. A pipe or a file gets them as they are, because another program reads it.

Sequences of our own, such as colours, are added after the data are escaped.
"""

from __future__ import annotations

import contextlib
import re
from typing import Final, TextIO

_UNSAFE: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, except for tab and newline
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # change the direction of a text
    r"\u00ad\u180e\u200b-\u200d\u2060-\u2065\u206a-\u206f\ufeff\U000e0000-\U000e007f"  # take no room
    r"\u2028\u2029\ufff9-\ufffb"  # end a line or a paragraph, or annotate
    r"\ud800-\udfff]"  # surrogates, which cannot be encoded
)
_LATIN1_MAX: Final = 0xFF
_PLANE_MAX: Final = 0xFFFF


def escape_terminal(text: str) -> str:
    """Return a text of several lines with the characters that are unsafe on a terminal written as escapes, as Python
    does.
    """
    return _UNSAFE.sub(lambda found: _escape(found[0]), text)


def escape_line(text: str) -> str:
    """Return a name in one line: like `escape_terminal`, and tabs and newlines are escaped too."""
    return escape_terminal(text).replace("\n", "\\n").replace("\t", "\\t")


def escape_json(text: str) -> str:
    """Return a JSON document with the same value and without unsafe characters.

    JSON has such characters only inside of strings, where they can be written as escapes.
    """
    return _UNSAFE.sub(lambda found: _escape_in_json(found[0]), text)


def is_terminal(stream: TextIO | None) -> bool:
    """Return True if a stream is a terminal. A closed or missing one is none."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return stream is not None and stream.isatty()
    return False


def write(stream: TextIO, text: str) -> None:
    """Write a text to a stream: escaped if it is a terminal, as it is otherwise.

    Characters that the encoding of the stream does not have are written as escapes.
    """
    shown = escape_terminal(text) if is_terminal(stream) else text
    try:
        stream.write(shown)
    except UnicodeEncodeError:
        encoding = stream.encoding
        stream.write(shown.encode(encoding, "backslashreplace").decode(encoding))


def _escape(character: str) -> str:
    """Return the escape sequence of a character, as Python spells it."""
    code = ord(character)
    if code <= _LATIN1_MAX:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= _PLANE_MAX else f"\\U{code:08x}"


def _escape_in_json(character: str) -> str:
    """Return the escape sequence of a character in a JSON string: its units in UTF-16."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
