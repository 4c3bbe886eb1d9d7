"""The comments and strings of programming languages, as patterns: enough to tell them from code.

A fragment is a piece of a file, such as a method, that no parser accepts by itself, and an index reads every fragment
of a project. So its fields are told apart by patterns alone. A mistake costs a word the weight of the wrong field.

All patterns are linear: each alternative begins with other characters, and none is tried again after a failure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

_DOUBLE: Final = rb'"(?:[^"\\\n]|\\.)*+"?'
_SINGLE: Final = rb"'(?:[^'\\\n]|\\.)*+'?"
_CHARACTER: Final = rb"'(?:[^'\\\n]|\\.[^'\n]{0,8})'"
_BACKTICK: Final = rb"`(?:[^`\\]|\\.)*+`?"
_TRIPLE_DOUBLE: Final = rb'"""(?:[^"\\]|\\.|"(?!""))*+(?:""")?'
_TRIPLE_SINGLE: Final = rb"'''(?:[^'\\]|\\.|'(?!''))*+(?:''')?"
_SLASHES: Final = rb"//[^\n]*+|/\*(?:[^*]|\*(?!/))*+(?:\*/)?"
_HASH: Final = rb"#[^\n]*+"
_DASHES: Final = rb"--[^\n]*+"
_QUOTES: Final = (b'"', b"'", b"`")
_SEPARATOR: Final = re.compile(rb"[\s;(]")


class LexicalSyntax(Struct, frozen=True):
    """The pattern that finds the comments (group 1) and strings (group 2) of a language.

    `either` finds both as one group, and faster, because its alternatives begin with the characters to look for.
    `is_documented_inside` says that a string after the signature documents the definition, as in Python; elsewhere the
    comment before it does. `looks_behind` says that the character before a comment decides.
    """

    pattern: re.Pattern[bytes]
    either: re.Pattern[bytes]
    is_documented_inside: bool = False
    looks_behind: bool = False

    def split(self, text: bytes, start: int) -> list[bytes]:
        """Return a text from a position on as code, comment or string, code, comment or string, …, code."""
        if not (start and self.looks_behind):
            return self.either.split(text[start:] if start else text)
        # Nothing begins with either of these characters, and only the first one can stand before a comment.
        found = self.either.split((b" " if _SEPARATOR.match(text, start - 1) else b"x") + text[start:])
        found[0] = found[0][1:]
        return found


def _syntax(
    comments: bytes, strings: bytes, *, is_documented_inside: bool = False, looks_behind: bool = False
) -> LexicalSyntax:
    pattern = re.compile(rb"(%b)|(%b)" % (comments, strings), re.DOTALL)
    either = re.compile(rb"(%b|%b)" % (comments, strings), re.DOTALL)
    return LexicalSyntax(pattern, either, is_documented_inside, looks_behind)


_PYTHON: Final = _syntax(
    _HASH, b"|".join((_TRIPLE_DOUBLE, _TRIPLE_SINGLE, _DOUBLE, _SINGLE)), is_documented_inside=True
)
_C: Final = _syntax(_SLASHES, _DOUBLE + b"|" + _SINGLE)
_SCRIPT: Final = _syntax(_SLASHES, _DOUBLE + b"|" + _SINGLE + b"|" + _BACKTICK)
_RUST: Final = _syntax(_SLASHES, _DOUBLE + b"|" + _CHARACTER)
_PHP: Final = _syntax(_SLASHES + b"|" + _HASH, _DOUBLE + b"|" + _SINGLE)
_HASHED: Final = _syntax(rb"(?<![^\s;(])" + _HASH, _DOUBLE + b"|" + _SINGLE, looks_behind=True)
_DASHED: Final = _syntax(_DASHES, _DOUBLE + b"|" + _SINGLE)

_ENDINGS: Final = (
    (_PYTHON, "py pyi pyw"),
    (_SCRIPT, "js jsx mjs cjs ts tsx mts cts vue svelte go dart groovy gradle kt kts scala swift"),
    (_C, "c h cc cpp cxx hh hpp hxx ipp cu m mm ino java cs proto thrift css scss less"),
    (_RUST, "rs"),
    (_PHP, "php"),
    (_HASHED, "rb rake gemspec sh bash zsh ksh bats pl pm ex exs mk tf hcl cmake graphql gql"),
    (_DASHED, "lua hs sql"),
)
_BY_ENDING: Final[Mapping[str, LexicalSyntax]] = {
    ending: syntax for syntax, endings in _ENDINGS for ending in endings.split()
}


def is_string(token: bytes) -> bool:
    """Return True if a comment or string is a string."""
    return token.startswith(_QUOTES)


def syntax_of(source: str) -> LexicalSyntax | None:
    """Return the syntax of a file by the ending of its name, or None if it is no program of a known language."""
    return _BY_ENDING.get(source.rpartition(".")[2].lower())
