"""The syntax tree of a Python file, without the bodies of its functions.

Borders need the places of statements outside of functions only, and to make the objects of a tree takes longer than to
parse the text. So the body of a function is parsed by itself, without making a tree, and is replaced by a single
statement on its last line before the tree of the file is made. Each function still begins and ends on the same lines.

This is exact, because a body is only replaced if it parses alone: then no string and no bracket reaches out of it, and
it ends where its indentation ends. If the shortened file cannot be parsed, all of the file is parsed instead.
"""

from __future__ import annotations

import ast
import re
import symtable
import warnings
from collections.abc import Iterator
from typing import Final

_FILENAME: Final = "<being split by stepwell>"  # by which the warnings of the parser are recognised
_ERRORS: Final = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)

_STRING: Final = rb"""'[^'\n\\]*+'|"[^"\n\\]*+\""""
_INNER: Final = rb"""\((?:[^#'"\\()]|%b)*+\)""" % _STRING
_PARAMETERS: Final = rb"""\((?:[^#'"\\()]|%b|%b)*+\)""" % (_STRING, _INNER)
_SIGNATURE: Final = rb"""def (?:[^\n#'"\\():]|:(?! *\n)|%b|%b)*+:""" % (_STRING, _PARAMETERS)
_FUNCTION: Final = re.compile(
    rb"^( *)(?:async +)?(%b) *\n((?:(?:\1 [^\n]*| *)\n)+)" % _SIGNATURE,
    re.MULTILINE,
)
"""A function, and the lines below its signature that are blank or indented more. They are its body if the first of them
is a line of its own and the last one the end of a statement, which a parse tells.
"""
_OTHER_ENCODING: Final = re.compile(rb"(?:[^\n]*\n)?[^\n]*coding[:=][ \t]*+(?!utf-8)")
_UNUSUAL: Final = re.compile(rb"[\t\f\r\0]")
"""Characters in an indentation, or ends of lines, that mean something else in a body by itself."""

_WHOLE_BYTES_MAX: Final = 200  # of a body that stays: to parse it alone would take longer than to make its tree
_NESTED_MAX: Final = 1_500
"""The number of operators of a body. With more of them, the whole file decides whether it has a tree, because Python
makes none that is nested deeper than about 2,700 levels. Brackets inside of brackets count nothing, because the parser
accepts no more than 200 of them.
"""
_NESTING: Final = b"+-*/%@~<>&|^."
_NESTING_TEXTS: Final = (b"not", b"if", b"await", b"lambda", b")(", b")[", b"](", b"][")
_NO_NESTING: Final = bytes(byte for byte in range(256) if byte not in _NESTING)
_PARSED_ONLY: Final = "from __future__ import braces\nif 1:\n"
"""The beginning of a text that Python refuses after it was parsed, and before anything is made of it."""
_REFUSED: Final = "not a chance"


def parsed(data: bytes) -> ast.Module | None:
    """Return the syntax tree of a file, in which bodies of functions are shortened; None if it cannot be parsed."""
    # The parser warns about invalid escape sequences, which are no concern of a program that only reads the file. The
    # filter is for this file name only. It is set each time, because the program may have replaced all filters since.
    warnings.filterwarnings("ignore", module=re.escape(_FILENAME))
    if b"\r" not in data and not _OTHER_ENCODING.match(data):
        shortened = b"".join(_shortened(data))
        if len(shortened) < len(data) and (tree := _tree(shortened)) is not None:
            return tree
    return _tree(data)


def _tree(data: bytes) -> ast.Module | None:
    try:
        return ast.parse(data, _FILENAME)
    except _ERRORS:
        return None


def _shortened(data: bytes) -> Iterator[bytes]:
    """Yield a file in pieces, with the same number of lines and one statement in place of each large body."""
    done = checked = 0
    is_outside = True  # of the strings in triple quotes, as far as their number tells
    for found in _FUNCTION.finditer(data):
        start, end = found.span(3)
        if end - start <= _WHOLE_BYTES_MAX:
            continue
        quotes = data.count(b'"""', checked, start) + data.count(b"'''", checked, start)
        is_outside ^= bool(quotes % 2)
        checked = start
        if is_outside and _is_balanced(found[2]) and (code := _code_of(found[3])):
            yield data[done:start]
            before = code.count(b"\n")
            yield b"\n" * before + found[1] + b" 0" + b"\n" * (found[3].count(b"\n") - before)
            done = end
    yield data[done:]


def _is_balanced(signature: bytes) -> bool:
    """Return True if a signature, whose parentheses the pattern has matched, leaves no other bracket open."""
    return signature.count(b"[") == signature.count(b"]") and signature.count(b"{") == signature.count(b"}")


def _code_of(body: bytes) -> bytes:
    """Return a body up to its last line with code, without its end; empty if the body is no sequence of statements."""
    if _UNUSUAL.search(body) or _nesting(body) > _NESTED_MAX:
        return b""
    code = body.rstrip()
    while (comment := code[code.rfind(b"\n") + 1 :]).lstrip().startswith(b"#"):
        if b'"' in comment or b"'" in comment:  # it may be the last line of a string
            return b""
        code = code[: -len(comment)].rstrip()
    is_whole = not code.endswith(b"\\") and _can_be_parsed(body)
    return code if is_whole else b""


def _nesting(body: bytes) -> int:
    """Return a number of levels that no expression and no statement of a body exceeds: each has a byte at least."""
    if len(body) <= _NESTED_MAX:
        return len(body)
    unspaced = body.translate(None, b" \n")
    return len(body.translate(None, _NO_NESTING)) + sum(map(unspaced.count, _NESTING_TEXTS))


def _can_be_parsed(body: bytes) -> bool:
    try:
        symtable.symtable(
            _PARSED_ONLY + body.decode(), _FILENAME, "exec"
        )  # which makes no code, and here not even a table
    except SyntaxError as error:
        return error.msg == _REFUSED
    except _ERRORS:
        return False
    return False
