"""Which files a directory has: what git would show, or a walk; and never what lies outside."""

import os
import shutil
from pathlib import Path

import pytest

from stepwell import limits
from stepwell.errors import InvalidArgument
from stepwell.ingest.discovery import discover
from tests.support.ingest import git, write

FILES: dict[str, str | bytes] = {
    "a.py": "x",
    "sub/b.md": "y",
    "untracked.txt": "z",
    "ignored.log": "no",
    ".gitignore": "*.log\n",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    write(root, FILES)
    git(root, "init")
    git(root, "add", "a.py", "sub")
    return root


def found(path: Path) -> list[str]:
    return [file.source for file in discover(path).files]


def test_git(repository: Path) -> None:
    """What it knows of, and what it would add; in order of name, relative to the root."""
    assert found(repository) == [".gitignore", "a.py", "sub/b.md", "untracked.txt"]
    seen = {file.source: file for file in discover(repository).files}["a.py"]
    stat = (repository / "a.py").stat()
    assert (seen.size, seen.mtime_ns) == (stat.st_size, stat.st_mtime_ns)


def test_a_directory_of_a_repository(repository: Path) -> None:
    """Sources are relative to what was asked for."""
    assert found(repository / "sub") == ["b.md"]


def test_a_tracked_file_that_was_deleted(repository: Path) -> None:
    """Is not there, and no reason to say so."""
    (repository / "a.py").unlink()
    tree = discover(repository)
    assert "a.py" not in {file.source for file in tree.files}
    assert tree.skipped == {}


def test_git_that_is_run_by_git(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A hook has variables that name another repository."""
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert "a.py" in found(repository)


def test_nothing_in_a_repository_is_run(repository: Path, tmp_path: Path) -> None:
    """A repository may name a program that tells git what has changed: we do not let it."""
    witness = tmp_path / "witness"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {witness}\n")
    program.chmod(0o700)
    git(repository, "config", "core.fsmonitor", str(program))
    assert "a.py" in found(repository)
    assert not witness.exists()


def test_without_git(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is a directory like any other."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert found(repository) == ["a.py", "ignored.log", "sub/b.md", "untracked.txt"]


def test_in_what_another_repository_ignores(repository: Path) -> None:
    """The outer one has nothing to say about it."""
    write(repository, {".gitignore": "inner/\n", "inner/c.py": "x"})
    assert found(repository / "inner") == ["c.py"]


def test_walk(tmp_path: Path) -> None:
    """Neither hidden files nor what was generated."""
    write(
        tmp_path,
        {
            "a.py": "",
            "deep/er/b.txt": "",
            ".hidden": "",
            ".cache/c": "",
            "node_modules/d.js": "",
            "__pycache__/a.pyc": "",
            "e.pyc": "",
            "f.txt~": "",
            "myenv/pyvenv.cfg": "",
            "myenv/lib/g.py": "",
            "cache/CACHEDIR.TAG": "",
            "cache/h": "",
        },
    )
    assert found(tmp_path) == ["a.py", "deep/er/b.txt"]


@pytest.mark.parametrize("is_repository", [True, False])
def test_links_are_not_followed(tmp_path: Path, is_repository: bool) -> None:  # noqa: FBT001
    """Neither to a file, nor to a directory, nor through one that was a directory when git last saw it."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    write(outside, {"secret": "x", "deep/secret": "x"})
    write(root, {"a.py": "", "moved/secret": ""})
    (root / "file").symlink_to(outside / "secret")
    (root / "directory").symlink_to(outside)
    (root / "loop").symlink_to(root)
    (root / "gone").symlink_to(outside / "nothing")
    if is_repository:
        git(root, "init")
        git(root, "add", ".")
    shutil.rmtree(root / "moved")
    (root / "moved").symlink_to(outside)
    tree = discover(root)
    assert [file.source for file in tree.files] == ["a.py"]
    expected = {"file", "directory", "loop", "gone", "moved"} | ({"moved/secret"} if is_repository else set())
    assert {*tree.skipped} == expected
    assert "symbolic link" in tree.skipped["file"]


def test_a_root_that_is_a_link(tmp_path: Path) -> None:
    """Is what it leads to: somebody has asked for it."""
    write(tmp_path / "root", {"a.py": ""})
    (tmp_path / "link").symlink_to(tmp_path / "root")
    tree = discover(tmp_path / "link")
    assert (tree.root, len(tree.files)) == (tmp_path / "root", 1)


def test_one_file(tmp_path: Path) -> None:
    """Is a part of its directory."""
    write(tmp_path, {"a.py": "x", "b.py": "y"})
    tree = discover(tmp_path / "a.py")
    assert (tree.root, [file.source for file in tree.files], tree.is_whole) == (tmp_path, ["a.py"], False)


def test_what_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path / "a\0b"):
        with pytest.raises(InvalidArgument, match="cannot be read"):
            discover(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    """Is named, with the reason."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", limits.INGEST_FILE_BYTES_MAX + 1)
    Path(os.fsdecode(bytes(tmp_path) + b"/\xff.py")).touch()
    tree = discover(tmp_path)
    assert tree.files == ()
    assert tree.skipped == {
        "pipe": "it is no regular file",
        "huge": f"it has {limits.INGEST_FILE_BYTES_MAX + 1:,} bytes",
        "\\xff.py": "its name is not UTF-8",
    }


def test_a_repository_inside(repository: Path) -> None:
    """Has its own files, which are not those of the outer one."""
    write(repository, {"inner/c.py": "x"})
    git(repository / "inner", "init")
    git(repository / "inner", "add", ".")
    git(repository / "inner", "commit", "-m", "x")
    assert "repository of its own" in discover(repository).skipped["inner/"]


def test_what_cannot_even_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is reported like what cannot be read."""
    write(tmp_path, {"a.py": "", "deep/b.py": "", "locked/c.py": ""})
    lstat, scandir = os.lstat, os.scandir

    def blind(path: str) -> os.stat_result:
        if "deep" in path:
            raise PermissionError(13, "Permission denied")
        return lstat(path)

    monkeypatch.setattr(os, "lstat", blind)
    monkeypatch.setattr(os, "scandir", lambda path: scandir(path / "nothing" if "locked" in str(path) else path))
    tree = discover(tmp_path)
    assert [file.source for file in tree.files] == ["a.py"]
    assert tree.skipped["deep/b.py"] == "permission denied"
    assert "cannot be read" in tree.skipped["locked"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_that_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "", "locked/b.py": ""})
    (tmp_path / "locked").chmod(0)
    try:
        tree = discover(tmp_path)
    finally:
        (tmp_path / "locked").chmod(0o700)
    assert [file.source for file in tree.files] == ["a.py"]
    assert {*tree.skipped} == {"locked"}
