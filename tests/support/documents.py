"""The documents of the repository and their snippets: the blocks of code, by document and heading."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LANGUAGES = {"", "json", "mermaid", "python", "sh", "text", "toml"}
CART = "TAX = 0.19\n\n\ndef price(items):\n    total = sum(items) * (1 + TAX)\n    return round(total)\n"
"""The file that the team of agents repairs: `docs/examples.md` shows it in the diff."""
_PART = re.compile(
    r"^##+ (?P<heading>[^\n]+)$|^(?P<fence>`{3,})(?P<language>[^\n]*)\n(?P<code>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)


class Snippet(NamedTuple):
    """A block of code. `number` counts the blocks of its language under a heading of a document, from 1."""

    document: str
    heading: str
    language: str
    number: int
    code: str

    @property
    def name(self) -> str:
        return f"{self.document}: {self.heading or 'top'}, {self.language} {self.number}"

    @property
    def is_program(self) -> bool:
        """True for a whole program: it imports stepwell itself."""
        return self.language == "python" and re.search(r"^import stepwell", self.code, re.MULTILINE) is not None

    @property
    def is_test(self) -> bool:
        return self.language == "python" and re.search(r"^def test_", self.code, re.MULTILINE) is not None

    @property
    def is_example(self) -> bool:
        """True for a copy of a file in `examples`, which `tests/examples` runs."""
        return any(self.code == path.read_text() for path in ROOT.glob("examples/*.py"))

    @property
    def functions(self) -> str:
        """The functions that the snippet defines, without the rest of it."""
        tree = ast.parse(self.code)
        tree.body = [each for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        return ast.unparse(tree)


def snippets(language: str) -> list[Snippet]:
    """Return all blocks of all documents in a language, in their order, but for copies of examples."""
    found = [each for document in DOCUMENTS for each in snippets_of(document) if each.language == language]
    return [each for each in found if not each.is_example]


def snippets_of(document: Path) -> list[Snippet]:
    """Return all blocks of one document, in their order."""
    name = str(document.relative_to(ROOT))
    found: list[Snippet] = []
    numbers: Counter[tuple[str, str]] = Counter()
    heading = ""
    for part in _PART.finditer(document.read_text()):
        if part["heading"]:
            heading = part["heading"]
            continue
        numbers[heading, part["language"]] += 1
        number = numbers[heading, part["language"]]
        found.append(Snippet(name, heading, part["language"], number, part["code"]))
    return found
