"""`stepwell assemble`, `why` and `diff`: a question about a directory, from a shell, with nothing running."""

import fcntl
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.cli.main import main
from stepwell.directory_index.cache import cache_directory

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

QUICK = ["--strategies", "keyword", "recency"]  # no model has to be loaded for these
SOURCES = {
    "budget.py": 'def enforce(budget):\n    """Demote what is least used until the hot tier is within its budget."""\n',
    "README.md": "# Wells\n\nA well has steps.\n\n## Water\n\nIt is cold, and there is a budget of buckets.\n",
    "other.txt": "nothing of interest\n",
}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of somebody who has never used this before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "wells"
    root.mkdir()
    for name, text in SOURCES.items():
        (root / name).write_text(text)
    return root


@pytest.fixture
def large_tree(tree: Path) -> Path:
    """A directory that is worth an index: reading a few files takes less time than writing one."""
    for number in range(limits.DIRECTORY_UNSAVED_FILES_MAX):
        (tree / f"more{number}.txt").write_text("nothing of interest\n")
    return tree


def test_question_about_a_directory(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The context is Markdown with sources; the next time all is known; and one can ask why."""
    assert main(["assemble", "who demotes what is least used?", str(tree), "--budget", "300", *QUICK]) == 0
    told = capsys.readouterr().out
    assert "### budget.py:1-2" in told
    assert "Demote what is least used" in told
    (tree / "budget.py").write_text("def forget(): ...\n")
    (tree / "new.py").write_text("def demote(what):\n    return what.least_used\n")
    assert main(["assemble", "who demotes what is least used?", str(tree), "--json", "--explain", *QUICK]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["fragments"][0]["source"] == "new.py"
    assert facts["total_tokens"] <= facts["budget_tokens"] == 8_000
    assert facts["receipt"]["entries"]
    assert main(["why", "new.py:2", str(tree)]) == 0
    assert "is in the answer" in capsys.readouterr().out
    assert main(["why", facts["fragments"][0]["fragment_id"], str(tree), "--receipt", facts["receipt_id"]]) == 0
    assert "keyword: rank 1" in capsys.readouterr().out
    assert main(["why", "nobody", str(tree)]) == 1
    assert "was no candidate" in capsys.readouterr().err
    assert main(["diff", "--path", str(tree)]) == 0
    assert "came new.py" in capsys.readouterr().out
    assert main(["diff", facts["receipt_id"], facts["receipt_id"], "--path", str(tree), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == []


def test_one_file(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else of its directory, whatever was asked before."""
    assert main(["assemble", "budget", str(tree), *QUICK]) == 0
    assert "budget.py" in capsys.readouterr().out
    assert main(["assemble", "budget", str(tree / "README.md"), *QUICK]) == 0
    told = capsys.readouterr().out
    assert ("README.md" in told, "budget.py" in told) == (True, False)


def test_full_disk(tree: Path) -> None:
    """What cannot be written is said in a line."""
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "stepwell", "assemble", "water", str(tree), *QUICK]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "the result cannot be written: No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_strategy_fails(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["assemble", "water", str(tree), "--strategies", "nobody-has-this"]) == 1
    assert (
        "nobody-has-this: there is no strategy 'nobody-has-this': there are graph, keyword" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "arguments, advice",
    [
        (["assemble", "q", "{tree}/missing"], "cannot be read"),
        (["assemble", "q", "{tree}", "--budget", "0"], "at least one token"),
        (["assemble", "q", "{tree}", "--budget", "9" * 30], "at least one token"),
        (["assemble", "q", "{tree}", "--component", "fuse"], "STAGE=NAME"),
        (["assemble", "q", "{tree}", "--component", "fuse=wool"], "there is no fuse 'wool'"),
        (["assemble", "q", "{tree}", "--deadline", "-1"], "give more than 0 and at most a day"),
        (["assemble", "q", "{tree}", "--deadline", "nan"], "give more than 0 and at most a day"),
        (["assemble", "q", "{tree}", "--plan", "P"], "a plan is kept by a manager: name one with --connect"),
        (["diff", "ONE", "--path", "{tree}"], "give two receipts"),
    ],
)
def test_mistakes(tree: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], advice: str) -> None:
    assert main([each.replace("{tree}", str(tree)) for each in arguments]) == 2
    assert advice in capsys.readouterr().err


def test_a_working_directory_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names it, and says what to give."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["assemble", "water"]) == 2
    assert "the working directory cannot be read" in capsys.readouterr().err


def test_no_answer_yet(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "anything", str(tree)]) == 1
    assert "`stepwell assemble` first" in capsys.readouterr().err


# A manager that is running.


@pytest.fixture(scope="module")
def runtime() -> Iterator[sw.Runtime]:
    with sw.Runtime.start(workers=1) as started:
        yield started


def test_running_manager(runtime: sw.Runtime, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a path, its files are read first; with a project alone, what is there is asked."""
    assert main(["assemble", "buckets of water", str(tree), "--connect", runtime.address, *QUICK]) == 0
    first = capsys.readouterr().out
    assert "README.md" in first
    connected = ["--connect", runtime.address, "--project", "wells"]
    assert main(["assemble", "buckets of water", *connected, *QUICK]) == 0
    assert capsys.readouterr().out == first
    assert main(["why", "README.md", *connected]) == 0
    assert "is in the answer" in capsys.readouterr().out
    assert not cache_directory(tree).path.exists()


def test_explained(runtime: sw.Runtime, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every candidate, and what became of it."""
    connected = [str(tree), "--connect", runtime.address]
    assert main(["assemble", "water", *connected, "--explain", "--kinds", "markdown", *QUICK]) == 0
    told = capsys.readouterr().out
    assert "| rank | fragment |" in told
    assert "kept: " in told
    assert "budget.py" not in told


@pytest.mark.parametrize(
    "arguments, outcome",
    [
        (
            ["{tree}", "--kinds", "nothing-is-this"],
            ("nothing is of kind 'nothing-is-this', only of code, markdown, text", 1),
        ),
        (["{tree}", "--focus", "nobody.py", "--kinds", "code"], ("nothing is called 'nobody.py'", 1)),
        (["{tree}", "--focus", "budget.py", "wells/README.md"], ("nothing is called 'wells/README.md'", 0)),
        (["--project", "nobody-has-this"], ("nothing is stored in project 'nobody-has-this'", 1)),
    ],
)
def test_what_is_not_there(
    runtime: sw.Runtime, tree: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], outcome: tuple[str, int]
) -> None:
    """It is said, also where there is an answer all the same."""
    told, code = outcome
    given = [each.replace("{tree}", str(tree)) for each in arguments]
    assert main(["assemble", "water", *given, "--connect", runtime.address, *QUICK]) == code
    complaints = capsys.readouterr().err
    assert told in complaints
    assert complaints.count("nothing is ") == 1


def test_no_match(runtime: sw.Runtime, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said, and nothing is printed, unless the budget is to be filled."""
    asked = ["assemble", "zzxqy", str(tree), "--connect", runtime.address, *QUICK]
    assert main(asked) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "nothing matches the question: ask with other words, or fill the budget with --fill" in told.err
    assert main([*asked, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["fragments"] == []
    assert main([*asked, "--fill"]) == 0
    assert "### README.md" in capsys.readouterr().out
    assert main(["assemble", "water", *asked[2:], "--budget", "3"]) == 1
    assert "nothing that matches fits: give a larger --budget" in capsys.readouterr().err


def test_stop_score(runtime: sw.Runtime, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The parts that match badly are left out, or shown with a lower stop score."""
    asked = ["assemble", "a bucket of water", str(tree), "--connect", runtime.address, *QUICK]
    counts: list[int] = []
    for option in (["--stop-score", "1"], [], ["--stop-score", "0.1"], ["--fill"]):
        assert main([*asked, "--json", *option]) == 0
        counts.append(len(json.loads(capsys.readouterr().out)["fragments"]))
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] > 1
    assert main([*asked, "--stop-score", "1.5"]) == 2
    assert "a stop score is a part of the best score" in capsys.readouterr().err
    assert main([*asked, "--stop-score", "0.1", "--fill"]) == 2
    assert "not both" in capsys.readouterr().err


# What is kept.


def test_what_is_kept_is_damaged(large_tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is only a cache: it is made anew, and that is said."""
    assert main(["assemble", "water", str(large_tree), *QUICK]) == 0
    first = capsys.readouterr().out
    cache_directory(large_tree).index.write_bytes(b"not an index" * 100)
    assert main(["assemble", "water", str(large_tree), *QUICK]) == 0
    told = capsys.readouterr()
    assert told.out == first
    assert "the cache cannot be used, and is built again" in told.err


def test_cache_that_others_may_enter(large_tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The directory is stepwell's own: its mode is corrected, and what is in it is used."""
    cache = cache_directory(large_tree)
    for _ in range(2):
        assert main(["assemble", "water", str(large_tree), *QUICK]) == 0
        assert "cache" not in capsys.readouterr().err
        for path in (cache.path, cache.receipts):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
            path.chmod(0o755)
    assert cache.index.exists()


def test_cache_that_is_a_link(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another place could be another user's: nothing is written there."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    cache = cache_directory(tree)
    cache.path.parent.mkdir(parents=True)
    cache.path.symlink_to(elsewhere)
    assert main(["assemble", "water", str(tree), *QUICK]) == 0
    told = capsys.readouterr()
    assert "Water" in told.out
    assert "nothing is cached for the next time" in told.err
    assert not cache.index.exists()


def test_cache_of_a_data_directory(large_tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An earlier version kept a data directory here, which nothing reads any more: it goes."""
    state = cache_directory(large_tree).path / "state"
    state.mkdir(parents=True)
    (state / "stepwell.sqlite").touch()
    assert main(["assemble", "water", str(large_tree), *QUICK]) == 0
    assert not state.exists()
    capsys.readouterr()


def test_nothing_can_be_kept(tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer is the same; only the next time takes as long."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tree / "README.md"))
    assert main(["assemble", "water", str(tree), *QUICK]) == 0
    told = capsys.readouterr()
    assert "Water" in told.out
    assert "nothing is cached for the next time" in told.err


def test_two_at_once(large_tree: Path) -> None:
    """One waits for the other."""
    cache = cache_directory(large_tree)
    cache.prepare()
    command = [sys.executable, "-m", "stepwell", "assemble", "water", str(large_tree), *QUICK]
    descriptor = os.open(cache.path / "command.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert "waiting for it" in process.stderr.readline()
        os.close(descriptor)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, "Water" in out) == (0, True)
