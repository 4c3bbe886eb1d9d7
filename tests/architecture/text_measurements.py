"""Measurements of names and explanations: `python -m tests.architecture.text_measurements [FOLDER]`.

They print a column of the table at the end of docs/measurements.md. A code line is a line that is neither blank nor a
docstring nor a full-line comment.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

from tests.architecture.sources import PACKAGE, docstrings, python_files

PRONOUN = re.compile(r"\b(?:whoever|somebody|nobody|anybody|everybody)\b", re.IGNORECASE)
OPENING = re.compile(r"\W*(?:What|Whether|Who|Whose|Where|Which|How|Those)\b")


def explanation_lines(source: str, tree: ast.AST) -> set[int]:
    """Numbers of the lines that are docstrings or full-line comments."""
    found = {number for first, text in docstrings(tree) for number in range(first, first + len(text.split("\n")))}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            found.add(token.start[0])
    return found


def measure(folder: Path) -> dict[str, str]:
    """One value for each row of the table."""
    code = explained = opened = documented = pronouns = 0
    classes: defaultdict[str, set[Path]] = defaultdict(set)
    modules: Counter[Path] = Counter()
    for path in python_files(folder):
        source = path.read_text()
        tree = ast.parse(source)
        explanation = explanation_lines(source, tree)
        explained += len(explanation)
        code += sum(
            1 for number, line in enumerate(source.splitlines(), 1) if line.strip() and number not in explanation
        )
        texts = [text for _, text in docstrings(tree)]
        documented += len(texts)
        opened += sum(1 for text in texts if OPENING.match(text))
        pronouns += len(PRONOUN.findall(source))
        modules[path.parent] += path.name != "__init__.py"
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and "aio" not in path.parts:
                classes[node.name].add(path)
    return {
        "code lines": f"{code:,}",
        "(docstrings + full-line comments) / code": f"{explained / code:.0%}",
        "docstrings that begin with What, Whether, Who, Where, …": f"{opened / documented:.0%}",
        "`whoever`, `somebody`, `nobody`, `anybody`, `everybody`": str(pronouns),
        "modules in the largest folder": str(max(modules.values())),
        "public class names with more than one meaning": str(sum(len(paths) > 1 for paths in classes.values())),
    }


if __name__ == "__main__":
    for row, value in measure(Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE).items():
        print(f"| {row} | {value} |")
