"""The snippets of the README, by the heading under which they stand."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

README = Path(__file__).parents[2] / "README.md"
_PART = re.compile(
    r"^## (?P<heading>[^\n]+)$|^```(?P<language>python|sh)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)


class Snippet(NamedTuple):
    """A block of code of the README. `number` counts those of its heading and language, from 1."""

    heading: str
    language: str
    number: int
    code: str

    @property
    def name(self) -> str:
        return f"{self.heading}, {self.language} {self.number}"

    @property
    def functions(self) -> str:
        """The functions that the snippet defines, without the rest of it."""
        tree = ast.parse(self.code)
        tree.body = [each for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        return ast.unparse(tree)


def snippets(language: str) -> list[Snippet]:
    """Return all blocks in a language, in their order."""
    found: list[Snippet] = []
    heading = ""
    for part in _PART.finditer(README.read_text()):
        if part["heading"]:
            heading = part["heading"]
        elif part["language"] == language:
            number = 1 + sum(each.heading == heading for each in found)
            found.append(Snippet(heading, language, number, part["code"]))
    return found
