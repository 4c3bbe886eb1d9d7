"""The project's own source text, as the architecture tests read it."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "stepwell"


def python_files(*paths: Path) -> list[Path]:
    """Every Python file at or below the paths that exist."""
    return sorted(file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py")))


def imported_modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the full name of each import, whether at the top or inside a function."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in names)
            case _:
                pass


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the text of each docstring, those behind an attribute or a constant included."""
    for node in ast.walk(tree):
        body: object = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text
                case _:
                    pass


def called_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the dotted name of each call that has one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield node.lineno, _dotted(node.func)


def _dotted(node: ast.expr) -> str:
    """Return an expression as it is written. `ast.unparse` is slow, and most calls are of names and attributes."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name() | ast.Attribute() as value, attr=name):
            return f"{_dotted(value)}.{name}"
        case _:
            return ast.unparse(node)
