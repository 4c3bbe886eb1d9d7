"""The documents: the promises in `docs/promises.md`, and the page of the defects, which is generated."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from tests.promises.model import Defect, file_of
from tests.support.documents import ROOT

PROMISES = ROOT / "docs/promises.md"
PAGE = ROOT / "docs/broken-promises.md"

_INTRODUCTION = """# Broken promises

Each row is a defect that breaks a [promise](promises.md), and the tests that fail with it. `nox -s promises` shows it:
it copies the repository, puts one defect into the copy, and runs the tests that the row names. All of them have to
fail, and to pass without the defect. A test of several processes, which meets the defect by chance, has three runs.

`nox -s promises -- --only 9` does so for one promise. `python -m tests.promises --write` writes this page.
"""


class Promise(Struct, frozen=True):
    """A promise as the document has it: its number and name, its sentences, and the tests that are listed for it."""

    number: int
    name: str
    sentences: tuple[str, ...]
    tests: frozenset[str]


def promises() -> list[Promise]:
    """Return the promises of the document."""
    found = re.findall(r"^## (\d+)\. (.+?)\n(.+?)^Tests: (.+?)(?=^## )", PROMISES.read_text(), re.MULTILINE | re.DOTALL)
    return [
        Promise(int(number), name, tuple(re.split(r"(?<=\.) (?=[A-Z])", " ".join(text.split()))), _files(tests))
        for number, name, text, tests in found
    ]


def _files(tests: str) -> frozenset[str]:
    return frozenset(re.findall(r"`([\w/]+\.(?:py|feature))`", tests))


def page(defects: Sequence[Defect]) -> str:
    """Return the page of the defects."""
    return "\n".join([_INTRODUCTION, *(_section(each, defects) for each in promises())])


def _section(promise: Promise, defects: Sequence[Defect]) -> str:
    rows = [_row(each) for each in defects if each.promise == promise.number]
    head = "| promised | defect | module | tests that fail |\n|---|---|---|---|"
    return "\n".join([f"## {promise.number}. {promise.name}\n", head, *rows, ""])


def _row(defect: Defect) -> str:
    tests = "<br>".join(f"`{each}`" for each in _short(defect.tests))
    return f"| “{defect.claim}” | {defect.description} | `{defect.module}` | {tests} |"


def _short(tests: Sequence[str]) -> list[str]:
    """Return the tests by file: a file, and the names of its tests."""
    by_file: dict[str, list[str]] = {}
    for each in tests:
        by_file.setdefault(file_of(each), []).append(each.removeprefix(file_of(each)).lstrip(": "))
    return [f"{file}`: `{'`, `'.join(names)}" if any(names) else file for file, names in by_file.items()]
