"""What changed while somebody worked in a tree: all of it, by content, and nothing that git ignores."""

import os
import subprocess
import time
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.trees import ignore
from stepwell.trees.capture import TreeCapture, TreeDifference, pair_moves
from stepwell.trees.entry import DIRECTORY, TreeEntry
from tests.support.trees import EMPTY_DIRECTORY, FILE, LINK, build, file, leaf, link, without_privileges


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True)


def told(recording: TreeCapture) -> dict[str, str]:
    """Differences in short."""
    found: dict[str, str] = {}
    for each in recording.differences():
        kind = "move" if each.source_path else "create" if not each.before else "modify" if each.after else "delete"
        found[each.path] = f"{kind} {each.source_path}" if each.source_path else kind
    return found


def test_everything_that_changes(root: Path) -> None:
    """Contents, modes, links and directories; what is written anew with the same content is no change."""
    build(
        root,
        {
            "same": file(b"s"),
            "rewritten": file(b"r"),
            "changed": file(b"1"),
            "mode": file(b"m"),
            "gone": file(b"g"),
            "moved": file(b"moved"),
            "link": link(b"a"),
            "empty": EMPTY_DIRECTORY,
            "filled": EMPTY_DIRECTORY,
        },
    )
    with TreeCapture(root) as recording:
        assert recording.differences() == ()
        (root / "rewritten").write_bytes(b"r")
        (root / "changed").write_bytes(b"2")
        (root / "mode").chmod(0o755)
        (root / "gone").unlink()
        (root / "sub").mkdir()
        (root / "moved").rename(root / "sub/elsewhere")
        (root / "link").unlink()
        (root / "link").symlink_to("b")
        (root / "empty").rmdir()
        (root / "filled/.hidden").write_bytes(b"")
        (root / "new/dir").mkdir(parents=True)
        assert told(recording) == {
            "changed": "modify",
            "empty": "delete",
            "filled": "delete",
            "filled/.hidden": "create",
            "gone": "delete",
            "link": "modify",
            "mode": "modify",
            "new/dir": "create",
            "sub/elsewhere": "move moved",
        }
        by_path = {each.path: each for each in recording.differences()}
        assert by_path["changed"] == TreeDifference("changed", leaf(file(b"1")), leaf(file(b"2")))
        assert by_path["mode"].after == TreeEntry(FILE | 0o755, digest_of(b"m"))
        assert by_path["new/dir"].after == DIRECTORY
        assert recording.body(digest_of(b"1")) == b"1", "what is not there any more"
        assert recording.body(digest_of(b"g")) == b"g"
        assert recording.body(digest_of(b"2")) == b"2"
        assert (by_path["link"].before, recording.body(digest_of(b"b"))) == (TreeEntry(LINK, digest_of(b"a")), b"b")
        assert recording.body(digest_of(b"")) == b""
        with pytest.raises(sw.NotFound):
            recording.body(digest_of(b"never"))


def test_a_change_that_no_clock_shows(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same size, same times, within a tick: a file that young is compared by content."""
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    build(root, {"a": file(b"1")})
    with TreeCapture(root) as recording:
        status = (root / "a").stat()
        with (root / "a").open("r+b") as opened:
            opened.write(b"2")
        os.utime(root / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
        held = recording._before["a"]
        assert not held.is_stable
        assert told(recording) == {"a": "modify"}


def test_what_is_old_is_not_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand files that nobody touched cost a look at their status each."""
    build(root, {f"{number % 10}/{number}": file(b"x") for number in range(50)})
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 2 * limits.INGEST_SETTLED_NS)
    with TreeCapture(root) as recording:
        (root / "1/1").write_bytes(b"y")
        taken = recording._spool._end
        assert told(recording) == {"1/1": "modify"}
        assert recording._spool._end == taken + 1


class TestGit:
    @pytest.fixture(autouse=True)
    def _repository(self, root: Path) -> None:
        build(root, {".gitignore": file(b"*.log\nbuild/\n"), "a": file(b"1"), "x.log": file(b"l"), "kept.log": file()})
        git(root, "init", "-q")
        git(root, "add", "-f", "kept.log")

    def test_what_git_ignores_is_no_change(self, root: Path) -> None:
        """But for what is tracked all the same; and a directory in which all is ignored is none that was made."""
        with TreeCapture(root) as recording:
            (root / "x.log").write_bytes(b"2")
            (root / "build").mkdir()
            (root / "build/out").write_bytes(b"o")
            (root / "cache").mkdir()
            (root / "cache/.gitignore").write_bytes(b"*\n")
            (root / "deep").mkdir()
            (root / "deep/y.log").write_bytes(b"y")
            (root / "kept.log").write_bytes(b"k")
            (root / ".git/hooks/x").write_bytes(b"no")
            assert told(recording) == {"kept.log": "modify"}

    def test_ignoring_changes_meanwhile(self, root: Path) -> None:
        """A file is not created by being ignored no longer, nor deleted by being ignored from now on."""
        with TreeCapture(root) as recording:
            (root / ".gitignore").write_bytes(b"a\n")
            assert told(recording) == {".gitignore": "modify"}
            (root / "a").write_bytes(b"2")
            assert told(recording) == {".gitignore": "modify", "a": "modify"}
            (root / "a").unlink()
            assert told(recording) == {".gitignore": "modify", "a": "delete"}

    def test_a_directory_that_gets_only_ignored_things(self, root: Path) -> None:
        """It is there before and after; the same the other way round."""
        (root / "d").mkdir()
        (root / "e").mkdir()
        (root / "e/z.log").write_bytes(b"z")
        (root / "f").mkdir()
        (root / "f/z.log").write_bytes(b"z")
        with TreeCapture(root) as recording:
            (root / "d/y.log").write_bytes(b"y")
            (root / "e/z.log").unlink()
            assert told(recording) == {}
            (root / "f/new").write_bytes(b"n")
            assert told(recording) == {"f/new": "create"}

    def test_a_repository_inside(self, root: Path) -> None:
        """It is walked by its own rules: what changes in it is a change."""
        inner = root / "inner"
        build(inner, {"a": file(b"1"), "x.tmp": file(b"t"), ".gitignore": file(b"*.tmp\n")})
        git(inner, "init", "-q")
        with TreeCapture(root) as recording:
            (inner / "a").write_bytes(b"2")
            (inner / "x.tmp").write_bytes(b"2")
            (inner / ".git/description").write_bytes(b"no")
            assert told(recording) == {"inner/a": "modify"}

    def test_no_git_to_ask(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not installed, or of no answer: names decide, and more is recorded than need be."""
        with monkeypatch.context() as patched:
            patched.setenv("PATH", "/nowhere")
            with TreeCapture(root) as recording:
                assert "x.log" in recording._before
        (root / "build").mkdir()
        (root / "build/out").write_bytes(b"o")
        asked = ignore._git
        monkeypatch.setattr(
            ignore,
            "_git",
            lambda fd, words, given="": None if words[0] == "check-ignore" else asked(fd, words, given),
        )
        with TreeCapture(root) as recording:
            assert "build/out" in recording._before

    def test_a_root_that_another_repository_ignores(self, root: Path) -> None:
        """Then names decide, or nothing would ever change there."""
        build(root / "build", {"a": file(b"1")})
        with TreeCapture(root / "build") as recording:
            (root / "build/a").write_bytes(b"2")
            assert told(recording) == {"a": "modify"}


def test_without_git(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden files, and what might be somebody's result, are recorded; only what is made by itself is not."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(root.parent))
    build(root, {"a": file()})
    with TreeCapture(root) as recording:
        build(
            root,
            {
                "a": file(b"x"),
                ".env": file(b"e"),
                "build/out.so": file(b"b"),
                "__pycache__/a.pyc": file(b"p"),
                "c.pyc": file(b"p"),
                "node_modules/m/index.js": file(b"n"),
                "env/pyvenv.cfg": file(b"v"),
                "env/bin/python": link(b"/usr/bin/python"),
                ".stepwell/x": file(b"s"),
                "sub/.git/hooks/x": file(b"h"),
            },
        )
        os.mkfifo(root / "pipe")
    with TreeCapture(root) as recording:
        assert sorted(recording._before) == [".env", "a", "build/out.so"]


def test_files_that_cannot_be_recorded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too large: no matter while they stay as they are; if they change, it is said, and nothing is passed over."""
    monkeypatch.setattr(limits, "BODY_BYTES_MAX", 10)
    build(root, {"large": file(b"x" * 11), "b": file(b"b")})
    with TreeCapture(root) as recording:
        (root / "b").write_bytes(b"c")
        assert told(recording) == {"b": "modify"}
        (root / "large").write_bytes(b"y" * 11)
        with pytest.raises(sw.TreeFailed, match="1 file changed, and nothing was recorded") as raised:
            recording.differences()
        assert raised.value.details["paths"] == ["large"]


def test_bounds(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree that is too large is refused before anybody works in it."""
    build(root, {"a": file(b"x" * 10), "b": file(b"x" * 10)})
    with pytest.raises(sw.InvalidArgument, match="more than 15 bytes"), TreeCapture(root, bytes_max=15):
        pass
    monkeypatch.setattr(limits, "TREE_ENTRIES_MAX", 1)
    with pytest.raises(sw.InvalidArgument, match="more than 1 files"), TreeCapture(root):
        pass


def test_a_file_that_is_never_at_rest(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody writes into it whenever it is read: it is unknown, which matters if it has changed."""
    build(root, {"a": file(b"1")})
    read = os.read

    def restless(descriptor: int, size: int) -> bytes:
        with (root / "a").open("ab") as opened:
            opened.write(b"x")
        return read(descriptor, size)

    with monkeypatch.context() as patched:
        patched.setattr(os, "read", restless)
        with TreeCapture(root) as recording:
            patched.undo()
            (root / "a").write_bytes(b"quiet")
            with pytest.raises(sw.TreeFailed, match="changes all the time"):
                recording.differences()


def test_what_may_not_be_read(tmp_path: Path) -> None:
    """A file is unknown; a directory, in which anything might happen unseen, is an error at once."""
    root = build(tmp_path / "root", {"a": file(b"1", 0o000), "d/x": file()})

    def unknown(root: Path) -> None:
        with TreeCapture(root) as recording:
            assert recording._before["a"].content is None
            assert recording.differences() == ()

    def refused(root: Path) -> None:
        with pytest.raises(sw.TreeFailed, match="cannot be recorded"), TreeCapture(root):
            pass

    without_privileges(root, unknown)
    (root / "d").chmod(0o000)
    without_privileges(root, refused)
    (root / "d").chmod(0o755)


def test_a_leaf_that_goes_while_it_is_looked_at(root: Path) -> None:
    build(root, {"a": file(b"1")})
    with TreeCapture(root) as recording:
        status = recording._before["a"].status
        assert recording._save("gone", status).content is None


class TestMoves:
    @staticmethod
    def gone(path: str, body: bytes = b"x", mode: int = 0o644) -> TreeDifference:
        return TreeDifference(path, leaf(file(body, mode)), None)

    @staticmethod
    def come(path: str, body: bytes = b"x", mode: int = 0o644) -> TreeDifference:
        return TreeDifference(path, None, leaf(file(body, mode)))

    def moves(self, *differences: TreeDifference) -> dict[str, str | None]:
        found = pair_moves(differences)
        assert found == pair_moves(differences[::-1])
        return {each.path: each.source_path for each in found}

    def test_same_content_and_mode(self) -> None:
        assert self.moves(self.gone("a"), self.come("b")) == {"b": "a"}
        assert self.moves(self.gone("a"), self.come("b", b"y")) == {"a": None, "b": None}
        assert self.moves(self.gone("a"), self.come("b", mode=0o755)) == {"a": None, "b": None}
        assert self.moves(self.gone("a", b""), self.come("b", b"")) == {"a": None, "b": None}

    def test_names_belong_together(self) -> None:
        """Of several that are alike those that keep their name, then the first; each is moved once."""
        found = self.moves(self.gone("a/1"), self.gone("a/2"), self.come("b/2"), self.come("b/3"), self.come("b/4"))
        assert found == {"b/2": "a/2", "b/3": "a/1", "b/4": None}

    def test_neither_what_was_there_nor_what_stays(self) -> None:
        modified = TreeDifference("m", leaf(file(b"old")), leaf(file(b"x")))
        assert self.moves(modified, self.gone("a")) == {"a": None, "m": None}
