"""The page of the command line, made of the help of all commands: `python -m tests.support.command_reference`."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from unittest import mock

from stepwell.cli.command_line import run
from tests.support.documents import ROOT

PAGE = ROOT / "docs/reference/command-line.md"
COLUMNS = "100"
_CORES = re.compile(r"(each\s+core unless it\s+is\s+given[^\[]*\[default: )\d+")
_HEAD = """# Command line

<!-- Generated from the help of the commands. Do not edit it: `python -m tests.support.command_reference` writes it. -->

`python -m stepwell` is the same as `stepwell`. Exit codes are 0 for success, 1 for a refusal or a failure, 2 for wrong
arguments, and 130 for Ctrl-C; a command with others names them.
"""


def page() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for words in _commands():
        level = "##" if len(words) < 2 else "###"
        parts.append(f"\n{level} {' '.join(['stepwell', *words])}\n\n```text\n{_help(words)}```\n")
    return "".join(parts)


def _commands() -> Iterator[list[str]]:
    """Yield the words of each command, a group before its commands."""
    yield []
    for name in _names([]):
        yield [name]
        if "COMMAND" in _help([name]).splitlines()[0]:
            yield from ([name, each] for each in _names([name]))


def _names(words: list[str]) -> list[str]:
    """Return the names of the commands of a group."""
    _, _, listed = _help(words).partition("\nCommands:\n")
    return re.findall(r"^  ([a-z-]+) ", listed.partition("\n\n")[0], re.MULTILINE)


def _help(words: list[str]) -> str:
    """Return the help of a command. A default that is the machine's number of cores is "cores"."""
    shown = io.StringIO()
    wide = {"COLUMNS": COLUMNS, "NO_COLOR": "1", "TERM": "dumb"}
    with mock.patch.dict(os.environ, wide), contextlib.redirect_stdout(shown):
        assert run([*words, "--help"]) == 0
    return _CORES.sub(r"\1cores", shown.getvalue())


if __name__ == "__main__":
    PAGE.write_text(page())
