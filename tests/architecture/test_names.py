"""A name and a sentence can be understood without opening what they stand for.

Each rule is a function from source text, or from the tree of modules, to a list of violations. Each has samples that it
must recognise, so that a rule that has stopped working fails here, and not in a review.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGE, docstrings, python_files

MODULES_MAX = 20  # in a folder

# Nouns of textbooks that end in -ing.
TEXTBOOK_NOUNS = {"framing", "housekeeping", "paging", "pickling", "ranking", "testing"}

# People, trades and furniture. The roles of the architecture (client, manager, worker, supervisor, scheduler, reader,
# writer, session, agent) are textbook words and are not among them.
METAPHORS = {
    "bystander", "chore", "chores", "crew", "deed", "desk", "drawer", "employee", "errand", "errands", "examiner",
    "floor", "guest", "guests", "hand", "hands", "impostor", "keepsake", "kit", "labour", "ledger", "leftovers",
    "lineage", "office", "shelf", "shelves", "slip", "staff", "stranger", "survivor", "vandal", "vault", "villain",
    "visitor",
}  # fmt: skip

METHODS_BANNED = {"settle", "tell", "take", "keep", "go"}

PRONOUN = re.compile(r"\b(?:whoever|somebody|nobody|anybody|everybody)\b", re.IGNORECASE)
OPENING = re.compile(r"\W*(?:What|Whether|Who|Whose|Where|Which|How|Those)\b")


def ing_modules(name: str) -> list[str]:
    """A module is a noun; a gerund says that something is done, and not what there is."""
    stem = name.rpartition("/")[2].removesuffix(".py")
    noun = stem.rpartition("_")[2]
    return [name] if noun.endswith("ing") and noun not in TEXTBOOK_NOUNS else []


def metaphors(names: str) -> list[str]:
    """A module or a class is named with a textbook word, not with a person, a trade or a piece of furniture."""
    words = re.findall(r"[A-Z]?[a-z0-9]+", names)
    return [word for word in words if word.lower() in METAPHORS]


def metaphors_in_classes(source: str) -> list[str]:
    """See `metaphors`."""
    classes = [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    return [f"class {name}" for name in classes if metaphors(name)]


def banned_methods(source: str) -> list[str]:
    """`settle`, `tell`, `take`, `keep` and `go` say nothing of what they do to what."""
    return [
        f"line {node.lineno}: {node.name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.lstrip("_") in METHODS_BANNED
    ]


def pronouns(source: str) -> list[str]:
    """A sentence names the role: client, manager, worker, session, caller."""
    return [
        f"line {number}: {found.group()}"
        for number, line in enumerate(source.splitlines(), 1)
        if (found := PRONOUN.search(line))
    ]


def openings(source: str) -> list[str]:
    """A docstring's first sentence names its subject, so it cannot be a subordinate clause."""
    return [
        f"line {line}: {text.split(maxsplit=1)[0]}"
        for line, text in docstrings(ast.parse(source))
        if OPENING.match(text)
    ]


RULES: list[tuple[Callable[[str], list[str]], str, str]] = [
    (metaphors_in_classes, "class Guest:\n pass", "class Client:\n pass"),
    (banned_methods, "class A:\n def take(self): pass", "class A:\n def pop(self): pass"),
    (pronouns, "# for whoever asks", "# for the caller"),
    (openings, 'def f():\n """Whether it is."""', 'def f():\n """Return True if it is."""'),
]


def relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("rule", [rule for rule, _, _ in RULES], ids=lambda rule: str(rule.__name__))
def test_sources_follow(rule: Callable[[str], list[str]]) -> None:
    """The rule's own docstring gives its reason."""
    broken = {relative(path): found for path in python_files(PACKAGE) if (found := rule(path.read_text()))}
    assert broken == {}, rule.__doc__


@pytest.mark.parametrize("rule, bad, good", RULES)
def test_is_recognised(rule: Callable[[str], list[str]], bad: str, good: str) -> None:
    assert len(rule(bad)) == 1
    assert rule(good) == []


@pytest.mark.parametrize("rule", [ing_modules, metaphors])
def test_modules_follow(rule: Callable[[str], list[str]]) -> None:
    """The rule's own docstring gives its reason."""
    names = [relative(path) for path in python_files(PACKAGE)]
    assert [name for name in names if rule(name)] == [], rule.__doc__


def test_modules_are_recognised() -> None:
    assert ing_modules("manager/parking.py")
    assert not ing_modules("protocol/framing.py")
    assert metaphors("pool/hands.py") == ["hands"]
    assert metaphors("manager/loop.py") == []


def shared_names(definitions: dict[str, list[str]]) -> dict[str, list[str]]:
    """Class names with more than one meaning; a blocking class and its asyncio counterpart are one meaning."""
    return {
        name: places
        for name, places in definitions.items()
        if len([each for each in places if not each.startswith("aio/")]) > 1 or Counter(places).most_common(1)[0][1] > 1
    }


def test_a_public_class_name_has_one_meaning() -> None:
    """Two public classes of one name are told apart only by opening both."""
    definitions: defaultdict[str, list[str]] = defaultdict(list)
    for path in python_files(PACKAGE):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                definitions[node.name].append(relative(path))
    assert shared_names(definitions) == {}


def test_shared_names_are_recognised() -> None:
    assert shared_names({"Place": ["a.py", "b.py"]}) == {"Place": ["a.py", "b.py"]}
    assert shared_names({"Batch": ["client/api/batch.py", "aio/batch.py"]}) == {}


def crowded(folders: Counter[str]) -> dict[str, int]:
    return {folder: count for folder, count in folders.items() if count > MODULES_MAX}


def test_folders_can_be_read_at_a_glance() -> None:
    """A folder has at most 20 modules, so that a reader sees all of them."""
    modules = [path for path in python_files(PACKAGE) if path.name != "__init__.py"]
    assert crowded(Counter(relative(path.parent) for path in modules)) == {}


def test_crowds_are_recognised() -> None:
    assert crowded(Counter({"a": MODULES_MAX, "b": MODULES_MAX + 1})) == {"b": MODULES_MAX + 1}
