"""Commits: files are found by what was said when they were changed."""

from stepwell.domain.tiers.commit_history import HISTORY_ID, Commit, encode_history
from stepwell.strategies.builtin.keyword import KeywordStrategy
from stepwell.strategies.index.words.commits import CommitIndex
from tests.support.strategy_views import Store, ask, found, ids


def test_scores() -> None:
    """The files of a commit share the score of its message; several commits add up."""
    index = CommitIndex.of(
        [
            Commit("Fix the budget", ("a.py",)),
            Commit("Keep a budget", ("a.py", "b.py")),
            Commit("Something else", ("c.py",)),
        ]
    )
    scores = index.scores({"budget": 1.0, "unheard": 1.0})
    assert scores["a.py"] > 2 * scores["b.py"] > 0
    assert "c.py" not in scores
    assert index.recency["a.py"] == 1 > index.recency["b.py"] > index.recency["c.py"]
    assert CommitIndex.of([]).scores({"budget": 1.0}) == {}


def project() -> Store:
    store = Store()
    for name in ("a", "b", "c"):
        store.store(f"src/{name}.py#run", "def run(): alpha()", source=f"src/{name}.py", kind="code")
        store.store(f"src/{name}.py#stop", "def stop(): omega()", source=f"src/{name}.py", kind="code")
    return store


def remember(store: Store, *commits: Commit) -> None:
    store.store(HISTORY_ID, encode_history(commits), kind="file")


def test_the_history_of_a_project() -> None:
    """It decides between files that are equal, is never shown, and is followed like everything else."""
    store, keyword = project(), KeywordStrategy()
    request = ask("alpha tax")
    assert ids(found(keyword, request, store.view()))[0] == "src/a.py#run"
    for path in ("src/b.py", "src/c.py"):
        remember(store, Commit("Compute the tax", (path, "gone.py")))
        for base in (0, 99):
            results = found(keyword, request, store.view(base=base))
            assert results[0].fragment_id == f"{path}#run"
            assert results == found(KeywordStrategy(), request, store.view())
    assert HISTORY_ID not in ids(found(keyword, ask("tax", kinds=["file", "code"]), store.view()))
    store.delete(HISTORY_ID)
    for base in (0, 99):
        assert ids(found(keyword, request, store.view(base=base)))[0] == "src/a.py#run"
    remember(store, Commit("Compute the tax", ("src/c.py",)))
    found(keyword, request, store.view())
    store.delete(HISTORY_ID)
    assert ids(found(keyword, request, store.view(base=99)))[0] == "src/a.py#run"
