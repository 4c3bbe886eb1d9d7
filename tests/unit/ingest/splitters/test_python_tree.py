"""The shortened syntax tree of a Python file has the same statements outside of functions, at the same lines."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator

import pytest

from stepwell.ingest.splitters.python_tree import parsed

QUOTES = '"""'
BODY = "".join(f"    line_{number} = compute({number})\n" for number in range(12))
NESTED = BODY.replace("    ", "        ")
MARGIN = "# at the margin\n"

TEXTS = {
    "two functions": f"import os\n\ndef f(a, b):\n{BODY}\n\nasync def g(a={{}}, *, b='):'):\n{BODY}\nx = 1\n",
    "several lines": f"def f(\n    a: int = (1),\n    b=')',\n) -> dict[str, int]:\n{BODY}\nx = f(\n1)\n",
    "a comment in a signature": f"def f(  # of: this:\n    a,\n):\n{BODY}x = 1\n",
    "methods": f"class A:\n    {QUOTES}Of a class.{QUOTES}\n    def f(self):\n{NESTED}\n",
    "comments behind a body": f"def f():\n{BODY}    # a comment\n\n    # another\n\n# of x\nx = 1\n",
    "a comment at the margin in a body": f"def f():\n{BODY}{MARGIN}{BODY}x = 1\n",
    "a comment at the margin in a block": f"def f():\n    if x:\n{NESTED}{MARGIN}    else:\n{NESTED}x = 1\n",
    "a string at the margin": f"def f():\n{BODY}    x = {QUOTES}\n{MARGIN}    def g():\n{NESTED}{QUOTES}\n\ny = 1\n",
    "a bracket at the margin": f"def f():\n{BODY}    x = [\n1,\n]\ny = 1\n",
    "a function in a string": f"x = {QUOTES}\ndef f():\n{BODY}{QUOTES}\ny = 1\n",
    "code between strings": f"x = {QUOTES}\ndef f():\n    b{QUOTES}; y = 1; z = b{QUOTES}\n{BODY}{QUOTES}\n",
    "a string that ends like a comment": f"def f():\n{BODY}    x = {QUOTES}\n    # no comment{QUOTES}\ny = 1\n",
    "a body after a backslash": f"def f():\n{BODY}    x = 1 + \\\n    2\n    \\\n\ny = 1\n",
    "an error in a body": f"def f():\n{BODY}    print 'of Python 2'\n\ndef g():\n{BODY}",
    "an error in an expression that is cut": f"def f(): return [1,  # x:\n{BODY}]\n",
    "a wrong indentation": f"def f():\n{BODY}      x = 1\ndef g():\n{BODY}",
    "tabs and spaces": "class A:\n\tdef f(self):\n" + BODY.replace("    ", "\t\t") + f"\tdef g(self):\n{BODY}",
    "a nested function at the end": f"def f():\n{BODY}    def g():\n{NESTED}\n\nx = 1",
    "no end of line": f"def f():\n{BODY.rstrip()}",
    "other ends of lines": f"def f():\r\n{BODY}\r\nx = 1\r\ndef g():\r{BODY}",
    "another encoding": f"# coding: latin-1\ndef f():\n{BODY}    é = 1\n",
    "the usual encoding": f"# -*- coding: utf-8 -*-\ndef f():\n{BODY}    é = 1\n",
    "a deep expression": f"def f():\n{BODY}    x = {' + '.join(['1'] * 4_000)}\n",
    "a deep sequence of calls": f"def f():\n{BODY}    x = f{'()' * 4_000}\n",
    "a deep condition": "def f():\n    if a: pass\n" + "    elif a: pass\n" * 4_000,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_shortened_tree_has_the_statements_of_the_whole_tree(text: str) -> None:
    """Strings, brackets, comments and mistakes at the borders of a body change nothing."""
    assert _outer(parsed(text.encode())) == _outer(_whole(text.encode()))


def test_any_mixture_of_lines_has_the_statements_of_the_whole_tree() -> None:
    """Texts of lines that open and close strings, brackets and blocks, in any order, are parsed as before."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    source = random.Random(seed)
    lines = [line for text in TEXTS.values() if len(text) < 2_000 for line in text.splitlines(keepends=True)]
    texts = [*TEXTS.values()]
    for _ in range(300):
        text = source.choice(texts)
        if len(text) > 2_000:
            continue
        mixed = text.splitlines(keepends=True)
        for _ in range(source.randrange(4)):
            mixed.insert(source.randrange(len(mixed) + 1), source.choice(lines))
        data = "".join(mixed).encode()
        assert _outer(parsed(data)) == _outer(_whole(data)), data.decode()


def test_the_body_of_a_function_is_one_statement() -> None:
    """A tree has one node in place of a large body; otherwise nothing is saved."""
    for text in ("two functions", "several lines", "methods", "the usual encoding"):
        tree = parsed(TEXTS[text].encode())
        assert tree is not None
        functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
        assert [len(each.body) for each in functions] == [1] * len(functions)


def _whole(data: bytes) -> ast.Module | None:
    try:
        return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _outer(tree: ast.Module | None) -> list[tuple[str, str, int, int | None]] | None:
    """Return the statements of a tree that are in no function: type, name, first and last line."""
    return None if tree is None else [*_statements(tree.body)]


def _statements(body: list[ast.stmt]) -> Iterator[tuple[str, str, int, int | None]]:
    for node in body:
        yield type(node).__name__, getattr(node, "name", ""), node.lineno, node.end_lineno
        if isinstance(node, ast.ClassDef):
            yield from _statements(node.body)
