"""Which files a directory has: what git knows of and does not ignore, or what a walk finds where there is no git.

Symbolic links are never followed, neither to files nor through directories, so that nothing outside the root is read.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.errors import InvalidArgument

_IGNORED: Final = frozenset(
    {
        "__pycache__",
        "node_modules",
        "bower_components",
        "site-packages",
        "venv",
        "build",
        "dist",
        "target",
        "htmlcov",
        "coverage",
    }
)
"""Directories of what was made from other files, or came from elsewhere. So are hidden ones, and hidden files."""

_MARKERS: Final = ("pyvenv.cfg", "CACHEDIR.TAG")
"""Files that say the same of the directory they are in."""

_LEFTOVERS: Final = (".pyc", ".pyo", ".o", ".a", ".so", ".dylib", ".dll", ".exe", ".class", ".swp", "~")


class DiscoveredFiles(Struct, frozen=True):
    """A regular file, as it was when it was looked at."""

    source: str  # relative to the root, with '/'
    size: int
    mtime_ns: int


class Tree(Struct, frozen=True):
    """What there is under a root, in order of name; and what there is, but is not read, with the reason."""

    root: Path
    files: tuple[DiscoveredFiles, ...]
    skipped: dict[str, str]
    is_whole: bool  # or one file of the root only


def discover(path: str | os.PathLike[str]) -> Tree:
    """The files of a directory, or the one file that the path names."""
    given = Path(path)
    try:
        resolved = given.resolve(strict=True)
        is_directory = stat.S_ISDIR(resolved.stat().st_mode)
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidArgument(f"{os.fspath(given)!r} cannot be read: {_reason(error)}") from None
    if not is_directory:
        return _look(resolved.parent, [resolved.name], is_whole=False)
    names = _tracked(resolved)
    return _look(resolved, [*_walk(resolved)] if names is None else names, is_whole=True)


def _tracked(root: Path) -> list[str] | None:
    """What git lists; None where there is no git, or it has nothing to say: a tree may lie in what another ignores."""
    command = ["git", "-c", "core.fsmonitor=false", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    environment = {key: text for key, text in os.environ.items() if not key.startswith("GIT_")}
    try:
        listed = subprocess.run(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limits.INGEST_GIT_SECONDS_MAX,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
    return [*dict.fromkeys(names)] or None


def _walk(root: Path) -> Iterator[str]:
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        try:
            with os.scandir(root / prefix) as entries:
                inside = [*entries]
        except OSError:
            yield prefix.rstrip("/")  # so that it is reported
            continue
        if prefix and any(entry.name in _MARKERS for entry in inside):
            continue
        for entry in inside:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _IGNORED:
                    waiting.append(f"{prefix}{entry.name}/")
            elif not entry.name.endswith(_LEFTOVERS):
                yield prefix + entry.name


def _look(root: Path, names: list[str], *, is_whole: bool) -> Tree:
    files: list[DiscoveredFiles] = []
    skipped: dict[str, str] = {}
    inside = _Inside(root)
    for name in sorted(names):
        outcome = _found(root, name, inside)
        if isinstance(outcome, DiscoveredFiles):
            files.append(outcome)
        elif outcome:
            skipped[os.fsencode(name).decode(errors="backslashreplace")] = outcome
    return Tree(root, tuple(files), skipped, is_whole)


def _found(root: Path, name: str, inside: _Inside) -> DiscoveredFiles | str:
    """A file, or why it is not read; an empty reason for what is not there at all, as a file that git will miss."""
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            return "its name is not UTF-8"
    if not inside.holds(name.rstrip("/").rpartition("/")[0]):
        return "it is behind a symbolic link"
    try:
        seen = os.lstat(f"{root}/{name}")
    except FileNotFoundError:
        return ""
    except OSError as error:
        return _reason(error)
    if stat.S_ISREG(seen.st_mode):
        is_huge = seen.st_size > limits.INGEST_FILE_BYTES_MAX
        return f"it has {seen.st_size:,} bytes" if is_huge else DiscoveredFiles(name, seen.st_size, seen.st_mtime_ns)
    return _OTHERS.get(stat.S_IFMT(seen.st_mode), "it is no regular file")


_OTHERS: Final = {
    stat.S_IFLNK: "it is a symbolic link",
    stat.S_IFDIR: "it is a directory that cannot be read, or a repository of its own",
}


class _Inside:
    """Which directories are under the root without a symbolic link on the way; each is looked at once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known = {"": True}

    def holds(self, directory: str) -> bool:
        known = self._known.get(directory)
        if known is None:
            known = self.holds(directory.rpartition("/")[0]) and self._is_directory(directory)
            self._known[directory] = known
        return known

    def _is_directory(self, directory: str) -> bool:
        try:
            return not stat.S_ISLNK(os.lstat(f"{self._root}/{directory}").st_mode)
        except OSError:
            return True  # whatever is wrong with it is said of what is in it


def _reason(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).lower()
