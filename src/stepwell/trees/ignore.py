"""What in a tree is nobody's change: what git ignores, or where there is no git what is made from other files.

Ingest skips more where there is no git: hidden files, `build`, `dist`, compiled objects. There a file too few costs an
answer; here it would be a change that is missed, so that whatever may be what somebody was asked to make is recorded,
and only what is always made again by itself is not.
"""

from __future__ import annotations

import os
import subprocess
from typing import Final

from stepwell import limits
from stepwell.trees.entry import RESERVED, ancestors_of

_MADE: Final = frozenset({"__pycache__", "node_modules", "bower_components", ".hg", ".svn", ".jj", ".bzr"})
_MARKERS: Final = frozenset({"pyvenv.cfg", "CACHEDIR.TAG"})
"""Files that say of the directory they are in that it is made again by itself."""

_LEFTOVERS: Final = (".pyc", ".pyo", ".swp", "~")


def is_reserved(name: str) -> bool:
    """Whether it is never part of a tree."""
    return name.casefold() in RESERVED


def is_made(name: str, *, is_directory: bool) -> bool:
    """Whether, by its name, it is made again by itself."""
    return name in _MADE if is_directory else name.endswith(_LEFTOVERS)


def is_marked(names: list[str]) -> bool:
    """Whether a directory says so of itself."""
    return not _MARKERS.isdisjoint(names)


def ignored_by_git(directory: int) -> frozenset[str] | None:
    """What git ignores below an open directory, whole directories by their own name; None where it has no say.

    That is where there is no git, and where all of it is ignored: a tree may lie in what another repository ignores.
    """
    listed = _git(directory, ["ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"])
    if listed is None or "./" in listed:
        return None
    directories = [name for name in listed if name.endswith("/")]
    if not directories:
        return frozenset(listed)
    # Also listed are directories that are not ignored, with nothing in them now that is not: something may come there.
    truly = _git(directory, ["check-ignore", "-z", "--stdin"], "\0".join(directories))
    if truly is None:
        return None
    return frozenset(name.rstrip("/") for name in {*listed}.difference(directories).union(truly))


def _git(directory: int, arguments: list[str], given: str = "") -> list[str] | None:
    """The names that git answers with; None if it does not."""
    command = ["git", "-c", "core.fsmonitor=false", *arguments]
    environment = {key: text for key, text in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            command,
            cwd=f"/proc/self/fd/{directory}",
            env=environment,
            input=os.fsencode(given),
            capture_output=True,
            timeout=limits.INGEST_GIT_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    is_answer = done.returncode == 0 or (done.returncode == 1 and not done.stderr)  # it may be that none is
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name] if is_answer else None


def is_within(path: str, names: frozenset[str] | set[str]) -> bool:
    """Whether a path, or a directory that it is in, is among names."""
    return path in names or any(above in names for above in ancestors_of(path))
