"""Where the parts of a Python file begin: by its syntax tree, comments and decorators with what they belong to."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Final

from stepwell.ingest.splitters.lines import Border, Lines

_WHOLE_BYTES_MAX: Final = 1_000  # of a class that is one part, methods and all
_FILENAME: Final = "<being split by stepwell>"

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def borders(lines: Lines) -> list[Border] | None:
    """Definitions, methods of large classes, and what stands between them; None if it is no Python of ours."""
    tree = _parsed(lines.data)
    return None if tree is None else [*_statements(lines, tree.body, "", 0)]


def _parsed(data: bytes) -> ast.Module | None:
    # Of this name only, and again each time, because whoever runs us may set all filters anew. What Python has to say
    # about somebody's escape sequences is no business of whoever reads the file.
    warnings.filterwarnings("ignore", module=re.escape(_FILENAME))
    try:
        return ast.parse(data, _FILENAME)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return None


def _statements(lines: Lines, body: Sequence[ast.stmt], scope: str, above: int) -> Iterator[Border]:
    """A border for each statement; `above` is the line before which none of their comments begins."""
    for node in body:
        begin = _begin(lines, node, above)
        name = _name(node)
        qualified = f"{scope}.{name}" if scope and name else name
        if not _is_docstring(node) or above == 0:
            yield Border(begin, qualified, scope)
        end = node.end_lineno or node.lineno
        if isinstance(node, ast.ClassDef) and lines.size(begin, end) > _WHOLE_BYTES_MAX:
            yield from _members(lines, node, qualified)
        above = end


def _members(lines: Lines, node: ast.ClassDef, qualified: str) -> Iterator[Border]:
    """What comes before the first method stays with the header."""
    is_method = [isinstance(each, _Definition) for each in node.body]
    if True not in is_method:
        return
    at = is_method.index(True)
    above = (node.body[at - 1].end_lineno or node.lineno) if at else node.lineno
    yield from _statements(lines, node.body[at:], qualified, above)


def _begin(lines: Lines, node: ast.stmt, above: int) -> int:
    """The line, from 0, at which a statement begins: with its decorators, and the comments right above it."""
    first = node.lineno
    if isinstance(node, _Definition) and node.decorator_list:
        first = min(first, node.decorator_list[0].lineno)
    begin = first - 1
    while begin > above and lines.texts[begin - 1].lstrip().startswith("#"):
        begin -= 1
    return begin


def _is_docstring(node: ast.stmt) -> bool:
    """What a string that stands alone says, it says of what is above it."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _name(node: ast.stmt) -> str:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name), *_]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
        case _:
            return ""
