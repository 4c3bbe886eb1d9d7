"""Trees as plain maps, written to disk and read back without the code under test; and processes killed at a step."""

import os
import posix
import random
import re
import shutil
import signal
import stat
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepwell.domain.tiers.body_refs import digest_of
from stepwell.trees import recovery, syscalls
from stepwell.trees.entry import Delta, TreeEntry
from stepwell.trees.key import load_key
from stepwell.trees.lock import RootLock
from stepwell.trees.root import Root
from stepwell.trees.transaction import TreeTransaction

FILE, LINK, DIRECTORY = stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR

Node = tuple[int, bytes]
Tree = dict[str, Node]

NAMES = ("a", "b", "c d", "new\nline", "\udcff", "é", "-x", "deep")
TARGETS = (b"a", b"/etc/passwd", b"../outside", b"\xff", b"deep/a")
BODIES = (b"", b"one\n", b"two\n" * 50, b"\0\xff\r\n", bytes(range(256)))
MODES = (0o644, 0o755, 0o600, 0o444, 0o400)


def file(body: bytes = b"", mode: int = 0o644) -> Node:
    return FILE | mode, body


def link(target: bytes) -> Node:
    return LINK, target


EMPTY_DIRECTORY: Node = (DIRECTORY, b"")


@contextmanager
def own_state_directory() -> Iterator[Path]:
    """A state directory for this process and its children, with a key that exists.

    Its name does not begin with "stepwell-": the leak check of a test run beside this one would take it for a leak.
    """
    with tempfile.TemporaryDirectory(prefix="state-") as above, pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", above)
        with tempfile.TemporaryDirectory() as root, Root(root) as opened:
            load_key(opened)
        yield Path(above)


def leaf(node: Node | None) -> TreeEntry | None:
    return TreeEntry(node[0], digest_of(node[1])) if node else None


def build(root: Path, tree: Tree) -> Path:
    """A directory that holds a tree, and nothing else."""
    discard(root)
    root.mkdir(parents=True)
    for path, (mode, body) in tree.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISREG(mode):
            place.write_bytes(body)
            place.chmod(mode & 0o777)
        elif stat.S_ISLNK(mode):
            place.symlink_to(os.fsdecode(body))
        else:
            place.mkdir(exist_ok=True)
    return root


def discard(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)


def read(root: Path) -> Tree:
    """Read everything that a directory holds, except for the staging directory of transactions."""
    found: Tree = {}
    for above, directories, files in os.walk(root):
        names = [name for name in directories + files if name != ".stepwell"]
        directories[:] = [name for name in directories if name != ".stepwell"]
        if not names and Path(above) != root:
            found[os.path.relpath(above, root)] = EMPTY_DIRECTORY
        for name in names:
            place = Path(above) / name
            mode = place.lstat().st_mode
            if stat.S_ISLNK(mode):
                found[os.path.relpath(place, root)] = LINK, os.fsencode(place.readlink())
            elif stat.S_ISREG(mode):
                found[os.path.relpath(place, root)] = mode & (FILE | 0o777), place.read_bytes()
    return found


def without_seal(name: str) -> str:
    """The name of a directory of a transaction, or of a draft, as it would be without a seal."""
    return re.sub(r"\.[0-9a-f]{80}(?=\.[a-z]+$)|(?<=^\.gitignore)\.[0-9a-f]{24}$", "", name)


def directory_of(root: Path, name: str) -> Path:
    """The directory of a transaction, by its name without a seal."""
    [found] = [entry for entry in (root / ".stepwell").iterdir() if without_seal(entry.name) == name]
    return found


def kept(root: Path) -> set[str]:
    """The names that transactions have left in the staging directory of a root, without seals."""
    area = root / ".stepwell"
    names = {without_seal(entry.name) for entry in area.iterdir()} if area.exists() else set()
    return names - {"lock", ".gitignore"}


def deltas(before: Tree, after: Tree) -> list[Delta]:
    paths = sorted(before.keys() | after.keys())
    return [
        Delta(path, leaf(before.get(path)), leaf(after.get(path)))
        for path in paths
        if before.get(path) != after.get(path)
    ]


def bodies(*trees: Tree) -> Callable[[bytes], bytes]:
    return {digest_of(body): body for tree in trees for _, body in tree.values()}.__getitem__


def change(root: Path, before: Tree, after: Tree, name: str = "t-1") -> None:
    """Make one tree of another."""
    apply(root, deltas(before, after), bodies(before, after), name)


def apply(root: Path, listed: list[Delta], read_body: Callable[[bytes], bytes], name: str = "t-1") -> None:
    """Apply, commit and finalize one transaction."""
    with TreeTransaction(root, name, listed, read_body) as transaction:
        transaction.apply()
        transaction.commit()
        transaction.finalize()


def without_nesting(paths: Iterable[str]) -> list[str]:
    """Paths of which none is below another: the first that comes has the place."""
    chosen: list[str] = []
    for path in paths:
        if not any(path == each or path.startswith(f"{each}/") or each.startswith(f"{path}/") for each in chosen):
            chosen.append(path)
    return chosen


def random_tree(generator: random.Random, size: int = 6) -> Tree:
    paths = ["/".join(generator.choices(NAMES, k=generator.randint(1, 3))) for _ in range(size)]
    return {path: _random_node(generator) for path in without_nesting(paths)}


def random_pair(generator: random.Random) -> tuple[Tree, Tree]:
    """Two trees that have something in common, mostly."""
    before, other = random_tree(generator), random_tree(generator)
    common = {path: node for path, node in before.items() if generator.random() < 0.4}
    mixed = without_nesting([*common, *other])
    return before, {path: common.get(path) or other[path] for path in mixed}


def _random_node(generator: random.Random) -> Node:
    kind = generator.choices((FILE, LINK, DIRECTORY), (6, 2, 1))[0]
    if kind == FILE:
        return file(generator.choice(BODIES), generator.choice(MODES))
    return link(generator.choice(TARGETS)) if kind == LINK else EMPTY_DIRECTORY


class Counter:
    """A hook that counts steps, and can kill the process before one of them, given its number or its kind and name."""

    def __init__(self, fatal: int | tuple[str, str] | None = None) -> None:
        self.steps: list[tuple[str, str]] = []
        self._fatal = fatal

    def __call__(self, step: str, what: str) -> None:
        what = without_seal(what)
        if self._fatal in {len(self.steps), (step, what)}:
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps.append((step, what))


@contextmanager
def before_each_step(hook: Callable[[str, str], None]) -> Iterator[None]:
    """Call a hook before each step in the block, with names without seals."""
    syscalls.on_step = lambda step, what: hook(step, without_seal(what))
    try:
        yield
    finally:
        syscalls.on_step = syscalls._no_hook


def recorded_steps(work: Callable[[], object]) -> list[tuple[str, str]]:
    """Run a function, and return its steps."""
    counter = Counter()
    with before_each_step(counter):
        work()
    return counter.steps


def killed_at(fatal: int | tuple[str, str], work: Callable[[], object]) -> bool:
    """Run a function in a process that is killed before a step; False if it ended without such a step."""

    def killable() -> None:
        syscalls.on_step = Counter(fatal)
        work()

    code = outcome(forked(killable))
    assert code in {0, -signal.SIGKILL}, "the work itself failed"
    return code != 0


def forked(work: Callable[[], object], *, is_measured: bool = False) -> int:
    """Return the id of a child process that runs a function and ends. See `processes.fork` for what to measure."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of the runner do not matter to what is forked
        pid = os.fork()
    if pid == 0:
        leave = os._exit if is_measured else posix._exit  # coverage replaces the first, to write down its data there
        if not is_measured:
            sys.settrace(None)
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001 no caller is above
            traceback.print_exc()
        finally:
            leave(status)
    return pid


def outcome(pid: int) -> int:
    """Return the exit code of a process, negative for a signal, as `subprocess` does."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def without_privileges(directory: Path, work: Callable[[Path], object]) -> None:
    """Run a function in a directory without the rights of the superuser, to whom no permission is refused.

    The function gets a path relative to the process's directory: directories above may be closed to other users.
    """

    def unprivileged() -> None:
        os.chdir(directory)
        os.environ["XDG_STATE_HOME"] = "/proc/self/cwd/state"  # directories above may be closed
        tempfile.tempdir = os.curdir  # the one of the tests may be closed to it
        if os.getuid() == 0:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
        work(Path())

    directory.chmod(0o777)
    assert outcome(forked(unprivileged)) == 0, "see what it printed"


def finalize_all(root: Path) -> bool:
    """Recover a root and finalize what was committed there, as the next process does; False if nothing was."""
    recover(root)
    names = committed(root)
    for name in names:
        finalize(root, name)
    assert kept(root) == set(), "what was not committed was undone"
    return bool(names)


def recover(root: Path) -> None:
    """`recovery.recover` under a lock of its own, and likewise the three below."""
    with RootLock(root) as lock:
        recovery.recover(lock)


def committed(root: Path) -> list[str]:
    with RootLock(root) as lock:
        return recovery.committed(lock)


def finalize(root: Path, name: str) -> None:
    with RootLock(root) as lock:
        recovery.finalize(lock, name)


def undo_committed(root: Path, name: str) -> None:
    with RootLock(root) as lock:
        recovery.undo(lock, name)
