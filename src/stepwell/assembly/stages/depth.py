"""The depth stage: shorter forms of a fragment, so that one that does not fit can be named instead of dropped.

- full: the body;
- cut: code without the docstrings of its functions;
- summary: the first line of each member: definitions in code, headings and paragraphs in prose;
- signature: a signature with the first line of its documentation, or the first line of a text;
- listing: the name of the fragment, its lines and its size.

Each form is shorter than the one before, or is left out. An ellipsis marks what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from stepwell import limits
from stepwell.assembly.candidate import DepthForm, DepthName
from stepwell.assembly.docstrings import PYTHON_SUFFIXES, without_docstrings
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import Outline, lines_of
from stepwell.text import ELLIPSIS, plural

CODE: Final = "code"
CUT: Final = "cut"

# A line that begins a definition, in any of the usual languages. It is found by its words alone, because a shortened
# body may end in the middle of a definition, which no parser accepts.
_DEFINITION: Final = re.compile(
    r"^[ \t]*(?:(?:async|export|default|public|private|protected|internal|static|final|abstract|pub(?:\([a-z]+\))?"
    r"|unsafe|const|override|virtual|inline)[ \t]+)*(?:def|class|fn|func|function|struct|enum|trait|impl|interface|type"
    r"|module|namespace|record)\b[^\n]*",
    re.MULTILINE,
)
_DOCUMENTATION: Final = re.compile(r"[rRuUbB]{0,2}(?:\"\"\"|'''|///?|/\*\*?|#|--|\")")
_PARAGRAPH: Final = re.compile(r"(?:\A|\n[ \t]*\n)\s*([^\n]+)")

Depth = Callable[[FragmentRow, str], Iterator[DepthForm]]
"""A function of a row and its text (or the beginning of the text) to shorter forms, the deepest first."""


def deepest(row: FragmentRow, text: str) -> Iterator[DepthForm]:
    """Yield the forms that are shorter than the text, the deepest first. Each is made when the caller asks for it."""
    shortest = len(text)
    for depth, make in _SHORTENED:
        shortened = make(row, text)
        if shortened and len(shortened) < shortest:
            shortest = len(shortened)
            yield DepthForm(depth, shortened)


def briefest(row: FragmentRow, text: str) -> Iterator[DepthForm]:
    """Yield the forms of a fragment that has to be shown in as few tokens as there are, the deepest first.

    After its signature and its listing, the last one is an ellipsis under its heading.
    """
    yield from (form for form in deepest(row, text) if form.depth == "signature")
    if row.kind == CODE:
        signature = _code_signature([line for line in text.splitlines() if line.strip()])
        is_documented = len(signature) > 1 and _DOCUMENTATION.match(signature[-1].strip())
        if is_documented:
            yield DepthForm("signature", "\n".join(_cut(signature[:-1])) + f" {ELLIPSIS}")
    yield DepthForm("listing", _listing(row, text) or ELLIPSIS)
    yield DepthForm("listing", ELLIPSIS)


def full(row: FragmentRow, text: str) -> Iterator[DepthForm]:  # noqa: ARG001 - the others' signature
    """Yield nothing: the fragment is shown whole, or not at all."""
    return iter(())


def _without_docstrings(row: FragmentRow, text: str) -> str:
    """Return Python without docstrings; empty for other text, and if the text may be only the beginning of a body."""
    if row.kind != CODE or not row.source.endswith(PYTHON_SUFFIXES) or row.size > limits.SHORTENED_FROM_BYTES:
        return ""
    lines = lines_of(row.metadata)
    return without_docstrings(text, lines[0] if lines else None)


def _summary(row: FragmentRow, text: str) -> str:
    """Return the first lines of all members; empty if there is only one, which the signature shows as well."""
    pattern = _DEFINITION if row.kind == CODE else _PARAGRAPH
    members = [found[found.lastindex or 0] for found in islice(pattern.finditer(text), limits.SUMMARY_MEMBERS_MAX)]
    if len(members) < 2:  # noqa: PLR2004 - one member is no more than the signature
        return ""
    return "\n".join([*_cut(members), ELLIPSIS])


def _signature(row: FragmentRow, text: str) -> str:
    """Return the signature of code, or the first line of a text; empty for a blank text."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    taken = _code_signature(lines) if row.kind == CODE else lines[:1]
    return "\n".join(_cut(taken)) + f" {ELLIPSIS}"


def _code_signature(lines: list[str]) -> list[str]:
    """Return the lines of a definition up to the end of its brackets, and the first line of its documentation."""
    start = next((number for number, line in enumerate(lines) if _DEFINITION.match(line)), 0)
    end, depth = start, 0
    for end, line in enumerate(lines[start : start + limits.SIGNATURE_LINES_MAX], start):  # noqa: B007 - where it ended counts
        depth += sum(map(line.count, "([{")) - sum(map(line.count, ")]}"))
        if depth <= 0 or line.rstrip().endswith("{"):
            break
    documented = lines[end + 1 : end + 2]
    return lines[start : end + 1] + [line for line in documented if _DOCUMENTATION.match(line.strip())]


def _listing(row: FragmentRow, text: str) -> str:  # noqa: ARG001 - the others' signature
    """Return the name, lines and size of a fragment; empty if it has no name."""
    outline = Outline.of(row.metadata)
    name = " ".join(outline.name.split())
    if not name:
        return ""
    where = f"lines {outline.lines[0]}-{outline.lines[1]}, " if outline.lines else ""
    return f"- {name[: limits.SHORTENED_LINE_CHARS_MAX]} ({where}{plural(row.tokens, 'token')})"


def _cut(lines: Iterable[str]) -> list[str]:
    """Return lines that are cut to a readable length."""
    chars_max = limits.SHORTENED_LINE_CHARS_MAX
    return [line.rstrip() if len(line) <= chars_max else line[:chars_max].rstrip() + ELLIPSIS for line in lines]


# In order of depth: `deepest` compares each form with the one before it.
_SHORTENED: Final[tuple[tuple[DepthName, Callable[[FragmentRow, str], str]], ...]] = (
    (CUT, _without_docstrings),
    ("summary", _summary),
    ("signature", _signature),
    ("listing", _listing),
)

COMPONENTS: Final[dict[str, Depth]] = {"deepest": deepest, "full": full}
