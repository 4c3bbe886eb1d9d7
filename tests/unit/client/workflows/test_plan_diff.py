"""A whole plan as one diff: what it comes to, by path and by tool."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

import stepwell as sw
from stepwell import limits
from tests.support.client.sessions import executing
from tests.support.client.subplans import record


@pytest.fixture
def context(client: sw.Client) -> sw.PlanExecutionContext:
    """A plan that changed a few files, some of them more than once."""
    context = client.execution(executing(client, "diffed", (client.projects or ("",))[0]).plan_id)
    record(context, {"src/a.py": (b"1\n", b"2\n"), "gone.txt": (b"x\n", None), "passing": (None, b"-")}, "editor")
    record(context, {"src/a.py": (b"2\n", b"3\n"), "passing": (b"-", None)}, "formatter")
    record(context, {"src/b.py": ((b"b\n", 0o100644), None), "lib/b.py": (None, (b"b\n", 0o100644))}, "mover")
    changeset_id = context.start_changeset()
    context.record_change(sw.Change(path="new.txt", after=b"new\n", tool="editor"), changeset_id=changeset_id)
    context.record_change(
        sw.Change(path="docs/c.txt", source_path="c.txt", before=b"c\n", after=b"C\n", tool="mover"),
        changeset_id=changeset_id,
    )
    context.close_changeset(changeset_id)
    aborted = context.start_changeset()
    context.record_change(sw.Change(path="never", after=b"never\n"))
    context.abort_changeset(aborted)
    return context


FILES = {"src/a.py": "1\n", "gone.txt": "x\n", "src/b.py": "b\n", "c.txt": "c\n"}


def headers(diff: str) -> list[str]:
    return [line.rpartition(" b/")[2] for line in diff.splitlines() if line.startswith("diff --git")]


def test_git_applies_it(context: sw.PlanExecutionContext, tmp_path: Path) -> None:
    """One part for each path, of its first content and its last; what went and came elsewhere is a move."""
    diff = context.plan_diff()
    assert headers(diff) == ["c.txt", "docs/c.txt", "gone.txt", "lib/b.py", "new.txt", "src/a.py"]
    assert "rename from src/b.py\nrename to lib/b.py\n" in diff
    assert "-1\n+3\n" in diff
    assert "passing" not in diff
    assert "never" not in diff
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    subprocess.run(["git", "apply", "-"], input=diff.encode(), cwd=tmp_path, check=True)
    left = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"src/a.py": "3\n", "lib/b.py": "b\n", "new.txt": "new\n", "docs/c.txt": "C\n"}


def test_by_path_and_tool(context: sw.PlanExecutionContext) -> None:
    """Globs of paths, and the tools of which one changed a path; half of a move is what that half is."""
    assert headers(context.plan_diff(paths=["src/**"])) == ["src/a.py", "src/b.py"]
    assert "deleted file mode" in context.plan_diff(paths=["src/b.py"])
    assert headers(context.plan_diff(paths=["*.txt", "lib/*"])) == ["c.txt", "gone.txt", "lib/b.py", "new.txt"]
    assert headers(context.plan_diff(tools=["formatter"])) == ["src/a.py"]
    assert headers(context.plan_diff(tools=["editor"])) == ["gone.txt", "new.txt", "src/a.py"]
    assert headers(context.plan_diff(paths=["src/*"], tools=["mover", "nobody"])) == ["src/b.py"]
    assert context.plan_diff(tools=["nobody"]) == ""
    for wrong in ({"paths": "src"}, {"tools": "editor"}):
        with pytest.raises(sw.InvalidArgument, match="is a sequence: give"):
            context.plan_diff(**cast("dict[str, Sequence[str]]", wrong))


def test_summary(context: sw.PlanExecutionContext) -> None:
    """Of what is left of all entries."""
    summary = context.plan_summary()
    assert summary.plan_id == context.plan_id
    assert summary.entries == 9
    assert summary.by_operation == {
        sw.Operation.CREATE: 2,
        sw.Operation.DELETE: 2,
        sw.Operation.MODIFY: 1,
        sw.Operation.MOVE: 1,
    }
    assert summary.by_tool == {"editor": 3, "formatter": 1, "mover": 4}
    assert summary.paths == ("c.txt", "docs/c.txt", "gone.txt", "lib/b.py", "new.txt", "src/a.py", "src/b.py")


def test_in_groups(context: sw.PlanExecutionContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many paths a few are read at a time."""
    whole = context.plan_diff()
    monkeypatch.setattr(limits, "PATHS_PER_DIFF_REQUEST", 2)
    assert context.plan_diff() == whole


def test_not_held(client: sw.Client) -> None:
    """What nobody has the bytes of is only named."""
    context = client.execution(executing(client, "unheld", (client.projects or ("",))[0]).plan_id)
    changeset_id = context.start_changeset()
    context.record_change(sw.Change(path="a", after=sw.Digest.of(b"x")))
    context.close_changeset(changeset_id)
    assert context.plan_diff().endswith("Binary files /dev/null and b/a differ\n")
