"""The ranking of files and fragments: words, places that a query names, and what kind of file it is."""

import pytest

from stepwell.strategies.builtin.keyword import KeywordStrategy
from stepwell.strategies.protocol import ScoredFragment
from tests.support.strategy_views import Store, ask, found, ids


def code(store: Store, part: str, body: str, *, lines: str = "1-9", refs: str = "") -> None:
    """Store a part of a program under the id that ingesting would give it."""
    source, _, name = part.partition("#")
    metadata = {"name": name, "lines": lines, "refs": refs, "split": "2"}
    store.store(part, body, source=source, kind="code", metadata={key: each for key, each in metadata.items() if each})


def asked(store: Store, query: str) -> tuple[ScoredFragment, ...]:
    return found(KeywordStrategy(), ask(query), store.view(), 10_000)


def project(*paths: str) -> Store:
    """A project in which all files say the same."""
    store = Store()
    for path in paths:
        code(store, f"{path}#run", "def run():\n    budget()\n")
        code(store, f"{path}#stop", "def stop():\n    nothing()\n")
    return store


def test_the_file_counts_with_the_fragment() -> None:
    """Of two functions that are equal, the one whose file has more of the words comes first."""
    store = project("src/a.py", "src/b.py")
    code(store, "src/b.py#keep", "def keep():\n    budget() + budget()\n")
    assert ids(asked(store, "budget run")).index("src/b.py#run") < ids(asked(store, "budget run")).index("src/a.py#run")


@pytest.mark.parametrize(
    "less", ["tests/test_a.py", "testing/a.py", "src/a.spec.ts", "docs/a.py", "examples/a.py", "vendor/a.py"]
)
def test_tests_and_documents_count_less(less: str) -> None:
    store = project(less, "src/z.py")
    assert asked(store, "budget")[0].fragment_id == "src/z.py#run"


@pytest.mark.parametrize(
    "query, path",
    [
        ("which tests cover the budget", "tests/a.py"),
        ("examples of the budget", "examples/a.py"),
        ("budget in the documentation", "doc/a.py"),
    ],
)
def test_unless_the_query_asks_for_them(query: str, path: str) -> None:
    """Then they count as much, and the order of equals is that of their ids."""
    store = project(path, "zsrc/z.py")
    assert asked(store, query)[0].fragment_id == f"{path}#run"


def test_a_path_in_the_query() -> None:
    """Its file comes first, also if the path is longer than that of the project, or is only a name."""
    store = project("src/app/a.py", "src/app/b.py", "src/other/b.py")
    for path in ("src/other/b.py", "/home/me/src/other/b.py", "other/b.py"):
        assert asked(store, f"budget fails\n\nSee {path} for it")[0].fragment_id == "src/other/b.py#run"
    assert asked(store, "budget fails\n\nSee elsewhere/c.py")[0].fragment_id == "src/app/a.py#run"


def test_a_module_in_the_query() -> None:
    store = project("src/app/a.py", "src/app/b.py", "src/app/core/__init__.py")
    assert asked(store, "budget of app.b.Run")[0].fragment_id == "src/app/b.py#run"
    assert asked(store, "budget of app.core.Run")[0].fragment_id == "src/app/core/__init__.py#run"


TRACEBACK = """\
The budget fails

Traceback (most recent call last):
  File "/usr/lib/python3/site-packages/app/a.py", line 3, in run
  File "/usr/lib/python3/site-packages/app/b.py", line 14, in stop
  File "/usr/lib/python3/json/decoder.py", line 1, in run
ValueError: no
"""


def test_a_traceback() -> None:
    """The innermost frame in the project counts most, and points to its function, which need not have any word."""
    store = project("src/app/a.py", "src/app/b.py", "src/app/c.py")
    names = ids(asked(store, TRACEBACK))
    assert "src/app/b.py#stop" in names
    assert names.index("src/app/b.py#run") < names.index("src/app/a.py#run") < names.index("src/app/c.py#run")


def test_a_line_without_a_function() -> None:
    store = Store()
    code(store, "src/a.js#one", "function one() {}", lines="1-4")
    code(store, "src/a.js#two", "function two() {}", lines="5-9")
    code(store, "src/b.js#three", "budget()", lines="1-4")
    first, *_ = asked(store, "budget\n\nError: no\n    at /app/src/a.js:7:3\n    at /app/src/b.js:1:1\n")
    names = ids(asked(store, "budget\n\nError: no\n    at /app/src/a.js:7:3\n"))
    assert names.index("src/a.js#two") < names.index("src/a.js#one")
    assert first.reason


def test_importers() -> None:
    """Of two files that are equal, the one that others import comes first."""
    store = project("src/app/a.py", "src/app/b.py")
    for number in range(3):
        code(store, f"src/app/user{number}.py#use", "def use(): ...", refs="app.b\napp.b.run\nother.thing")
    assert asked(store, "budget")[0].fragment_id == "src/app/b.py#run"


def test_rarity_among_files() -> None:
    """A word that all parts of one file have is as rare as one that is in a single part."""
    store = project(*(f"src/m{number}.py" for number in range(30)))
    for number in range(10):
        code(store, f"src/a.py#f{number}", "def f(): alpha()\n")
    code(store, "src/b.py#f", "def f(): omega()\n")
    scores = {each.fragment_id: each.score for each in asked(store, "alpha omega")}
    assert scores["src/a.py#f0"] > 0.8 * scores["src/b.py#f"]


def test_an_edited_file_is_as_one_that_was_always_so() -> None:
    """Also after parts of it came and went, and the whole index was numbered anew."""
    store = project("src/a.py", "src/b.py", "tests/test_a.py")
    keyword = KeywordStrategy()
    assert found(keyword, ask(TRACEBACK), store.view())
    store.delete("src/a.py#run")
    code(store, "src/a.py#walk", "def walk(): budget(budget)\n", refs="b")
    store.store("src/b.py#run", "moved", source="src/c.py", kind="text")
    for query in (TRACEBACK, "budget", "walk src/a.py"):
        assert found(keyword, ask(query), store.view()) == found(KeywordStrategy(), ask(query), store.view())
