"""The text of a fragment of Python without the docstrings of its functions, to make room for another match.

A mark stands in the place of each docstring, with the lines that are missing, so that a reader can still tell the line
of everything after it. Docstrings of modules and classes stay, and so does that of a function which has nothing else.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from stepwell import limits
from stepwell.text import ELLIPSIS

PYTHON_SUFFIXES: Final = (".py", ".pyi", ".pyw")
_QUOTES: Final = ('"""', "'''")  # a docstring between other quotes is one line, and not worth a mark


def without_docstrings(text: str, first_line: int | None) -> str:
    """Return the text with a mark in place of each docstring of a function; empty if that saves next to nothing.

    `first_line` is the line of the source at which the text begins, if it is known. A text that does not parse, such as
    the rest of a long function, is left as it is.
    """
    if not any(quotes in text for quotes in _QUOTES):
        return ""
    lines = text.split("\n")
    # Last ones first, so that the numbers of the lines before them stay right.
    for first, last in sorted(islice(_docstrings(text, lines), limits.CUT_DOCSTRINGS_MAX), reverse=True):
        lines[first - 1 : last] = [_mark(lines[first - 1], first, last, first_line)]
    cut = "\n".join(lines)
    return cut if len(text) - len(cut) >= limits.CUT_CHARS_MIN else ""


def _docstrings(text: str, lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of each docstring of a function that has lines of its own."""
    added = 1 if text[:1].isspace() else 0  # a method is indented, so it is parsed as a part of a block
    module = _parsed("if True:\n" * added + text)
    for node in ast.walk(module) if module else ():
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or len(node.body) == 1:
            continue
        docstring, following = node.body[:2]
        if not isinstance(docstring, ast.Expr) or not isinstance(docstring.value, ast.Constant):
            continue
        first, last = docstring.lineno - added, (docstring.end_lineno or docstring.lineno) - added
        is_alone = last < following.lineno - added and not lines[first - 1][: docstring.col_offset].strip()
        if isinstance(docstring.value.value, str) and is_alone:
            yield first, last


def _parsed(text: str) -> ast.Module | None:
    """Return the syntax tree of a text; None if it has none, or if lines end in a way that would shift the numbers."""
    if "\r" in text.replace("\r\n", ""):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the user's code
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _mark(opening: str, first: int, last: int, first_line: int | None) -> str:
    """Return the line that stands for a docstring: its indentation, an ellipsis, and the lines that are missing."""
    indent = opening[: len(opening) - len(opening.lstrip())]
    if first_line is None:
        return f'{indent}"""{ELLIPSIS}"""'
    first, last = first_line + first - 1, first_line + last - 1
    where = f"line {first}" if first == last else f"lines {first}-{last}"
    return f'{indent}"""{ELLIPSIS} ({where})"""'
