"""Changes that happen entirely or not at all, and what is said when they do not."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.trees import syscalls
from stepwell.trees.entry import Delta, TreeEntry
from stepwell.trees.transaction import TreeTransaction
from tests.support.trees import (
    EMPTY_DIRECTORY,
    Tree,
    apply,
    before_each_step,
    bodies,
    build,
    change,
    committed,
    deltas,
    directory_of,
    file,
    finalize,
    kept,
    link,
    read,
    recorded_steps,
    recover,
    undo_committed,
    without_privileges,
)
from tests.unit.trees.test_crashes import AFTER, BEFORE


def begun(root: Path, before: Tree, after: Tree, name: str = "t-1") -> TreeTransaction:
    return TreeTransaction(root, name, deltas(before, after), bodies(before, after), wait_s=0)


def contents(directory: Path) -> set[bytes]:
    return {each.read_bytes() for each in directory.iterdir() if not each.is_symlink()}


class TestLife:
    def test_everything_at_once(self, root: Path) -> None:
        """Contents, modes, links, directories, and each in the place of another; and back."""
        change(build(root, BEFORE), BEFORE, AFTER)
        assert (read(root), kept(root)) == (AFTER, set())
        change(root, AFTER, BEFORE)
        assert (read(root), kept(root)) == (BEFORE, set())

    def test_leaving_without_keeping_undoes(self, root: Path) -> None:
        build(root, BEFORE)
        with begun(root, BEFORE, AFTER) as transaction:
            transaction.apply()
            assert read(root) == AFTER
        assert (read(root), kept(root)) == (BEFORE, set())

    def test_leaving_without_going_touches_nothing(self, root: Path) -> None:
        build(root, BEFORE)
        with begun(root, BEFORE, AFTER):
            assert read(root) == BEFORE
        assert (read(root), kept(root)) == (BEFORE, set())

    @pytest.mark.parametrize("end, tree", [(finalize, AFTER), (undo_committed, BEFORE)])
    def test_what_is_kept_waits_for_a_decision(self, root: Path, end: Callable[[Path, str], None], tree: Tree) -> None:
        """Whoever knows whether it counted settles or undoes it; meanwhile its name is taken."""
        build(root, BEFORE)
        with begun(root, BEFORE, AFTER) as transaction:
            transaction.apply()
            transaction.commit()
        assert committed(root) == ["t-1"]
        with pytest.raises(sw.AlreadyExists, match="finalize or undo"), begun(root, AFTER, BEFORE):
            pass
        recover(root)
        assert read(root) == AFTER
        end(root, "t-1")
        assert (read(root), kept(root), committed(root)) == (tree, set(), [])
        with pytest.raises(sw.NotFound):
            end(root, "t-1")

    def test_what_is_run_in_between(self, root: Path) -> None:
        """What it leaves in new directories keeps them, and hinders nobody; what it does to files is not kept."""
        build(root, BEFORE)
        with begun(root, BEFORE, AFTER) as transaction:
            transaction.apply()
            (root / "new/cache").write_bytes(b"c")
        assert (read(root), kept(root)) == (BEFORE | {"new/cache": file(b"c")}, set())
        build(root, BEFORE)
        with pytest.raises(sw.TreeConflict), begun(root, BEFORE, AFTER) as transaction:
            transaction.apply()
            (root / "changed").write_bytes(b"formatted")
            with pytest.raises(sw.TreeConflict, match="is not committed") as raised:
                transaction.commit()
            assert raised.value.details["paths"] == ["changed"]
        assert read(root) == BEFORE | {"changed": file(b"formatted")}

    def test_undone_files_are_the_very_same(self, root: Path) -> None:
        """Same inode, and so the same times, owner and attributes."""
        build(root, BEFORE)
        earlier = (root / "changed").stat()
        with begun(root, BEFORE, AFTER) as transaction:
            transaction.apply()
        later = (root / "changed").stat()
        assert (later.st_ino, later.st_mtime_ns, later.st_nlink) == (earlier.st_ino, earlier.st_mtime_ns, 1)

    def test_already_there(self, root: Path) -> None:
        """An agent that worked in place: nothing is to be done, and that is no conflict."""
        build(root, AFTER)
        asked: list[None] = []
        with begun(root, BEFORE, AFTER) as transaction:
            assert transaction.is_already_applied
            transaction.apply(lambda: asked.append(None))
            transaction.commit()
            transaction.finalize()
        assert (asked, read(root), kept(root)) == ([None], AFTER, set())

    def test_steps_have_an_order(self, root: Path) -> None:
        build(root, BEFORE)
        with begun(root, BEFORE, AFTER) as transaction:
            with pytest.raises(sw.InvalidArgument, match="nothing to commit"):
                transaction.commit()
            with pytest.raises(sw.InvalidArgument, match="nothing to finalize"):
                transaction.finalize()
            transaction.apply()
            with pytest.raises(sw.InvalidArgument, match="applied once"):
                transaction.apply()
        assert read(root) == BEFORE

    def test_a_name_is_a_name(self, root: Path) -> None:
        for name in ("", "../x", "a/b", ".hidden", "x" * 200):
            with pytest.raises(sw.InvalidArgument, match="names no transaction"):
                TreeTransaction(root, name, [], bodies())

    def test_a_root_is_a_directory(self, tmp_path: Path) -> None:
        for path in (tmp_path / "none", "nul\0"):
            with pytest.raises(sw.InvalidArgument, match="cannot be opened"), TreeTransaction(path, "t", [], bodies()):
                pass


class TestConflict:
    def test_every_path_is_listed_and_nothing_is_written(self, root: Path) -> None:
        found = BEFORE | {"changed": file(b"somebody's"), "mode": file(b"x", 0o600), "new/empty": file()}
        build(root, found)
        with pytest.raises(sw.TreeConflict, match="left as it is") as raised, begun(root, BEFORE, AFTER):
            pass
        assert raised.value.details["paths"] == ["changed", "mode", "new/empty"]
        expected, seen = raised.value.details["expected"], raised.value.details["found"]
        assert isinstance(expected, list)
        assert isinstance(seen, list)
        assert expected[1:] == ["a file 644 " + digest_of(b"x").hex()[:12], "nothing"]
        assert seen[1].startswith("a file 600")
        assert (read(root), kept(root)) == (found, set())

    def test_some_there_and_some_not(self, root: Path) -> None:
        """Half of a change is no state that anybody expects."""
        half = BEFORE | {"changed": AFTER["changed"]}
        build(root, half)
        with pytest.raises(sw.TreeConflict) as raised, begun(root, BEFORE, AFTER):
            pass
        assert raised.value.details["paths"] == ["changed"]

    def test_a_directory_with_other_things_in_the_way(self, root: Path) -> None:
        found = BEFORE | {"directory to file/somebody's": file()}
        build(root, found)
        with pytest.raises(sw.TreeConflict, match="in the way") as raised, begun(root, BEFORE, AFTER):
            pass
        assert raised.value.details["paths"] == ["directory to file"]
        assert read(root) == found

    def test_a_file_where_a_directory_is_needed(self, root: Path) -> None:
        build(root, {"a": file()})
        with pytest.raises(sw.TreeConflict, match="in the way") as raised, begun(root, {}, {"a/b/c": file(b"x")}):
            pass
        assert raised.value.details["paths"] == ["a"]

    def test_a_pipe_is_nothing_that_is_replaced(self, root: Path) -> None:
        build(root, {})
        os.mkfifo(root / "a")
        with pytest.raises(sw.TreeConflict) as raised, begun(root, {}, {"a": file(b"x")}):
            pass
        assert raised.value.details["found"] == ["something else"]

    def test_long_lists_are_shortened_in_the_message_only(self, root: Path) -> None:
        expected: Tree = {f"{number:02}": file() for number in range(50)}
        build(root, dict.fromkeys(expected, file(b"else")))
        with pytest.raises(sw.TreeConflict, match="and 30 more") as raised, begun(root, expected, {}):
            pass
        assert raised.value.details["paths"] == [*expected]

    def test_other_files_of_a_directory_stay(self, root: Path) -> None:
        """What nobody recorded keeps its directory; a directory that is there already need not be made."""
        build(root, BEFORE | {"gone/deep/other": file(b"o"), "new/empty": EMPTY_DIRECTORY})
        change(root, BEFORE, AFTER)
        assert read(root) == AFTER | {"gone/deep/other": file(b"o")}

    def test_lists_that_contradict_themselves(self, root: Path) -> None:
        build(root, {})
        twice = [Delta("a", None, TreeEntry(None, digest_of(b""))), Delta("a", None, None)]
        nested = [
            Delta("a", None, TreeEntry(None, digest_of(b""))),
            Delta("a/b", None, TreeEntry(None, digest_of(b""))),
        ]
        for listed in (twice, nested):
            with pytest.raises(sw.InvalidArgument), TreeTransaction(root, "t", listed, bodies()):
                pass
        assert kept(root) == set()

    def test_too_many_at_once(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stepwell.limits.TREE_DELTAS_MAX", 1)
        with pytest.raises(sw.InvalidArgument, match="at most 1"), begun(build(root, BEFORE), BEFORE, AFTER):
            pass


class TestModes:
    def test_an_unknown_mode_is_kept_or_usual(self, root: Path) -> None:
        """Of what is replaced, if that is a file; a new file is as files are."""
        build(root, {"a": file(b"1", 0o751), "l": link(b"x")})
        new = TreeEntry(None, digest_of(b"2"))
        listed = [
            Delta("a", TreeEntry(None, digest_of(b"1")), new),
            Delta("b", None, new),
            Delta("l", TreeEntry(stat.S_IFLNK, digest_of(b"x")), new),
        ]
        with TreeTransaction(root, "t", listed, lambda _: memoryview(b"2")) as transaction:
            transaction.apply()
            transaction.commit()
            transaction.finalize()
        assert read(root) == {"a": file(b"2", 0o751), "b": file(b"2"), "l": file(b"2")}

    def test_a_leaf_is_one_of_three(self) -> None:
        with pytest.raises(sw.InvalidArgument, match="a tree has"):
            Delta("a", None, TreeEntry(stat.S_IFIFO, digest_of(b"")))

    def test_read_only_directories(self, tmp_path: Path) -> None:
        """They are writable for the time that it takes, and as they were afterwards, done or undone."""
        before: Tree = {"d/a": file(b"1", 0o444), "d/b": file(b"2"), "e/f/c": file(b"3")}
        after: Tree = {"d/a": file(b"x", 0o444), "d/n": file(b"4")}

        def work(here: Path) -> None:
            root = build(here / "mine", before)
            for path, mode in (("d", 0o555), ("e/f", 0o500), ("e", 0o555)):
                (root / path).chmod(mode)
            with begun(root, before, after) as transaction:
                transaction.apply()
                assert read(root) == after
            assert read(root) == before
            modes = {path: stat.S_IMODE((root / path).stat().st_mode) for path in ("d", "e", "e/f")}
            assert modes == {"d": 0o555, "e": 0o555, "e/f": 0o500}
            change(root, before, after)
            assert (read(root), stat.S_IMODE((root / "d").stat().st_mode)) == (after, 0o555)
            (root / "d").chmod(0o755)

        without_privileges(tmp_path, work)

    @pytest.mark.skipif(os.getuid() != 0, reason="only the superuser gives files away")
    def test_a_file_stays_whose_it_was(self, root: Path) -> None:
        build(root, {"a": file(b"1")})
        os.chown(root / "a", 1234, 1234)
        change(root, {"a": file(b"1")}, {"a": file(b"2")})
        assert ((root / "a").stat().st_uid, read(root)) == (1234, {"a": file(b"2")})


class Full:
    """A disk that has no room at one moment."""

    def __init__(self, fatal: int) -> None:
        self._left = fatal

    def __call__(self, _step: str, _what: str) -> None:
        self._left -= 1
        if self._left == -1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Lease:
    """One that is lost after it was asked for so many times."""

    def __init__(self, allowed: int) -> None:
        self._left = allowed

    def check(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise sw.LeaseLost("somebody else has it")


class TestFaults:
    def test_a_full_disk_at_any_deed(self, root: Path) -> None:
        """Whatever fails, and wherever: a typed error, and the tree is as it was."""
        steps = recorded_steps(lambda: change(build(root, BEFORE), BEFORE, AFTER))
        for fatal in range(steps.index(("rename", "t-1.done")) + 2):
            build(root, BEFORE)
            with before_each_step(Full(fatal)), pytest.raises(sw.TreeFailed, match="make room"):
                change(root, BEFORE, AFTER)
            assert read(root) == BEFORE
            assert kept(root) == set()

    def test_a_disk_that_fails_for_good(self, root: Path) -> None:
        """What cannot be undone now is undone by the next transaction, and the error says so."""
        build(root, BEFORE)

        def refuse(step: str, what: str) -> None:
            if (step, what) in {("rename", "link"), ("unlink", "no more")}:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        with before_each_step(refuse), pytest.raises(sw.TreeFailed, match="will try again"):
            change(root, BEFORE, AFTER)
        assert kept(root) == {"t-1.open"}
        change(root, BEFORE, AFTER, "t-2")
        assert (read(root), kept(root)) == (AFTER, set())

    def test_a_lost_lease_undoes(self, root: Path) -> None:
        """`check` is asked before each step in the tree, and what it raises comes out."""
        build(root, BEFORE)
        allowed = 0
        while True:
            try:
                with begun(root, BEFORE, AFTER) as transaction:
                    transaction.apply(Lease(allowed).check)
                    break
            except sw.LeaseLost:
                assert (read(root), kept(root)) == (BEFORE, set())
            allowed += 1
        assert allowed > len(deltas(BEFORE, AFTER))

    def test_a_body_that_is_another(self, root: Path) -> None:
        build(root, BEFORE)
        with pytest.raises(sw.InvalidArgument, match="another digest"):
            with TreeTransaction(root, "t", deltas(BEFORE, AFTER), lambda _: b"else"):
                pass
        assert (read(root), kept(root)) == (BEFORE, set())

    def test_no_permission(self, tmp_path: Path) -> None:
        """A file that may not be read, or a directory that is somebody else's: a typed error, nothing changed."""
        build(tmp_path / "root", {"a": file(b"1", 0o000)}).chmod(0o777)

        def work(here: Path) -> None:
            root = here / "root"
            with pytest.raises(sw.TreeFailed, match="owner's permissions"), begun(root, {"a": file(b"1", 0)}, {}):
                pass

        without_privileges(tmp_path, work)
        assert kept(tmp_path / "root") == set()

    @pytest.mark.parametrize("code", [errno.EPERM, errno.EMLINK])
    def test_files_that_can_have_no_second_name(self, root: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        """They are moved instead, done and undone alike."""

        def refuse(*_: object, **__: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "link", refuse)
        build(root, BEFORE)
        with begun(root, BEFORE, AFTER) as transaction:
            transaction.apply()
            assert read(root) == AFTER
        assert read(root) == BEFORE
        change(root, BEFORE, AFTER)
        assert (read(root), kept(root)) == (AFTER, set())

    def test_links_that_fail_otherwise(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        build(root, {})

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

        monkeypatch.setattr(os, "link", refuse)
        for before, after in (({}, {"a": file(b"x")}), ({"a": file(b"x")}, {})):
            build(root, before)
            with pytest.raises(sw.TreeFailed, match="root of its own"):
                change(root, before, after)
            assert read(root) == before


class TestOthers:
    """Somebody else works in the tree at the same moment: what is theirs is never lost."""

    @staticmethod
    def disturbed(
        root: Path, at: tuple[str, str], step: Callable[[], object], left: set[str] | None = None
    ) -> sw.TreeConflict:
        pending = [step]

        def hook(name: str, what: str) -> None:
            if (name, what) == at and pending:
                pending.pop()()

        build(root, BEFORE)
        with before_each_step(hook), pytest.raises(sw.TreeConflict) as raised:
            change(root, BEFORE, AFTER)
        assert not pending, "it was never the moment"
        assert kept(root) == (left or set())
        return raised.value

    @pytest.mark.parametrize("at", [("link", "old-0"), ("sync", "old-*"), ("unlink", "file"), ("rename", "changed")])
    def test_writes_in_place(self, root: Path, at: tuple[str, str]) -> None:
        error = self.disturbed(root, at, lambda: (root / "changed").write_bytes(b"theirs"))
        assert error.details["paths"] == ["changed"]
        assert read(root) == BEFORE | {"changed": file(b"theirs")}

    def test_writes_through_a_descriptor(self, root: Path) -> None:
        """Into a file that we have replaced already: it is put back with what they wrote."""
        build(root, BEFORE)
        opened: list[int] = []

        def opening() -> None:
            opened.append(os.open(root / "changed", os.O_WRONLY))

        pending = [opening]

        def hook(name: str, what: str) -> None:
            if (name, what) == ("sync", "old-*") and pending:
                pending.pop()()
            if (name, what) == ("rename", "mode") and opened:
                os.write(opened[0], b"theirs")
                os.close(opened.pop())

        with before_each_step(hook), pytest.raises(sw.TreeConflict, match="put back"):
            change(root, BEFORE, AFTER)
        assert read(root) == BEFORE | {"changed": file(b"theirs")}

    def test_creates_what_we_create(self, root: Path) -> None:
        """Theirs stays. What cannot come back, because theirs has its place, is kept for them, and named."""
        theirs = root / "directory to file"
        error = self.disturbed(root, ("link", "directory to file"), lambda: theirs.write_bytes(b"theirs"), {"t-1.left"})
        assert error.details["paths"] == ["directory to file", "directory to file/x"]
        assert theirs.read_bytes() == b"theirs"
        assert b"x" in contents(directory_of(root, "t-1.left"))

    def test_fills_a_directory_that_goes(self, root: Path) -> None:
        error = self.disturbed(root, ("rmdir", "deep"), lambda: (root / "gone/deep/theirs").write_bytes(b"t"))
        assert error.details["paths"] == ["gone/deep"]
        assert read(root) == BEFORE | {"gone/deep/theirs": file(b"t")}

    def test_changes_what_we_have_made(self, root: Path) -> None:
        """Noticed when it is read back; theirs stays, and what was there is kept for them."""
        build(root, BEFORE)
        pending = [lambda: (root / "changed").write_bytes(b"theirs")]

        def hook(name: str, what: str) -> None:
            if (name, what) == ("sync", ".") and pending:
                pending.pop()()

        with before_each_step(hook), pytest.raises(sw.TreeConflict, match="left alone") as raised:
            change(root, BEFORE, AFTER)
        assert raised.value.details["paths"] == ["changed"]
        assert read(root) == BEFORE | {"changed": file(b"theirs")}
        assert kept(root) == {"t-1.left"}
        assert b"old" in contents(directory_of(root, "t-1.left"))
        change(root, {"same": file(b"same")}, {})  # nobody is kept from going on


def test_what_is_on_disk_before_what(root: Path) -> None:
    """The order that a loss of power relies on, as the module says it."""
    steps = recorded_steps(lambda: change(build(root, BEFORE), BEFORE, AFTER))
    at = {step: number for number, step in enumerate(steps)}
    staged = [
        number for (step, what), number in at.items() if step == "sync" and what.startswith("new-") and what != "new-*"
    ]
    in_tree = [
        number
        for number, (step, what) in enumerate(steps)
        if step in {"unlink", "rmdir", "mkdir", "link", "rename"}
        and not what.startswith((".stepwell", ".gitignore", "t-1.", "new-", "old-", "log"))
    ]
    backups = [number for (step, what), number in at.items() if step == "link" and what.startswith("old-")]
    old_synced = steps.index(("sync", "old-*"))
    opened, done = at["rename", "t-1.open"], at["rename", "t-1.done"]
    assert len(staged) == sum(1 for each in deltas(BEFORE, AFTER) if each.after and each.after.kind == stat.S_IFREG)
    assert max(staged) < at["sync", "log"] < at["sync", "new-*"] < opened
    assert steps[opened + 1] == ("sync", ".stepwell")
    assert opened + 1 < min(backups)
    assert max(backups) < old_synced < min(in_tree)
    touched = {".", "file to directory", "file to directory/a", "new", "new/empty", "empty"}
    synced = {what: number for number, (step, what) in enumerate(steps) if step == "sync" and number > max(in_tree)}
    assert touched <= synced.keys()
    assert max(synced[what] for what in touched) < done
    assert steps[done + 1] == ("sync", ".stepwell")
    assert steps[done + 2 : done + 4] == [("rename", "t-1.spent"), ("sync", ".stepwell")]


def test_nothing_changes_a_tree_but_through_the_seam() -> None:
    """Every call that changes something is in one module, so that a death can be put before each.

    The table of tree locks and scratch copies are outside every tree: what a death leaves there has no lock, and is
    removed.
    """
    changing = {
        "link",
        "rename",
        "replace",
        "unlink",
        "remove",
        "mkdir",
        "rmdir",
        "chmod",
        "fchmod",
        "fsync",
        "symlink",
    }
    package = Path(syscalls.__file__).parent
    found = [
        f"{path.name}: os.{name}"
        for path in package.glob("*.py")
        if path.name not in {"syscalls.py", "tree_lock.py", "scratch.py"}
        for name in changing
        if f"os.{name}(" in path.read_text()
    ]
    assert found == []


def test_nothing_behind_a_link_that_goes(root: Path) -> None:
    """Where nothing was and nothing is to be, a link above that the change replaces is no escape; any other is."""
    build(root, {"a": link(b"elsewhere")})
    nothing = Delta("a/b", None, None)
    with pytest.raises(sw.EscapesRoot):
        apply(root, [nothing], bodies())
    after: Tree = {"a": file(b"1")}
    apply(root, [nothing, *deltas({"a": link(b"elsewhere")}, after)], bodies(after))
    assert read(root) == after
