"""The text of a piece, made safe to stand among others: no piece changes how the next one is read.

Code stands in a fence that names its language and is longer than any fence in it. Prose may open a fence and be cut
before its end; then the fence is closed. A turn that is stored as JSON is shown as the words that were said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from stepwell.assembly.candidate import AnswerPiece
from stepwell.assembly.stages.dedupe import TURN
from stepwell.assembly.stages.depth import CODE
from stepwell.ingest.splitters.turns import turn_of

FENCE: Final = "```"  # the shortest one that Markdown has

# A line that opens or closes a block, by the rules of CommonMark: up to three spaces, then three or more backticks or
# tildes. After opening backticks there is no further backtick on the line, or it would be code within a line.
_FENCE: Final = re.compile(r"^ {0,3}(`{3,}(?=[^`]*$)|~{3,})(.*)$", re.MULTILINE)

# The names that GitHub and other renderers of Markdown know, by the ending of a file name.
_LANGUAGES: Final[Mapping[str, str]] = {
    ending: language
    for language, endings in {
        "bash": "bash bats sh zsh ksh",
        "c": "c h",
        "clojure": "clj cljc cljs",
        "cpp": "cc cpp cxx c++ hh hpp hxx h++ ipp",
        "csharp": "cs",
        "css": "css",
        "dart": "dart",
        "elixir": "ex exs",
        "erlang": "erl hrl",
        "fsharp": "fs fsi fsx",
        "go": "go",
        "groovy": "groovy gradle",
        "haskell": "hs",
        "html": "html htm",
        "ini": "ini cfg",
        "java": "java",
        "javascript": "js cjs mjs",
        "json": "json",
        "jsx": "jsx",
        "julia": "jl",
        "kotlin": "kt kts",
        "lua": "lua",
        "markdown": "md",
        "objectivec": "m mm",
        "ocaml": "ml mli",
        "perl": "pl pm",
        "php": "php",
        "powershell": "ps1 psm1",
        "protobuf": "proto",
        "python": "py pyi pyw",
        "r": "r",
        "ruby": "rb rake gemspec",
        "rust": "rs",
        "scala": "scala sc",
        "scss": "scss",
        "sql": "sql",
        "swift": "swift",
        "terraform": "tf",
        "toml": "toml",
        "tsx": "tsx",
        "typescript": "ts cts mts",
        "vue": "vue",
        "xml": "xml",
        "yaml": "yaml yml",
        "zig": "zig",
    }.items()
    for ending in endings.split()
}
_LANGUAGES_BY_NAME: Final[Mapping[str, str]] = {
    "Dockerfile": "dockerfile",
    "Gemfile": "ruby",
    "Makefile": "makefile",
    "Rakefile": "ruby",
}


def displayed_text(piece: AnswerPiece) -> str:
    """Return the text of a piece with all fences closed. Code is not in its own fence yet."""
    if piece.kind == CODE:
        return piece.text
    turn = turn_of(piece.text) if piece.kind == TURN and piece.text.startswith("{") else None
    return with_closed_fence(turn.text if turn and turn.text.strip() else piece.text)


def fenced(text: str, language: str = "") -> str:
    """Return code between fences that are longer than any in it."""
    fence = FENCE
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"


def language_of(source: str) -> str:
    """Return the name of a source's language as it stands behind an opening fence; empty if it is not known."""
    name = source.rpartition("/")[2]
    return _LANGUAGES_BY_NAME.get(name) or _LANGUAGES.get(name.rpartition(".")[2].lower() if "." in name else "", "")


def with_closed_fence(text: str) -> str:
    """Return Markdown with an end for a fenced block that has none."""
    opened = ""
    for found in _FENCE.finditer(text):
        fence, rest = found[1], found[2]
        if not opened:
            opened = fence
        # Only a fence of the same character, at least as long and with nothing behind it, closes a block.
        elif fence[0] == opened[0] and len(fence) >= len(opened) and not rest.strip():
            opened = ""
    return f"{text}\n{opened}" if opened else text
