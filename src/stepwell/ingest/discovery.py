"""The files of a directory: those that git knows and does not ignore, or those that a walk finds where there is no git.

Symbolic links are never followed, neither to files nor through directories, so that nothing outside the root is read. A
file that exists but is not read is reported with the reason. Well-known secret files are left out and reported apart.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from stepwell import limits
from stepwell.errors import InvalidArgument
from stepwell.ingest.secret_files import secret_kind
from stepwell.ingest.secret_policy import SecretPolicy

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
"""Directories whose files are generated or come from elsewhere. Hidden directories and files are ignored as well."""

_MARKERS: Final = ("pyvenv.cfg", "CACHEDIR.TAG")
"""Files that mark the directory that they are in as generated."""

_BUILT_SUFFIXES: Final = (".pyc", ".pyo", ".o", ".a", ".so", ".dylib", ".dll", ".exe", ".class", ".swp", "~")
"""Endings of files that compilers and editors leave behind."""


class DiscoveredFile(Struct, frozen=True):
    """A regular file, as it was when it was examined. `source` is its path from the root, with slashes."""

    source: str
    size: int
    mtime_ns: int


class DiscoveredTree(Struct, frozen=True):
    """The files under a root, in order of name, and the files that are not read, with the reasons.

    `secrets` are the files that were left out because of their names, with what they have. `is_whole` is False if only
    one file of the root was named: then missing files are not taken for deleted ones.
    """

    root: Path
    files: tuple[DiscoveredFile, ...]
    skipped: dict[str, str]
    secrets: dict[str, str]
    is_whole: bool


def discover(path: str | os.PathLike[str], policy: SecretPolicy = SecretPolicy.REDACT) -> DiscoveredTree:
    """Return the files of a directory, or the one file that the path names.

    A file that is named by a symbolic link is secret if the name of either is. Raise `InvalidArgument` if the path
    cannot be read.
    """
    given = Path(path)
    try:
        resolved = given.resolve(strict=True)
        is_directory = stat.S_ISDIR(resolved.stat().st_mode)
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidArgument(f"{os.fspath(given)!r} cannot be read: {_reason(error)}") from None
    if is_directory:
        names = _tracked(resolved)
        tree = _examine_all(resolved, [*_walk(resolved)] if names is None else names, is_whole=True)
    else:
        tree = _examine_all(resolved.parent, [resolved.name], is_whole=False)
    return tree if policy is SecretPolicy.INCLUDE else _without_secrets(tree, given.absolute())


def _without_secrets(tree: DiscoveredTree, given: Path) -> DiscoveredTree:
    """Return a tree without its secret files. `given` is the path of a single file, as the caller has named it."""
    kinds = {file.source: secret_kind(f"{tree.root}/{file.source}") for file in tree.files}
    secrets = {source: kind for source, kind in kinds.items() if kind}
    if not tree.is_whole and (kind := secret_kind(str(given))):
        secrets = {**dict.fromkeys(kinds, kind), **secrets}
    return replace(tree, files=tuple(file for file in tree.files if file.source not in secrets), secrets=secrets)


def _tracked(root: Path) -> list[str] | None:
    """Return the names that git lists, or None if there is no git, or if it lists nothing.

    A directory may lie in a repository that ignores it; then git lists nothing, and the directory is walked. Variables
    of the environment that point git elsewhere are removed.
    """
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
    """Yield the names of all files that are neither hidden nor generated.

    A directory that cannot be read is yielded itself.
    """
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        try:
            with os.scandir(root / prefix) as entries:
                inside = [*entries]
        except OSError:
            yield prefix.rstrip("/")  # `_examine` then reports the reason
            continue
        if prefix and any(entry.name in _MARKERS for entry in inside):
            continue
        for entry in inside:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _IGNORED:
                    waiting.append(f"{prefix}{entry.name}/")
            elif not entry.name.endswith(_BUILT_SUFFIXES):
                yield prefix + entry.name


def _examine_all(root: Path, names: list[str], *, is_whole: bool) -> DiscoveredTree:
    """Return the tree of the named files, each examined."""
    files: list[DiscoveredFile] = []
    skipped: dict[str, str] = {}
    inside = _LinkFreeDirectories(root)
    for name in sorted(names):
        outcome = _examine(root, name, inside)
        if isinstance(outcome, DiscoveredFile):
            files.append(outcome)
        elif outcome:
            skipped[os.fsencode(name).decode(errors="backslashreplace")] = outcome
    return DiscoveredTree(root, tuple(files), skipped, {}, is_whole)


def _examine(root: Path, name: str, inside: _LinkFreeDirectories) -> DiscoveredFile | str:
    """Return a file, or the reason why it is not read.

    The reason is empty for a file that does not exist: git also lists tracked files that were deleted.
    """
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            return "its name is not UTF-8"
    if not inside.holds(name.rstrip("/").rpartition("/")[0]):
        return "it is behind a symbolic link"
    try:
        seen = os.lstat(f"{root}/{name}")
    except (FileNotFoundError, NotADirectoryError):  # the latter if a directory has become a file
        return ""
    except OSError as error:
        return _reason(error)
    if stat.S_ISREG(seen.st_mode):
        is_huge = seen.st_size > limits.INGEST_FILE_BYTES_MAX
        return f"it has {seen.st_size:,} bytes" if is_huge else DiscoveredFile(name, seen.st_size, seen.st_mtime_ns)
    return _NOT_REGULAR.get(stat.S_IFMT(seen.st_mode), "it is no regular file")


_NOT_REGULAR: Final = {
    stat.S_IFLNK: "it is a symbolic link",
    stat.S_IFDIR: "it is a directory that cannot be read, or a repository of its own",
}
"""The reasons for entries that are no regular files, by type."""


class _LinkFreeDirectories:
    """The directories that are reached from the root without a symbolic link. Each is examined once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known = {"": True}

    def holds(self, directory: str) -> bool:
        """Return True if neither a directory nor any directory above it, below the root, is a symbolic link."""
        known = self._known.get(directory)
        if known is None:
            known = self.holds(directory.rpartition("/")[0]) and self._is_directory(directory)
            self._known[directory] = known
        return known

    def _is_directory(self, directory: str) -> bool:
        try:
            return not stat.S_ISLNK(os.lstat(f"{self._root}/{directory}").st_mode)
        except OSError:
            return True  # the error is reported for the files in it


def _reason(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).lower()
