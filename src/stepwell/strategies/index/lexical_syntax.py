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


class LexicalSyntax(Struct, frozen=True):
    """The pattern that finds the comments (group 1) and strings (group 2) of a language.

    `is_documented_inside` says that a string after the signature documents the definition, as in Python; elsewhere the
    comment before it does.
    """

    pattern: re.Pattern[bytes]
    is_documented_inside: bool = False


def _syntax(comments: bytes, strings: bytes, *, is_documented_inside: bool = False) -> LexicalSyntax:
    return LexicalSyntax(re.compile(rb"(%b)|(%b)" % (comments, strings), re.DOTALL), is_documented_inside)


_PYTHON: Final = _syntax(
    _HASH, b"|".join((_TRIPLE_DOUBLE, _TRIPLE_SINGLE, _DOUBLE, _SINGLE)), is_documented_inside=True
)
_C: Final = _syntax(_SLASHES, _DOUBLE + b"|" + _SINGLE)
_SCRIPT: Final = _syntax(_SLASHES, _DOUBLE + b"|" + _SINGLE + b"|" + _BACKTICK)
_RUST: Final = _syntax(_SLASHES, _DOUBLE + b"|" + _CHARACTER)
_PHP: Final = _syntax(_SLASHES + b"|" + _HASH, _DOUBLE + b"|" + _SINGLE)
_HASHED: Final = _syntax(rb"(?<![^\s;(])" + _HASH, _DOUBLE + b"|" + _SINGLE)
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


def syntax_of(source: str) -> LexicalSyntax | None:
    """Return the syntax of a file by the ending of its name, or None if it is no program of a known language."""
    return _BY_ENDING.get(source.rpartition(".")[2].lower())
