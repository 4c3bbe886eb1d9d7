"""`stepwell plan apply` and `rollback`: what was done in a line, and what was not, path by path."""

import sys
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.cli.plan import apply
from tests.support.cli.plans import Shell, executing, record

CHANGES = (
    sw.Change(path="a", before=b"old\n", after=b"new\n"),
    sw.Change(path="gone", before=b"gone\n"),
    sw.Change(path="dir/b c", after=b"b\n"),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "a").write_text("old\n")
    (root / "gone").write_text("gone\n")
    return root


def executed(client: sw.Client, *validations: sw.Validation) -> str:
    plan_id = executing(client, validations)
    record(client, plan_id, *CHANGES)
    client.plans.complete_execute(plan_id)
    return plan_id


def files(root: Path) -> dict[str, str]:
    inside = (path for path in root.rglob("*") if path.is_file() and ".stepwell" not in path.parts)
    return {str(path.relative_to(root)): path.read_text() for path in inside}


def python(name: str, code: str) -> sw.Validation:
    return sw.Validation(name, (sys.executable, "-S", "-c", code))


def test_there_and_back(shell: Shell, client: sw.Client, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this directory if none is given. Each twice: the second time says when it was, and does nothing."""
    before = files(root)
    plan_id = executed(client, python("looks", "print(open('a').read())"))
    monkeypatch.chdir(root)
    told = shell("plan", "apply", plan_id)
    assert (told.code, told.err) == (0, "")
    assert told.out == f"applied {plan_id}: 3 paths in {root}, 1 of 1 validation passed\n"
    assert files(root) == {"a": "new\n", "dir/b c": "b\n"}
    told = shell("plan", "apply", plan_id)
    assert told.code == 0
    assert told.out.startswith(f"plan {plan_id} was applied before, at ")
    told = shell("plan", "rollback", plan_id, "--reason", "never mind", "--root", f"../{root.name}")
    assert (told.code, told.out) == (0, f"rolled back {plan_id}: 3 paths in {root} as before the plan\n")
    assert files(root) == before
    undone = client.plans.get_plan(plan_id).rolled_back
    assert undone is not None
    assert undone.reason == "never mind"
    told = shell("plan", "rollback", plan_id)
    assert told.code == 0
    assert told.out.startswith(f"plan {plan_id} was rolled back before, at ")


def test_applied_and_undone_for_machines(shell: Shell, client: sw.Client, root: Path) -> None:
    """The outcome in a word, and all of the plan."""
    plan_id = executed(client)
    verbs = ("apply", "apply", "rollback", "rollback")
    facts = [shell("plan", verb, plan_id, "--root", str(root), "--json").json for verb in verbs]
    outcomes = ["applied", "applied_before", "rolled_back", "rolled_back_before"]
    assert [each["outcome"] for each in facts] == outcomes
    assert all(each["plan.applied.root"] == str(root) for each in facts)


def test_conflict(shell: Shell, client: sw.Client, root: Path) -> None:
    """Exit code 3, each path once with what was expected and what was found, a short diff, and nothing is written."""
    (root / "a").write_text("mine\n")
    (root / "gone").unlink()
    before = files(root)
    plan_id = executed(client)
    told = shell("plan", "apply", plan_id, "--root", str(root))
    assert (told.code, told.out) == (3, "")
    line, *diff = told.err.splitlines()
    assert line.startswith(
        "stepwell: the tree is not what the change expects, and was left as it is: 'a' has a file 644 "
    )
    assert "; 'gone' has nothing instead of a file" in line
    assert diff == ["--- a (expected)", "+++ a (found)", "@@ -1,1 +1,1 @@", "-old", "+mine"]
    assert files(root) == before


def test_conflict_for_machines(shell: Shell, client: sw.Client, root: Path) -> None:
    """The same as an object; for a rollback, too."""
    plan_id = executed(client)
    assert shell("plan", "apply", plan_id, "--root", str(root)).code == 0
    (root / "dir" / "b c").write_text("mine\n")
    told = shell("plan", "rollback", plan_id, "--root", str(root), "--json")
    assert (told.code, told.json["error.kind"], told.json["error.details.paths"]) == (3, "TreeConflict", ["dir/b c"])
    assert told.json.keys("error.details") >= {"paths", "expected", "found", "diff"}
    assert told.err.count("dir/b c") == 3  # once in the message, and in the two lines above the diff
    assert files(root)["a"] == "new\n"


def test_constrained(shell: Shell, client: sw.Client, root: Path) -> None:
    """Exit code 4, with the end of what the validation wrote, and the tree as it was."""
    before = files(root)
    noisy = python("tests", "for n in range(30): print('line', n)\nprint('\\x1b[2J')\nraise SystemExit(5)")
    plan_id = executed(client, python("fine", ""), noisy)
    told = shell("plan", "apply", plan_id, "--root", str(root))
    assert (told.code, told.out) == (4, "")
    assert f"plan {plan_id} is constrained, and {root} is as it was: " in told.err
    assert "stepwell: tests: ended with 5 after " in told.err
    assert "line 29\n" in told.err
    assert "line 19\n" not in told.err
    assert r"\x1b[2J" in told.err
    assert "\x1b" not in told.err
    assert "fine:" not in told.err
    assert files(root) == before
    assert shell("plan", "apply", plan_id, "--root", str(root), "--json").json["outcome"] == "constrained"


def test_what_was_rolled_back_is_not_there(shell: Shell, client: sw.Client, root: Path) -> None:
    """Nobody is told that it is applied."""
    plan_id = executed(client)
    for verb in ("apply", "rollback"):
        assert shell("plan", verb, plan_id, "--root", str(root)).code == 0
    told = shell("plan", "apply", plan_id, "--root", str(root))
    assert (told.code, told.out) == (1, "")
    assert "was rolled back at" in told.err
    assert shell("plan", "apply", plan_id, "--root", str(root), "--json").json["outcome"] == "rolled_back"


def test_what_is_not_executed(shell: Shell, client: sw.Client, root: Path) -> None:
    """One line, and exit code 1."""
    told = shell("plan", "apply", executing(client), "--root", str(root))
    assert (told.code, told.out, len(told.err.splitlines())) == (1, "", 1)
    told = shell("plan", "rollback", executed(client), "--root", str(root))
    assert (told.code, told.out, len(told.err.splitlines())) == (1, "", 1)


@pytest.mark.parametrize(
    "exit_code, timed_out, words",
    [
        (0, False, "ended with 0 after 2.5 s"),
        (None, True, "stopped after 2.5 s"),
        (None, False, "did not end by itself, or could not be started"),
    ],
)
def test_how_a_validation_ended(exit_code: int | None, timed_out: bool, words: str) -> None:  # noqa: FBT001
    result = sw.ValidationResult("tests", ("true",), exit_code, timed_out, 2_500, "  \n")
    assert result.summary == words
    assert apply.output_tail(result, 3) == []
