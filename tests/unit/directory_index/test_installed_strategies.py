"""Strategies of other packages, asked about a directory: in processes of their own, and each costs itself only."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell import limits
from stepwell.assembly.answer import Answer
from stepwell.directory_index.cache import CacheDirectory
from stepwell.directory_index.directory import DirectoryIndex
from stepwell.directory_index.installed_strategies import describe_installed
from stepwell.ingest.secret_policy import SecretPolicy
from stepwell.strategies.protocol import ContextRequest
from stepwell.strategies.registry import GROUP
from tests.support.ingest import write

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

MODULE = """
import os, signal, time
from stepwell.strategies.protocol import ScoredFragment

class Longest:
    name = "longest"
    capabilities = frozenset({"query"})
    def can_handle(self, request, view): return 1.0
    def explain(self): return "the longest"
    def assemble(self, request, view, budget_tokens):
        rows = sorted(view.rows("p"), key=lambda row: -row.size)
        assert all(bytes(view.get(row.fragment_id).body) for row in rows)
        found = [row for row in rows if row.kind != "file"]
        return [ScoredFragment("p", row.fragment_id, row.size, row.tokens, row.revision) for row in found]

class Raising(Longest):
    name = "raising"
    def assemble(self, request, view, budget_tokens): raise ValueError("no luck")

class Dying(Longest):
    name = "dying"
    def assemble(self, request, view, budget_tokens): os.kill(os.getpid(), signal.SIGKILL)

class Hanging(Longest):
    name = "hanging"
    def assemble(self, request, view, budget_tokens): time.sleep(3600)

class Leaving(Longest):
    name = "leaving"
    def assemble(self, request, view, budget_tokens): raise SystemExit(3)
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DirectoryIndex]:
    """An index whose workers have a package with strategies on their path."""
    package = tmp_path / "site"
    package.mkdir()
    monkeypatch.syspath_prepend(str(package))
    names = ["Longest", "Raising", "Dying", "Hanging", "Leaving", "Missing"]
    module = f"strategies_of_{tmp_path.name}".replace("-", "_")
    (package / f"{module}.py").write_text(MODULE)
    metadata = package / "offered-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: offered\nVersion: 1.0\n")
    lines = [f"{name} = {module}:{name}" for name in names]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines]))
    write(tmp_path / "root", {"a.md": "# One\n\nshort words\n", "b.md": "# Two\n\n" + "many more words " * 40})
    notices: list[str] = []
    cache = CacheDirectory(tmp_path / "cache")
    with DirectoryIndex(tmp_path / "root", "p", SecretPolicy.REDACT, cache, notices.append) as found:
        found.refresh()
        yield found
    assert [each for each in notices if "Missing" not in each] == []


def ask(directory: DirectoryIndex, *names: str, deadline_s: float | None = None) -> Answer:
    request = ContextRequest(projects=["p"], query="words", budget_tokens=500, stop_score=0)
    return directory.assemble(request, strategies=names or None, deadline_s=deadline_s)


def test_they_see_the_index(directory: DirectoryIndex) -> None:
    """A strategy of another package reads rows and bodies, and its weight is what it declares."""
    answer = ask(directory, "longest")
    assert [each.source for each in answer.fragments] == ["b.md", "a.md"]
    assert answer.strategies[0].explanation == "the longest"


def test_each_costs_itself_only(directory: DirectoryIndex) -> None:
    """One that raises, leaves or dies fails by name, and the others answer."""
    answer = ask(directory, "longest", "raising", "dying", "leaving", "keyword")
    failures = {each.strategy: each for each in answer.failures}
    assert failures.keys() == {"raising", "dying", "leaving"}
    assert "ValueError: no luck" in failures["raising"].message
    assert failures["dying"].kind == "WorkerDied"
    assert "SystemExit" in failures["leaving"].message
    assert {each.strategy for each in answer.strategies if not each.failure} == {"longest", "keyword"}


def test_one_that_hangs(directory: DirectoryIndex) -> None:
    """It is given up at its deadline, and its process ends with the answer."""
    answer = ask(directory, "hanging", "keyword", deadline_s=0.5)
    assert [(each.strategy, each.kind) for each in answer.failures] == [("hanging", "DeadlineExceeded")]
    assert answer.fragments


def test_all_that_there_are(directory: DirectoryIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without names, all are asked; one that cannot be loaded is named."""
    told: list[str] = []
    monkeypatch.setattr(directory, "_notice", told.append)
    answer = ask(directory, deadline_s=1)
    assert {"longest", "keyword", "raising"} <= {each.strategy for each in answer.strategies}
    assert len(told) == 1
    assert "Missing" in told[0]
    assert "cannot be loaded" in told[0]


def test_an_import_that_never_ends(directory: DirectoryIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """The strategies of other packages are left out, and a notice says so."""
    told: list[str] = []
    monkeypatch.setattr(directory, "_notice", told.append)
    monkeypatch.setattr(limits, "DIRECTORY_STRATEGY_START_SECONDS", 0.0)
    assert ask(directory).fragments
    assert "takes too long" in told[0]


def test_an_import_that_kills(directory: DirectoryIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose import ends the worker costs the strategies of other packages, and not the answer."""
    told: list[str] = []
    monkeypatch.setattr(directory, "_notice", told.append)
    [module] = (tmp_path / "site").glob("strategies_of_*.py")
    module.write_text("import os\nos._exit(5)\n")
    assert ask(directory).fragments
    assert "failed: the worker" in told[0]


def test_without_a_cache(directory: DirectoryIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers read the index from the cache: where there is none, these strategies fail and the others answer."""
    monkeypatch.setattr(directory, "_cache", None)
    answer = ask(directory, "longest", "keyword")
    assert [(each.strategy, each.kind) for each in answer.failures] == [("longest", "ResourceExhausted")]
    assert answer.fragments


@pytest.mark.usefixtures("directory")
def test_the_index_is_written_for_them(tmp_path: Path) -> None:
    """A change that is too small to be written at once is written when a worker has to see it."""
    write(tmp_path / "root", {"c.md": "# Three\n\n" + "even more words than before " * 60})
    notices: list[str] = []
    cache = CacheDirectory(tmp_path / "cache")
    with DirectoryIndex(tmp_path / "root", "p", SecretPolicy.REDACT, cache, notices.append) as found:
        found.refresh()
        assert ask(found, "longest").fragments[0].source == "c.md"


@pytest.mark.usefixtures("directory")
def test_a_cache_whose_path_is_not_utf8(tmp_path: Path) -> None:
    """Workers find the index there, too."""
    cache = CacheDirectory(tmp_path / os.fsdecode(b"caf\xe9"))
    told: list[str] = []
    with DirectoryIndex(tmp_path / "root", "p", SecretPolicy.REDACT, cache, told.append) as found:
        found.refresh()
        assert ask(found, "longest").fragments


def test_offers_have_no_built_in_strategy() -> None:
    """The workers describe those of other packages only, of which this environment has none."""
    assert b"keyword" not in describe_installed()
