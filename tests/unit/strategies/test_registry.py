"""The registry: what is a strategy, and what is said to whoever gives something else."""

import types
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.tasks.model import StrategyProblems
from stepwell.errors import InvalidArgument, NotFound
from stepwell.strategies.builtin.keyword import KeywordStrategy
from stepwell.strategies.function_strategy import FunctionStrategy
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, Strategy, StrategyInfo, StrategyView
from stepwell.strategies.registry import GROUP, Registry
from tests.support.entry_points import BROKEN, REASONS, install
from tests.support.strategy_views import Store, ask

BUILT_IN = ["graph", "keyword", "plan-decision", "recency", "semantic", "tiered"]

PACKAGE = """
class Mine:
    name = "theirs"
    capabilities = frozenset({"b", "a"})
    def can_handle(self, request, view): return 1.0
    def assemble(self, request, view, budget_tokens): return ()
    def explain(self): return "theirs"

class Nested:
    class Other(Mine):
        name = "nested"

instance = Nested.Other()

class Unmade(Mine):
    def __init__(self): raise OSError("no model")

def factory():
    made = Mine()
    made.name = "made"
    return made

def a_function(request, view, budget_tokens): return ()
"""


class Custom:
    def __init__(self, name: str = "custom") -> None:
        self.name: str = name
        self.capabilities: frozenset[str] = frozenset({"b", "a"})

    def can_handle(self, request: ContextRequest, view: StrategyView) -> float:
        return 0.5 if request.query and view.projects else 0.0

    def assemble(self, request: ContextRequest, view: StrategyView, budget_tokens: int) -> Sequence[ScoredFragment]:
        return by_id(request, view, budget_tokens)

    def explain(self) -> str:
        return "of this test"


def by_id(request: ContextRequest, view: StrategyView, budget_tokens: int) -> list[ScoredFragment]:
    """Whatever comes first
    in the alphabet.

    And more of that.
    """
    rows = [row for project in request.projects for row in view.rows(project)]
    ranked = sorted(rows, key=lambda row: row.fragment_id)[:budget_tokens]
    return [ScoredFragment(row.project, row.fragment_id, 1.0, row.tokens, row.revision) for row in ranked]


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of its own name, because what was imported once stays."""
    name = f"offered_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_built_in(registry: Registry) -> None:
    assert list(registry) == BUILT_IN
    assert isinstance(registry["keyword"], KeywordStrategy)
    assert registry.describe() == (
        StrategyInfo("graph", ("focus", "kinds", "query", "references"), is_partitioned=False),
        StrategyInfo("keyword", ("kinds", "query"), is_partitioned=True),
        StrategyInfo("plan-decision", ("kinds", "plan"), is_partitioned=False),
        StrategyInfo("recency", ("time",), is_partitioned=True),
        StrategyInfo("semantic", ("kinds", "meaning", "query"), is_partitioned=False),
        StrategyInfo("tiered", ("kinds", "tiers"), is_partitioned=False),
    )
    assert registry.problems == ()


def test_two_registries_share_nothing(registry: Registry) -> None:
    """Each has strategies of its own, which remember what they were asked."""
    assert registry["keyword"] is not Registry()["keyword"]


def test_what_is_kept_of_a_project_is_kept_once(registry: Registry) -> None:
    """Whoever looks for words has the same index, and it is read once."""
    store = Store()
    store.store("a", "red")
    view = store.view()
    registry["keyword"].assemble(ask("red"), view, 100)
    store.lose_body("a")
    lost = replace(store.view(), revision=view.revision)
    for name in ("graph", "tiered"):
        assert [each.fragment_id for each in registry[name].assemble(ask("red"), lost, 100)] == ["a"]


def makes_one() -> Custom:
    return Custom()


@pytest.mark.parametrize("candidate", [Custom, Custom(), makes_one])
def test_objects_classes_and_factories(registry: Registry, candidate: object) -> None:
    added = registry.add(candidate)
    assert registry["custom"] is added
    assert "custom" in registry
    assert StrategyInfo("custom", ("a", "b"), is_partitioned=False) in registry.describe()


def test_a_function(registry: Registry) -> None:
    """A function of a notebook is a strategy, named after it, and as sure of itself as the least sure of the others."""
    strategy = registry.add(by_id)
    store = Store()
    for fragment_id in "bca":
        store.store(fragment_id)
    assert strategy.name == "by-id"
    assert [each.fragment_id for each in strategy.assemble(ask(), store.view(), 2)] == ["a", "b"]
    assert strategy.can_handle(ask(), store.view()) == 0.4
    assert strategy.explain() == "Whatever comes first in the alphabet."
    assert registry.describe()[0] == StrategyInfo("by-id", (), is_partitioned=False)


def test_functions_that_say_nothing_of_themselves() -> None:
    assert FunctionStrategy(lambda _, __, ___: (), name="mine").explain() == "The function mine."
    with pytest.raises(InvalidArgument, match="1 to 64 lower case"):
        Registry([lambda _, __, ___: ()])


def test_a_function_that_returns_something_else() -> None:
    def wrong(_request: ContextRequest, _view: StrategyView, _budget_tokens: int) -> list[str]:
        return ["a"]

    strategy = Registry([wrong])["wrong"]
    with pytest.raises(InvalidArgument, match="wrong is to return ScoredFragments, not a str"):
        strategy.assemble(ask(), Store().view(), 1)


@pytest.mark.parametrize("name", ["", "Custom", "a b", "a\n", "ä", "-a", "_a", "x" * 65, 5])
def test_malformed_names(registry: Registry, name: str) -> None:
    with pytest.raises(InvalidArgument, match="1 to 64 lower case letters, digits, hyphens and underscores"):
        registry.add(Custom(name))
    assert list(registry) == BUILT_IN


@pytest.mark.parametrize("name", ["a", "0", "a-b", "a_b", "a-b_c", "x" * 64])
def test_names(registry: Registry, name: str) -> None:
    assert registry.add(Custom(name)) is registry[name]


def test_a_name_that_is_taken(registry: Registry) -> None:
    with pytest.raises(InvalidArgument, match="'keyword' already: give this one another name"):
        registry.add(Custom("keyword"))
    assert isinstance(registry["keyword"], KeywordStrategy)


@pytest.mark.parametrize("first, second", [("a-b_c", "a_b-c"), ("a_b", "a-b")])
def test_a_name_that_is_nearly_taken(first: str, second: str) -> None:
    """Two names that differ only in hyphens and underscores would be taken for each other."""
    registry = Registry([Custom(first)])
    with pytest.raises(InvalidArgument, match=f"'{first}' already, which '{second}' is too much like: give this one"):
        registry.add(Custom(second))
    assert list(registry) == [first]


async def later(_request: ContextRequest, _view: StrategyView, _budget_tokens: int) -> list[ScoredFragment]:
    return []


def makes_a_class() -> type[Custom]:
    return Custom


@pytest.mark.parametrize("candidate", [None, "keyword", 5, int, object(), types, makes_a_class, len, later])
def test_what_is_no_strategy(registry: Registry, candidate: object) -> None:
    with pytest.raises(InvalidArgument, match=r"is no strategy: give an object|is a coroutine"):
        registry.add(candidate)


def test_members_of_other_types(registry: Registry) -> None:
    """A caller without a type checker is told what one would have said."""
    custom = Custom()
    vars(custom)["capabilities"] = "text"
    with pytest.raises(InvalidArgument, match="capabilities are a frozenset of at most 32 texts"):
        registry.add(custom)
    custom = Custom()
    vars(custom)["explain"] = "text"
    with pytest.raises(InvalidArgument, match="explain of the strategy 'custom' is no method"):
        registry.add(custom)


def test_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STRATEGIES_MAX", len(BUILT_IN))
    registry = Registry()
    with pytest.raises(InvalidArgument, match=f"there are {len(BUILT_IN)} strategies already"):
        registry.add(Custom())


def test_an_unknown_name(registry: Registry) -> None:
    with pytest.raises(NotFound, match=f"there are {', '.join(BUILT_IN)}"):
        registry["unheard-of"]
    with pytest.raises(NotFound, match="there are none"):
        Registry([])["keyword"]


@pytest.mark.parametrize(
    "attribute, name",
    [
        ("Mine", "theirs"),
        ("instance", "nested"),
        ("Nested.Other", "nested"),
        ("factory", "made"),
        ("a_function", "a-function"),
    ],
)
def test_texts(registry: Registry, package: str, attribute: str, name: str) -> None:
    """What an operator names is imported: an object, a class, a factory or a function."""
    loaded = registry.load(f"{package}:{attribute}")
    assert isinstance(loaded, Strategy)
    assert loaded is registry[name]


@pytest.mark.parametrize("text", ["", "module", ":", "module:", ":attribute"])
def test_malformed_texts(registry: Registry, text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not 'module:attribute'"):
        registry.load(text)


def test_texts_that_cannot_be_imported(registry: Registry, package: str, tmp_path: Path) -> None:
    """Each is refused with its reason, and the next is loaded all the same."""
    (tmp_path / f"{package}_exits.py").write_text("raise SystemExit('bye')")
    for text, reason in {
        "no_such_module:x": "ModuleNotFoundError: No module named",
        f"{package}:missing": "AttributeError",
        f"{package}_exits:x": "SystemExit: bye",
        f"{package}:Unmade": "OSError: no model",
    }.items():
        with pytest.raises(NotFound, match=f"strategy '{text}' cannot be loaded: {reason}"):
            registry.load(text)
    assert registry.load(f"{package}:Mine") is registry["theirs"]


def test_a_text_that_names_no_strategy(registry: Registry, package: str) -> None:
    with pytest.raises(InvalidArgument, match="is no strategy"):
        registry.load(f"{package}:Nested")


def installed(registry: Registry, directory: Path, monkeypatch: pytest.MonkeyPatch, points: dict[str, str]) -> str:
    """Load the entry points of a package, and return the name of its module."""
    module = install(directory, points)
    monkeypatch.syspath_prepend(directory)
    registry.load_entry_points()
    return module


def test_entry_points(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed packages offer theirs; one that is broken, or whose name is taken, does not stop the others."""
    module = installed(registry, tmp_path, monkeypatch, dict(reversed(BROKEN.items())))
    assert list(registry) == sorted([*BUILT_IN, "theirs", "with_underscore"])
    assert [each.name for each in registry.problems] == [*REASONS]
    for problem in registry.problems:
        assert REASONS[problem.name] in problem.reason
        assert problem.source == f"{BROKEN[problem.name].format(module=module)}, of offered 1.0"


def test_entry_points_that_cannot_be_read(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A malformed file of one package spoils those of all, and the built-in strategies are there all the same."""
    install(tmp_path, {})
    (tmp_path / "offered-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe")
    monkeypatch.syspath_prepend(tmp_path)
    registry.load_entry_points()
    assert [(each.name, each.source) for each in registry.problems] == [("*", GROUP)]
    assert "no entry point can be read: UnicodeDecodeError" in registry.problems[0].reason
    assert list(registry) == BUILT_IN


def test_problems_are_bounded(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one stands for the rest, and a long or strange reason is shortened to what can be sent."""
    (tmp_path / "strange_module.py").write_text("raise ValueError('\\udc80' * 10_000)")
    installed(registry, tmp_path, monkeypatch, {f"n{number:02}{'x' * 99}": "strange_module:x" for number in range(30)})
    assert len(registry.problems) == limits.STRATEGY_PROBLEMS_MAX
    assert registry.problems[-1].reason == "15 more could not be loaded"
    assert registry.problems[0].reason == f"ValueError: {'?' * 10_000}"[: limits.STRATEGY_PROBLEM_CHARS_MAX]
    assert msgspec.json.decode(msgspec.json.encode(registry.problems), type=StrategyProblems) == registry.problems
