"""Borders of a Python file, by its syntax tree. Comments and decorators belong to what is below them.

A file that this Python cannot parse (a syntax error, a newer or older syntax) is left to `syntax_tree`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Final

from stepwell.ingest.splitters.lines import Border, Lines, Role
from stepwell.ingest.splitters.python_tree import parsed

_WHOLE_BYTES_MAX: Final = 1_000  # of a class that stays one part with its methods

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def borders(lines: Lines) -> list[Border] | None:
    """Return borders of statements, and of methods of large classes; None if the file cannot be parsed."""
    tree = parsed(lines.data)
    return None if tree is None else [*_statements(lines, tree.body, "", 0)]


def _statements(lines: Lines, body: Sequence[ast.stmt], scope: str, above: int) -> Iterator[Border]:
    """Yield a border for each statement.

    `above` is the line before which no comment of theirs begins. A string that stands alone documents the statement
    above it, so it has no border, unless it is the first statement.
    """
    for node in body:
        begin = _begin(lines, node, above)
        name = _name(node)
        qualified = f"{scope}.{name}" if scope and name else name
        if not _is_docstring(node) or above == 0:
            yield Border(begin, qualified, scope, role=Role.DEFINITION if isinstance(node, _Definition) else Role.REST)
        end = node.end_lineno or node.lineno
        if isinstance(node, ast.ClassDef) and lines.size(begin, end) > _WHOLE_BYTES_MAX:
            yield from _members(lines, node, qualified)
        above = end


def _members(lines: Lines, node: ast.ClassDef, qualified: str) -> Iterator[Border]:
    """Yield the borders from the first method of a class on. The statements before it stay with the header."""
    is_method = [isinstance(each, _Definition) for each in node.body]
    if True not in is_method:
        return
    at = is_method.index(True)
    above = (node.body[at - 1].end_lineno or node.lineno) if at else node.lineno
    yield from _statements(lines, node.body[at:], qualified, above)


def _begin(lines: Lines, node: ast.stmt, above: int) -> int:
    """Return the first line of a statement, from 0: with its decorators, and the comments right above it."""
    first = node.lineno
    if isinstance(node, _Definition) and node.decorator_list:
        first = min(first, node.decorator_list[0].lineno)
    begin = first - 1
    while begin > above and lines.texts[begin - 1].lstrip().startswith("#"):
        begin -= 1
    return begin


def _is_docstring(node: ast.stmt) -> bool:
    """Return True if a statement is a string that stands alone."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _name(node: ast.stmt) -> str:
    """Return the name that a statement defines; empty if it defines none."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name), *_]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
        case _:
            return ""
