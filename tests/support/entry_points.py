"""Packages that offer strategies by entry points, as files of a directory that is on the path."""

from collections.abc import Mapping
from pathlib import Path

from stepwell.strategies.registry import GROUP

MODULE = """
class Mine:
    name = "theirs"
    capabilities = frozenset({"query"})
    def can_handle(self, request, view): return 1.0
    def assemble(self, request, view, budget_tokens): return ()
    def explain(self): return "theirs"

class Underscored(Mine):
    name = "with_underscore"

class Shouted(Mine):
    name = "Loud Name"

class Unmade(Mine):
    def __init__(self): raise OSError("no model")

class Vague(Mine):
    name = "vague"
    capabilities = frozenset({"two words"})

class Mute(Exception):
    def __str__(self): raise self

def mute():
    raise Mute

wrong = object()
"""
"""A module with good strategies and bad ones."""

BROKEN = {
    "a-broken": "no_such_module:x",
    "b-good": "{module}:Mine",
    "c-taken": "{module}:Mine",
    "d-wrong": "{module}:wrong",
    "e-loud": "{module}:Shouted",
    "f-unmade": "{module}:Unmade",
    "g-good": "{module}:Underscored",
    "h-vague": "{module}:Vague",
    "i-mute": "{module}:mute",
}
"""Entry points of every kind: by the first letters, in the order in which they are loaded."""

REASONS = {
    "a-broken": "ModuleNotFoundError: No module named 'no_such_module'",
    "c-taken": "there is a strategy 'theirs' already: give this one another name",
    "d-wrong": "is no strategy: give an object with name, capabilities, can_handle, assemble and explain",
    "e-loud": "a name is 1 to 64 lower case letters, digits, hyphens and underscores",
    "f-unmade": "OSError: no model",
    "h-vague": "capabilities are a frozenset of at most 32 texts",
    "i-mute": "Mute: <exception str() failed>",
}
"""A part of the reason for which each of the bad ones is not loaded."""


def install(directory: Path, entry_points: Mapping[str, str], package: str = "offered") -> str:
    """Put a package with these entry points into a directory, and return the name of its module.

    The name is new for each directory, because a module that was imported once stays.
    """
    module = f"{package}_{directory.name}".replace("-", "_")
    (directory / f"{module}.py").write_text(MODULE)
    distribution = directory / f"{package}-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {value.format(module=module)}" for name, value in entry_points.items()]
    (distribution / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines]))
    return module
