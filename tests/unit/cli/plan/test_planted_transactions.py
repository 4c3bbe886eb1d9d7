"""`stepwell plan apply` and `rollback` in a tree that came with a `.stepwell` of its own."""

from pathlib import Path

import pytest

import stepwell as sw
from tests.support.cli.plans import Shell, executing, record
from tests.support.planted import ATTACKS, git, plant_all, snapshot

CHANGES = (sw.Change(path="a", before=b"old\n", after=b"new\n"), sw.Change(path="b", after=b"b\n"))
OURS = ("clone/a", "clone/b", "clone/.stepwell/lock", "clone/.stepwell/.gitignore")


def executed(client: sw.Client) -> str:
    plan_id = executing(client)
    record(client, plan_id, *CHANGES)
    client.plans.complete_execute(plan_id)
    return plan_id


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of a repository that commits transactions which would write outside of it."""
    repository = tmp_path / "origin/repository"
    repository.mkdir(parents=True)
    (repository / "a").write_text("old\n")
    plant_all(repository)
    git(repository, "init")
    git(repository, "add", "--all", "--force")
    git(repository, "commit", "--message", "x")
    above = tmp_path / "user"
    above.mkdir()
    (above / "outside").write_bytes(b"outside\n")
    git(above, "clone", str(repository), "clone")
    return above / "clone"


def test_apply_and_rollback_in_a_clone(shell: Shell, client: sw.Client, clone: Path) -> None:
    """They change the files of the plan and nothing else, say which directories they left alone, and end with 0."""
    plan_id, before = executed(client), snapshot(clone.parent, *OURS)
    assert f".stepwell/{next(iter(ATTACKS))}/log" in " ".join(before)
    for verb, text in (("apply", "new\n"), ("rollback", "old\n")):
        told = shell("plan", verb, plan_id, "--root", str(clone))
        assert told.code == 0, told.err
        assert (clone / "a").read_text() == text
        assert snapshot(clone.parent, *OURS) == before
        lines = told.err.splitlines()
        assert len(lines) == len(ATTACKS)
        for name, line in zip(ATTACKS, lines, strict=True):
            assert line.startswith(f"stepwell: '{clone}/.stepwell/{name}' was left alone, because ")
            assert "remove" in line


def test_an_ended_plan(shell: Shell, client: sw.Client, tmp_path: Path) -> None:
    """Asking for the outcome of an apply or rollback recovers a root, too, and no planted transaction of it."""
    plan_id, root = executed(client), tmp_path / "user/clone"
    root.mkdir(parents=True)
    (root / "a").write_text("old\n")
    for verb in ("apply", "rollback"):
        assert shell("plan", verb, plan_id, "--root", str(root)).code == 0
    plant_all(root)
    before = snapshot(root.parent, *OURS)
    for verb in ("apply", "rollback"):
        told = shell("plan", verb, plan_id, "--root", str(root))
        assert told.err.count("was left alone, because ") == len(ATTACKS)
        assert snapshot(root.parent, *OURS) == before
