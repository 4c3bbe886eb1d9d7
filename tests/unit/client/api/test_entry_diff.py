"""Diffs are git's: also of modes, links and of what becomes something else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from stepwell.client.api.entry_diff import entry_diff
from stepwell.domain.changesets.model import Content, EntryRow, derive_operation
from stepwell.domain.changesets.paths import DIRECTORY, EXECUTABLE, LINK, REGULAR
from stepwell.domain.tiers.body_refs import digest_of

Given = tuple[bytes, int | None] | None


def diff(path: str, before: Given, after: Given, source: str | None = None) -> str:
    """The diff of one entry whose bytes are all held."""
    one, other = (
        side and Content(digest_of(side[0]), len(side[0]), held=True, mode=side[1]) for side in (before, after)
    )
    operation = derive_operation(one, other, path, source)
    bodies = {digest_of(side[0]): memoryview(side[0]) for side in (before, after) if side}
    return entry_diff(EntryRow("plan", "cs", 1, operation, path, source, one, other, "tool", 1), bodies)


@pytest.mark.parametrize(
    "before, after, expected",
    [
        (None, (b"", REGULAR), "new file mode 100644\n"),
        (None, (b"", None), "new file mode 100644\n"),
        (None, (b"", EXECUTABLE), "new file mode 100755\n"),
        (None, (b"", 0o100600), "new file mode 100644\n"),
        (None, (b"", DIRECTORY), "new file mode 040000\n"),
        ((b"", EXECUTABLE), None, "deleted file mode 100755\n"),
        ((b"", None), None, "deleted file mode 100644\n"),
        ((b"x", REGULAR), (b"x", EXECUTABLE), "old mode 100644\nnew mode 100755\n"),
        ((b"x", 0o100600), (b"x", 0o100644), "old mode 100600\nnew mode 100644\n"),
        (
            (b"x\n", EXECUTABLE),
            (b"y\n", REGULAR),
            "old mode 100755\nnew mode 100644\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n",
        ),
        ((b"x\n", EXECUTABLE), (b"y\n", None), "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n"),
        (
            None,
            (b"to", LINK),
            "new file mode 120000\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+to\n\\ No newline at end of file\n",
        ),
    ],
)
def test_modes(before: Given, after: Given, expected: str) -> None:
    """Old and new, as git has them; what git would not see is shown in full, and what nobody knows is not."""
    assert diff("f", before, after) == f"diff --git a/f b/f\n{expected}"


def test_move_with_a_mode() -> None:
    """Both are said; what is the same is not shown, text or not."""
    assert diff("new", (b"\0", REGULAR), (b"\0", EXECUTABLE), "old") == (
        "diff --git a/old b/new\nold mode 100644\nnew mode 100755\nrename from old\nrename to new\n"
    )


def test_git_applies_it(tmp_path: Path) -> None:
    """Modes, links, and a file that becomes a link and the other way round."""
    (tmp_path / "run").write_text("echo\n")
    (tmp_path / "run").chmod(0o644)
    (tmp_path / "file").write_text("text\n")
    (tmp_path / "link").symlink_to("run")
    text = "".join(
        (
            diff("run", (b"echo\n", REGULAR), (b"echo\n", EXECUTABLE)),
            diff("new", None, (b"run", LINK)),
            diff("file", (b"text\n", REGULAR), (b"run", LINK)),
            diff("link", (b"run", LINK), (b"text\n", EXECUTABLE)),
        )
    )
    subprocess.run(["git", "apply", "-"], input=text.encode(), cwd=tmp_path, check=True)
    assert os.access(tmp_path / "run", os.X_OK)
    assert [str((tmp_path / name).readlink()) for name in ("new", "file")] == ["run", "run"]
    assert (tmp_path / "link").read_text() == "text\n"
    assert not (tmp_path / "link").is_symlink()


def test_becomes_another_kind_while_it_moves() -> None:
    """Gone there, new here."""
    text = diff("new", (b"x\n", REGULAR), (b"x\n", LINK), "old")
    assert "diff --git a/old b/old\ndeleted file mode 100644\n" in text
    assert "diff --git a/new b/new\nnew file mode 120000\n" in text
