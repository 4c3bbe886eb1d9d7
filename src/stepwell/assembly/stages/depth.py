"""Depth: the same fragment at several lengths, so that what does not fit can be named instead of dropped.

- full: the body;
- summary: the beginning of each of its members, which are definitions in code, headings and paragraphs in prose;
- signature: how it begins: a signature with the first line of its documentation, or a heading with its first line;
- listing: its name, if it has one, its lines and how long it is.

Each is shorter than the one before, or is left out. An ellipsis says that something was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from stepwell import limits
from stepwell.assembly.candidate import DepthName, Form
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import Outline

CODE: Final = "code"
ELLIPSIS: Final = "…"

_DEFINITION: Final = re.compile(
    r"^[ \t]*(?:(?:async|export|default|public|private|protected|internal|static|final|abstract|pub(?:\([a-z]+\))?"
    r"|unsafe|const|override|virtual|inline)[ \t]+)*(?:def|class|fn|func|function|struct|enum|trait|impl|interface|type"
    r"|module|namespace|record)\b[^\n]*",
    re.MULTILINE,
)
_DOCUMENTATION: Final = re.compile(r"[rRuUbB]{0,2}(?:\"\"\"|'''|///?|/\*\*?|#|--|\")")
_PARAGRAPH: Final = re.compile(r"(?:\A|\n[ \t]*\n)\s*([^\n]+)")

Depth = Callable[[FragmentRow, str], Iterator[Form]]
"""Of a fragment and its text, or the beginning of it."""


def deepest(row: FragmentRow, text: str) -> Iterator[Form]:
    """What is shorter than the text, the deepest first; each is made when it is asked for."""
    shortest = len(text)
    for depth, make in _SHORTENED:
        shortened = make(row, text)
        if shortened and len(shortened) < shortest:
            shortest = len(shortened)
            yield Form(depth, shortened)


def full(row: FragmentRow, text: str) -> Iterator[Form]:  # noqa: ARG001 - the others' signature
    """Nothing else than all of it."""
    return iter(())


def _summary(row: FragmentRow, text: str) -> str:
    pattern = _DEFINITION if row.kind == CODE else _PARAGRAPH
    members = [found[found.lastindex or 0] for found in islice(pattern.finditer(text), limits.SUMMARY_MEMBERS_MAX)]
    if len(members) < 2:  # noqa: PLR2004 - one member is no more than the signature
        return ""
    return "\n".join([*_cut(members), ELLIPSIS])


def _signature(row: FragmentRow, text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    taken = _code_signature(lines) if row.kind == CODE else lines[:1]
    return "\n".join(_cut(taken)) + f" {ELLIPSIS}"


def _code_signature(lines: list[str]) -> list[str]:
    """Up to where the brackets of the definition are closed, and the first line of what documents it."""
    start = next((number for number, line in enumerate(lines) if _DEFINITION.match(line)), 0)
    end, depth = start, 0
    for end, line in enumerate(lines[start : start + limits.SIGNATURE_LINES_MAX], start):  # noqa: B007 - where it ended counts
        depth += sum(map(line.count, "([{")) - sum(map(line.count, ")]}"))
        if depth <= 0 or line.rstrip().endswith("{"):
            break
    documented = lines[end + 1 : end + 2]
    return lines[start : end + 1] + [line for line in documented if _DOCUMENTATION.match(line.strip())]


def _listing(row: FragmentRow, text: str) -> str:  # noqa: ARG001 - the others' signature
    outline = Outline.of(row.metadata)
    name = " ".join(outline.name.split())
    if not name:
        return ""
    where = f"lines {outline.lines[0]}-{outline.lines[1]}, " if outline.lines else ""
    return f"- {name[: limits.SHORTENED_LINE_CHARS_MAX]} ({where}{row.tokens} tokens)"


def _cut(lines: Iterable[str]) -> list[str]:
    chars_max = limits.SHORTENED_LINE_CHARS_MAX
    return [line.rstrip() if len(line) <= chars_max else line[:chars_max].rstrip() + ELLIPSIS for line in lines]


_SHORTENED: Final[tuple[tuple[DepthName, Callable[[FragmentRow, str], str]], ...]] = (
    ("summary", _summary),
    ("signature", _signature),
    ("listing", _listing),
)

COMPONENTS: Final[dict[str, Depth]] = {"deepest": deepest, "full": full}
