"""History: the commits of a directory's repository, bounded, and without secrets."""

from pathlib import Path

import pytest

from stepwell import limits
from stepwell.domain.tiers.commit_history import Commit, decode_history, encode_history
from stepwell.ingest.history import head_of, read_history
from stepwell.ingest.secret_policy import SecretPolicy
from tests.support.ingest import git

TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


def commit(root: Path, message: str, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(message)
    git(root, "add", ".")
    git(root, "commit", "--message", message)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    git(tmp_path, "init")
    commit(tmp_path, "Add the budget", "src/a.py", "src/é b.py")
    commit(tmp_path, f"Fix it\n\nwith {TOKEN}", "src/a.py", "docs/x.md")
    return tmp_path


def commits(root: Path, policy: SecretPolicy = SecretPolicy.REDACT) -> list[Commit]:
    return [*decode_history(read_history(root, policy))]


def test_commits(root: Path) -> None:
    """The latest comes first, with its whole message and its files by their paths from the root."""
    latest, first = commits(root, SecretPolicy.INCLUDE)
    assert latest == Commit(f"Fix it\n\nwith {TOKEN}", ("docs/x.md", "src/a.py"))
    assert first == Commit("Add the budget", ("src/a.py", "src/é b.py"))
    assert [each.sources for each in commits(root / "src")] == [("a.py",), ("a.py", "é b.py")]
    assert len(head_of(root)) == 40


def test_secrets(root: Path) -> None:
    """A message is redacted like a file."""
    assert TOKEN not in commits(root)[0].message


def test_large_commits_and_long_histories(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit of many files is left out, and so are the oldest commits of a long history."""
    commit(root, "Move everything", *(f"many/{number}.py" for number in range(limits.HISTORY_FILES_MAX + 1)))
    assert len(commits(root)) == 2
    monkeypatch.setattr(limits, "HISTORY_BYTES_MAX", 80)
    assert len(commits(root)) == 1


def test_without_a_repository(tmp_path: Path) -> None:
    """Also one that has no commit yet, and a directory that does not exist any more."""
    assert (head_of(tmp_path), commits(tmp_path)) == ("", [])
    assert head_of(tmp_path / "gone") == ""
    git(tmp_path, "init")
    assert (head_of(tmp_path), commits(tmp_path)) == ("", [])


def test_anything_may_be_stored() -> None:
    assert decode_history(b"\xff") == ()
    assert decode_history(b'{"a": 1}') == ()
    assert decode_history(encode_history([])) == ()
