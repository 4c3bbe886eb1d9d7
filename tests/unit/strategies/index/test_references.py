"""What a reference may mean."""

import pytest

from stepwell.strategies.index.references import (
    DottedReference,
    PathReference,
    is_module,
    last_word,
    names,
    parse_reference,
    slug,
    stems,
)


@pytest.mark.parametrize(
    "ref, meant, word",
    [
        ("catch_up", DottedReference(("catch_up",)), "catch_up"),
        ("Index.catch_up", DottedReference(("Index", "catch_up")), "catch_up"),
        ("std::vec::Vec", DottedReference(("std", "vec", "Vec")), "Vec"),
        ("self->next", DottedReference(("self", "next")), "next"),
        ("..", DottedReference(()), ""),
        ("", DottedReference(()), ""),
        ("docs/design.md#layout", PathReference("docs/design.md", "layout"), "design"),
        ("./README.md", PathReference("README.md", ""), "README"),
        ("docs/README.md", PathReference("docs/README.md", ""), "README"),
        ("setup.py", PathReference("setup.py", ""), "setup"),
        ("/etc/", PathReference("etc", ""), "etc"),
    ],
)
def test_what_it_looks_like(ref: str, meant: PathReference | DottedReference, word: str) -> None:
    """A path has a slash or an ending that files have; anything else is a name."""
    assert parse_reference(ref) == meant
    assert last_word(ref) == word


@pytest.mark.parametrize(
    "text, found",
    [
        ("", []),
        ("Index.catch_up", [("Index", "catch_up")]),
        ("one, two.three", [("one",), ("two", "three")]),
        ("Design > Layout", [("Layout",)]),
        ("src/a.py", [("src/a.py",)]),
        (", .", []),
    ],
)
def test_names(text: str, found: list[tuple[str, ...]]) -> None:
    assert names(text) == found


@pytest.mark.parametrize(
    "source, module, is_one",
    [
        ("src/stepwell/strategies/index.py", "stepwell.strategies.index", True),
        ("src/stepwell/strategies/index.py", "index", True),
        ("src/stepwell/strategies/index.py", "strategies", False),
        ("web/menu/index.ts", "web.menu", True),
        ("src/stepwell/strategies/__init__.py", "stepwell.strategies", True),
        ("src/stepwell/strategies/index.py", "other.index", False),
        ("index.py", "a.index", False),
        ("Makefile", "Makefile", True),
    ],
)
def test_modules(source: str, module: str, *, is_one: bool) -> None:
    """A path that ends in a dotted name; one that stands for its directory is called by that, too."""
    assert is_module(source, tuple(module.split("."))) == is_one


def test_slugs_and_stems() -> None:
    assert slug(" What is it, really? ") == "what-is-it-really"
    assert stems("a/b.tar.gz") == ["b.tar"]
    assert stems(".gitignore") == [".gitignore"]
    assert stems("a/b.") == ["b."]
    assert stems("src/stepwell/__init__.py") == ["__init__", "stepwell"]
    assert stems("README.md") == ["README"]
