"""A directory of generated source files, in a git repository with some commits.

Nineteen of twenty files are Python modules of about 10 to 15 kB, with classes, functions, docstrings and imports of
earlier modules. The others are Markdown. The files are the same in each run, except for the functions that `edit`
appends.
"""

from __future__ import annotations

import os
import random
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from benchmarks.vocabulary import ADJECTIVES, NOUNS, VERBS, spelled

MODULE_CHARS: Final = (9_500, 14_000)  # and the end of the last function or class
PAGE_CHARS: Final = (3_000, 8_000)
EVERY_NTH_IS_PAGE: Final = 20
AREAS: Final = 24  # packages of the project
COMMITS: Final = 4
RARE_WORDS: Final = 4_000  # words that occur in a few files only, as names in a real project do
TOPIC_NOUNS, TOPIC_RARE_NOUNS, TOPIC_VERBS, TOPIC_ADJECTIVES = 16, 8, 30, 25  # words of one file
GENERAL_NOUNS: Final = ("entry", "item", "key", "request", "response", "result", "status", "value")  # of every file

_WRITTEN_AT: Final = 1_700_000_000  # the time of all files: long ago, so that they are not taken for files being edited
_GIT_ENVIRONMENT: Final = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_NAME": "n" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "n@example.org" for who in ("AUTHOR", "COMMITTER")},
}

_STATEMENTS: Final = (
    """
    if {first} is None:
        raise ValueError("{sentence}")
    """,
    """
    {second} = [{word} for {word} in {first} if {word}.{third} > {number}]
    """,
    """
    # {sentence}
    {second} = {call}({first}, {number})
    """,
    """
    for number, {word} in enumerate({first}):
        if {word}.{third} not in {second}:
            logger.debug("{sentence}", extra={{"{third}": number}})
            continue
        {second}[{word}.{third}] = {call}({word}, {number})
    """,
    """
    try:
        {second} = {call}({first}, {third}={number})
    except KeyError as error:
        logger.warning("{sentence}", extra={{"{third}": str(error)}})
        {second} = {{}}
    """,
    """
    while {first} and {first}[-1].{third} < {number}:
        {first}.pop()
    """,
    """
    with {call}({first}) as {word}:
        {word}.{third} = {second}.get("{first}", {number})
        {word}.save()
    """,
    """
    {second} = {{"{first}": {first}, "{third}": {call}({first}), "{word}": {number}}}
    """,
    """
    if {first}.{third} == "{word}" and not {second}:
        return {call}({first})
    """,
)


class Module(Struct, frozen=True):
    """A generated module, as other modules import it: its name and its functions and classes."""

    name: str
    public: tuple[str, ...]


class SourceTree:
    """A git repository of generated files below `root`.

    `edit` changes files and `restore` undoes all changes, so that each round finds the same files.
    """

    def __init__(self, root: Path, files: int) -> None:
        self.root: Final = root
        self._writer: Final = _Writer(random.Random(21))
        self._texts: Final = dict(self._writer.files(files))
        self._changeable: Final = [name for name in self._texts if name.endswith(".py")]
        random.Random(22).shuffle(self._changeable)
        self._changed: set[str] = set()
        for name in self._texts:
            self._write_original(name)
        self._commit()

    @property
    def chars(self) -> int:
        """The size of all files as they are committed."""
        return sum(map(len, self._texts.values()))

    def edit(self, count: int) -> None:
        """Append another function to some modules, whose time is then now; to the same ones for the same count."""
        for name in self._changeable[:count]:
            (self.root / name).write_text(self._texts[name] + self._writer.function([]))
            self._changed.add(name)

    def restore(self) -> None:
        """Give all changed files the text and the time that they had at first."""
        while self._changed:
            self._write_original(self._changed.pop())

    def _write_original(self, name: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._texts[name])
        os.utime(path, (_WRITTEN_AT, _WRITTEN_AT))

    def _commit(self) -> None:
        """Commit all files, a part of them in each commit."""
        names = [*self._texts]
        share = -(-len(names) // COMMITS)
        self._git("init", "--quiet", "--initial-branch=main")
        for number in range(COMMITS):
            if some := names[number * share : (number + 1) * share]:
                self._git("add", "--", *some)
                self._git("commit", "--quiet", "--message", self._writer.sentence(), at=_WRITTEN_AT + 86_400 * number)

    def _git(self, *arguments: str, at: int = _WRITTEN_AT) -> None:
        dates = {f"GIT_{who}_DATE": f"{at} +0000" for who in ("AUTHOR", "COMMITTER")}
        environment = {**os.environ, **_GIT_ENVIRONMENT, **dates}
        subprocess.run(["git", *arguments], cwd=self.root, check=True, env=environment, stdout=subprocess.DEVNULL)


class Topic(Struct, frozen=True):
    """The words of one file, those that it uses most come first."""

    nouns: list[str]
    verbs: list[str]
    adjectives: list[str]


class _Writer:
    """Writes modules and pages. Each has a topic, so that the words of a question are in some files and not in all."""

    def __init__(self, chance: random.Random) -> None:
        self._random: Final = chance
        self._rare: Final = [spelled(number) for number in range(RARE_WORDS)]
        self._topic = self._drawn_topic()

    def files(self, count: int) -> Iterator[tuple[str, str]]:
        """Yield names and texts of files."""
        known: list[Module] = []
        for number in range(count):
            self._topic = self._drawn_topic()
            area, name = NOUNS[number % AREAS], f"{self._name()}_{number}"
            if number % EVERY_NTH_IS_PAGE == EVERY_NTH_IS_PAGE - 1:
                yield f"docs/{area}/{name}.md", self._page()
            else:
                text, public = self._module(known)
                known.append(Module(f"shop.{area}.{name}", public))
                yield f"src/shop/{area}/{name}.py", text

    def function(self, known: list[str], name: str = "", indent: str = "") -> str:
        """Return a function, or a method if it is indented, that calls some of the known functions."""
        names = [self._name() for _ in range(self._random.randint(1, 3))]
        parameters = ", ".join(["self"] * bool(indent) + [f"{each}: object" for each in dict.fromkeys(names)])
        lines = [f"def {name or self._verb_name()}({parameters}) -> object:", f'    """{self.sentence()}']
        if self._random.random() < 0.5:
            lines += ["", *self._paragraph("    ", self._random.randint(1, 3)), "    "]
        lines[-1] += '"""'
        for _ in range(self._random.randint(2, 5)):
            lines += self._statement(names, known)
        lines.append(f"    return {names[-1]}")
        return "\n\n" + textwrap.indent("\n".join(lines), indent) + "\n"

    def sentence(self) -> str:
        """Return a sentence about what a function does."""
        words = [
            self._pick(self._topic.verbs),
            "the",
            self._pick(self._topic.adjectives),
            self._noun(),
            "of",
            "the",
            self._noun(),
        ]
        if self._random.random() < 0.6:
            words += [*self._random.choice(("before the", "after the", "for each", "from the", "if the")).split()]
            words += [self._pick(self._topic.adjectives), self._noun(), "has", "to", self._pick(self._topic.verbs)]
        return " ".join(words).capitalize() + "."

    def _module(self, known: list[Module]) -> tuple[str, tuple[str, ...]]:
        """Return the text of a module, and the names that others import from it."""
        head = [f'"""{self.sentence()}', "", *self._paragraph("", 3), '"""', "", "import logging", ""]
        callable_names: list[str] = []
        for module in self._random.sample(known[-200:], min(self._random.randint(2, 6), len(known))):
            imported = self._random.sample(module.public, 2)
            head.append(f"from {module.name} import {', '.join(imported)}")
            callable_names += imported
        head += ["", "logger = logging.getLogger(__name__)", f"{self._name().upper()}_MAX = {self._number()}"]
        parts, public, wanted = ["\n".join(head) + "\n"], list[str](), self._random.randint(*MODULE_CHARS)
        while sum(map(len, parts)) < wanted or len(public) < 2:
            if self._random.random() < 0.3:
                name = "".join(part.capitalize() for part in self._name().split("_"))
                methods = "".join(self.function(callable_names, indent="    ") for _ in range(3))
                parts.append(
                    f'\n\nclass {name}:\n    """{self.sentence()}"""\n{methods}'.replace("\n\n\n    ", "\n\n    ")
                )
            else:
                name = self._verb_name()
                parts.append(self.function(callable_names, name))
            public.append(name)
            callable_names.append(name)
        return "".join(parts), tuple(public)

    def _page(self) -> str:
        """Return a page of Markdown."""
        parts, wanted = [f"# {self.sentence()[:-1]}\n"], self._random.randint(*PAGE_CHARS)
        while sum(map(len, parts)) < wanted:
            parts.append(f"\n## {self._noun().capitalize()} and {self._noun()}\n\n")
            parts.append("\n".join(self._paragraph("", self._random.randint(2, 6))) + "\n")
        return "".join(parts)

    def _statement(self, names: list[str], known: list[str]) -> list[str]:
        """Return the lines of a statement. A name that it assigns is known to the next one."""
        values = {
            "first": self._random.choice(names),
            "second": self._name(),
            "third": self._noun(),
            "word": self._noun(),
            "number": self._number(),
            "sentence": self.sentence(),
            "call": self._random.choice(known) if known else "len",
        }
        names.append(values["second"])
        text = textwrap.dedent(self._random.choice(_STATEMENTS)).strip("\n").format(**values)
        return [f"    {line}" for line in text.splitlines()]

    def _paragraph(self, indent: str, sentences: int) -> list[str]:
        text = " ".join(self.sentence() for _ in range(sentences))
        return textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=indent)

    def _name(self) -> str:
        parts = (self._pick(self._topic.adjectives), self._noun(), self._noun())
        return "_".join(parts[self._random.randint(0, 2) :])

    def _verb_name(self) -> str:
        return f"{self._pick(self._topic.verbs)}_{self._name()}"

    def _noun(self) -> str:
        return self._pick(self._topic.nouns)

    def _number(self) -> str:
        return str(self._random.randint(1, 10_000))

    def _pick(self, words: list[str]) -> str:
        """Return one of the words, the first ones more often."""
        return words[int(len(words) * self._random.random() ** 2)]

    def _drawn_topic(self) -> Topic:
        sample = self._random.sample
        nouns = {*sample(NOUNS, TOPIC_NOUNS), *sample(self._rare, TOPIC_RARE_NOUNS), *GENERAL_NOUNS}
        return Topic(
            sample(sorted(nouns), len(nouns)), sample(VERBS, TOPIC_VERBS), sample(ADJECTIVES, TOPIC_ADJECTIVES)
        )
