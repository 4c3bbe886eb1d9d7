"""`stepwell eval`: evidence that is found, without any model that reads it."""

import json
import tarfile
from pathlib import Path

import pytest

from stepwell.cli.main import main

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

TURNS = [
    "Good morning everybody .",
    "Let us begin with the remote control .",
    "It should be yellow .",
    "And made of rubber .",
    "Then there is the budget .",
    "We have twelve Euro for each .",
    "That is all for today .",
]
ROWS: list[dict[str, object]] = [
    *(
        {"type": "document", "project": "m", "id": f"t{number}", "text": text, "order": number, "speaker": "Ada"}
        for number, text in enumerate(TURNS)
    ),
    {"type": "document", "project": "other", "id": "a.py", "text": "def main(): ...", "source": "a.py", "kind": "code"},
    {
        "type": "question",
        "project": "m",
        "id": "q1",
        "query": "What is the remote control made of?",
        "evidence": ["t1", "t3"],
    },
    {"type": "question", "project": "other", "id": "q2", "query": "main", "evidence": ["a.py"]},
]


def written(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


@pytest.fixture
def data(tmp_path: Path) -> str:
    return written(tmp_path / "data.jsonl", ROWS)


def test_json(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    """For each strategy alone and for all of them together, at each budget, by tokens and by count."""
    arguments = ["--budgets", "30,500", "--strategies", "keyword", "recency", "--workers", "1", "--json"]
    assert main(["eval", data, *arguments]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["projects"], facts["documents"], facts["questions"], facts["failures"]) == (2, 8, 2, {})
    assert [*facts["recall"]] == ["bm25", "keyword", "recency", "fusion"]
    assert all([*by_budget] == ["30", "500"] for by_budget in facts["recall"].values())
    for by_budget in facts["recall"].values():
        assert 0 <= by_budget["30"]["by_tokens"] <= by_budget["500"]["by_tokens"] <= 1
    assert facts["recall"]["fusion"]["500"] == {"by_tokens": 1.0, "by_count": 1.0}
    assert facts["recall"]["fusion"]["30"]["by_tokens"] >= facts["recall"]["keyword"]["30"]["by_tokens"] > 0


def test_table(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", data, "--strategies", "keyword", "--workers", "1"]) == 0
    table = capsys.readouterr().out
    assert "2 questions, 8 documents" in table
    assert "4,096 tokens" in table
    assert "fusion" in table
    assert "100.0 (100.0)" in table


@pytest.mark.parametrize(
    "rows, complaint",
    [
        ([*ROWS, {"type": "answer"}], "data.jsonl: line 11: Invalid value 'answer'"),
        (ROWS[:3], "there is no question in it"),
        ([*ROWS[:-1], {**ROWS[-1], "evidence": ["b.py"]}], "line 10: the evidence of 'q2' names 'b.py'"),
    ],
)
def test_malformed(
    rows: list[dict[str, object]], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is started, with the number of the line."""
    assert main(["eval", written(tmp_path / "data.jsonl", rows)]) == 2
    assert complaint in capsys.readouterr().err


def test_no_such_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(tmp_path / "nowhere.jsonl")]) == 2
    assert "nowhere.jsonl cannot be read: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("budgets", ["", "ten", "0,5", "5,-1"])
def test_budgets(data: str, budgets: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", data, f"--budgets={budgets}"]) == 2
    assert "--budgets" in capsys.readouterr().err


def test_unknown_strategies(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", data, "--strategies", "keyword", "hunch", "--workers", "1"]) == 1
    assert "there is no strategy 'hunch': there are graph, keyword" in capsys.readouterr().err


SOURCE = "def keep(budget):\n    return budget.kept\n"
REPORTS: list[dict[str, object]] = [
    {
        "id": "b1",
        "package": "app",
        "version": "1.0",
        "query": "budget is not kept",
        "files": ["src/a.py"],
        "functions": ["keep"],
    },
    {"id": "b2", "package": "App", "version": "1.0", "query": "nothing of it", "files": ["src/b.py"]},
]


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A directory with an archive of the package."""
    root = tmp_path / "work" / "app-1.0"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text(SOURCE)
    (root / "src" / "b.py").write_text("def other():\n    pass\n")
    (tmp_path / "sources").mkdir()
    with tarfile.open(tmp_path / "sources" / "app-1.0.tar.gz", "w:gz") as archive:
        archive.add(root, "app-1.0")
    return tmp_path / "sources"


def test_bug_reports(tmp_path: Path, sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their files and functions are looked for in the sources, which are a directory or an archive."""
    reports = written(tmp_path / "reports.jsonl", REPORTS)
    arguments = ["--sources", str(sources), "--strategies", "keyword", "--workers", "1", "--budgets", "400,900"]
    assert main(["eval", reports, *arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["reports"] == 2
    assert [*facts["localisation"]] == ["bm25", "keyword", "fusion"]
    for by_budget in facts["localisation"].values():
        assert by_budget["900"]["files_at"]["1"] == 0.5
        assert by_budget["900"]["bodies"] == 1.0
    with tarfile.open(sources / "app-1.0.tar.gz") as archive:
        archive.extractall(sources, filter="data")
    assert main(["eval", reports, *arguments]) == 0
    assert "2 reports" in capsys.readouterr().out


def test_bug_reports_without_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error says what is missing, and how to get it."""
    reports = written(tmp_path / "reports.jsonl", REPORTS)
    assert main(["eval", reports]) == 2
    assert "--sources" in capsys.readouterr().err
    assert main(["eval", reports, "--sources", str(tmp_path), "--workers", "1"]) == 2
    assert "pip download" in capsys.readouterr().err
