"""A module has one job, and so has a function: past a size either is two."""

import ast

from tests.architecture.sources import PACKAGE, python_files

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70


def too_long(source: str) -> list[str]:
    module_lines = len(source.splitlines())
    found = [f"module: {module_lines} lines"] if module_lines > MODULE_LINES_MAX else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                found.append(f"{node.name}: {lines} lines")
    return found


def test_sizes() -> None:
    """No module is longer than 400 lines and no function longer than 70."""
    found = {str(path.relative_to(PACKAGE)): too_long(path.read_text()) for path in python_files(PACKAGE)}
    assert {path: lengths for path, lengths in found.items() if lengths} == {}


def test_excess_is_recognised() -> None:
    """The last line that is allowed is allowed, and the next is not."""
    function = "def f():\n" + " pass\n" * (FUNCTION_LINES_MAX - 1)
    assert too_long(function) == []
    assert too_long(function + " pass\n") == ["f: 71 lines"]
    assert too_long("\n" * MODULE_LINES_MAX) == []
    assert too_long("\n" * (MODULE_LINES_MAX + 1)) == ["module: 401 lines"]
