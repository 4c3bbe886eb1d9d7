"""What must not be written, wherever it would be convenient."""

import ast
import io
import re
import tokenize
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGE, ROOT, called_names, imported_modules, python_files

SOURCE = [PACKAGE]
TESTS = [ROOT / "tests", ROOT / "features"]
EVERYTHING = [*SOURCE, *TESTS, ROOT / "workers", ROOT / "benchmarks", ROOT / "noxfile.py"]
PICKLING = PACKAGE / "pool/pickling.py"
UNPICKLING = [path for path in python_files(*SOURCE) if path != PICKLING]
WRITERS = [PACKAGE / "cli/common/apps.py", PACKAGE / "cli/common/output.py", PACKAGE / "telemetry.py"]
MESSAGES = [
    PACKAGE / "domain/command_roots.py",
    *(PACKAGE / f"domain/{subject}/commands.py" for subject in ("tiers", "plans", "changesets", "tasks", "receipts")),
    PACKAGE / "domain/replies.py",
    PACKAGE / "protocol/messages.py",
]


def silenced_types(source: str) -> list[str]:
    """A type error is repaired or the type is; it is never silenced."""
    if "ignore" not in source:  # which is quicker than to read every token
        return []
    return [
        f"line {token.start[0]}: {token.string}"
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and re.search(r"(type|pyright|mypy):\s*ignore", token.string)
    ]


def evaluated_input(source: str) -> list[str]:
    """Nothing that a peer sends becomes code. What does travels to a program's own workers, by one module alone."""
    tree = ast.parse(source)
    modules = {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve"}
    functions = {"eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec"}
    imports = [f"line {line}: {name}" for line, name in imported_modules(tree) if name.partition(".")[0] in modules]
    calls = [f"line {line}: {name}" for line, name in called_names(tree) if name in functions]
    return imports + calls


def sleeps(source: str) -> list[str]:
    """A test waits on a condition: a sleep is too short on a busy machine and too long on every other."""
    if "sleep" not in source:  # which is quicker than to parse every test
        return []
    tree = ast.parse(source)
    imports = [f"line {line}: {name}" for line, name in imported_modules(tree) if name == "time.sleep"]
    calls = [
        f"line {line}: {name}"
        for line, name in called_names(tree)
        if name.endswith(".sleep") and name != "asyncio.sleep"
    ]
    return imports + calls


def untyped_fields(source: str) -> list[str]:
    """What a peer sends is of a known type: into `Any` a decoder would let through whatever comes."""
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Name) and node.id == "Any") or (isinstance(node, ast.Attribute) and node.attr == "Any")
    ]


def raw_output(source: str) -> list[str]:
    """Text reaches a terminal by way of `stepwell.terminal`, which escapes it: another way would forget that."""
    names = {"print", "sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write", "sys.stderr.buffer.write"}
    names |= {"sys.stdout.writelines", "sys.stderr.writelines", "Console", "rich.print", "ArgumentParser"}
    names |= {"typer.echo", "typer.secho", "typer.run", "typer.Typer", "Typer"}
    names |= {"rich.console.Console", "argparse.ArgumentParser", "structlog.configure", "traceback.print_exc"}
    return [f"line {line}: {name}" for line, name in called_names(ast.parse(source)) if name in names]


def fixed_plurals(source: str) -> list[str]:
    """A number that may be 1 has its noun from `text.plural`: "1 fragments" reads as a defect."""
    found = [
        (node.lineno, count, after.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.JoinedStr)
        for count, after in pairwise(node.values)
        if isinstance(count, ast.FormattedValue) and isinstance(after, ast.Constant)
    ]
    return [
        f"line {line}: {ast.unparse(count.value)}{text!s}"
        for line, count, text in found
        if isinstance(count.value, ast.Call)
        and ast.unparse(count.value.func) == "len"
        and re.match(r" (?!is|was|has|does)(?:[a-z]+ )?(?:[a-z]+[^s]s|children|bodies)\b", str(text))
    ]


def shown_enums(source: str) -> list[str]:
    """A member of an enum is shown by its value, also in a list or in the `repr` of a value that has it."""
    return [
        f"line {node.lineno}: {node.name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).rpartition(".")[2] in {"StrEnum", "Enum"} for base in node.bases)
    ]


def network_sockets(source: str) -> list[str]:
    """There is no TCP: a socket of the network would be open to other users, and to other machines."""
    names = {"AF_INET", "AF_INET6", "create_server", "create_connection", "start_server", "open_connection"}
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Attribute) and node.attr in names) or (isinstance(node, ast.Name) and node.id in names)
    ]


BANS: list[tuple[Callable[[str], list[str]], list[Path], list[str]]] = [
    (
        silenced_types,
        EVERYTHING,
        ["x = 1  # type: ignore", "x = 1  # type:ignore[misc]", "x = 1  # pyright: ignore"],
    ),
    (evaluated_input, UNPICKLING, ["import pickle", "from dill import loads", "eval('1')", "exec('1')"]),
    (network_sockets, SOURCE, ["socket.socket(socket.AF_INET)", "AF_INET6", "asyncio.start_server(serve)"]),
    (sleeps, TESTS, ["from time import sleep", "time.sleep(1)"]),
    (
        raw_output,
        [path for path in python_files(*SOURCE) if path not in WRITERS],
        [
            "print(1)",
            "sys.stdout.write(text)",
            "sys.stderr.write(text)",
            "Console(stderr=True)",
            "typer.echo(text)",
            "typer.Typer()",
        ],
    ),
    (fixed_plurals, SOURCE, ['f"{len(x)} fragments"', 'f"{len(x):,} open conflicts, and"']),
    (shown_enums, [PACKAGE / "domain"], ["class Tier(StrEnum):\n A = 1", "class A(enum.StrEnum, B):\n A = 1"]),
    (untyped_fields, MESSAGES, ["class A:\n x: Any", "class A:\n x: list[typing.Any]"]),
]


@pytest.mark.parametrize("ban, paths", [pytest.param(ban, paths, id=ban.__name__) for ban, paths, _ in BANS])
def test_is_not_written(ban: Callable[[str], list[str]], paths: list[Path]) -> None:
    """The ban's own docstring gives its reason."""
    found = {str(path.relative_to(ROOT)): ban(path.read_text()) for path in python_files(*paths)}
    assert {path: lines for path, lines in found.items() if lines} == {}, ban.__doc__


@pytest.mark.parametrize("ban, sample", [(ban, sample) for ban, _, samples in BANS for sample in samples])
def test_is_recognised(ban: Callable[[str], list[str]], sample: str) -> None:
    assert len(ban(sample)) == 1


def test_who_unpickles() -> None:
    """Those at the two ends of a pipe that a worker inherited, and nobody who reads a socket."""
    named = "stepwell.pool.pickling"
    users = {
        str(path.relative_to(PACKAGE))
        for path in UNPICKLING
        if any(name.startswith(named) for _, name in imported_modules(ast.parse(path.read_text())))
    }
    assert PICKLING.is_file()
    assert users <= {
        "runtime.py",
        "pool/strategy/worker.py",
        "pool/functions/executor.py",
        "pool/functions/worker_main.py",
        "pool/functions/results.py",
    }, users
    assert {"runtime.py", "pool/strategy/worker.py"} <= users


def test_one_module_starts_processes() -> None:
    """Whatever else starts a process with `multiprocess` would run the user's `__main__` again.

    The dict of `stepwell prove` is `multiprocess`'s, in a process that `process.py` starts.
    """
    users = {
        str(path.relative_to(PACKAGE))
        for path in python_files(*SOURCE)
        if any(name.partition(".")[0] == "multiprocess" for _, name in imported_modules(ast.parse(path.read_text())))
    }
    assert "process.py" in users
    assert users <= {"process.py", "prove/dict_server.py", "testing/leaks.py"}, users


def test_messages_are_where_they_are_looked_for() -> None:
    """A ban on files that were renamed would hold for ever."""
    assert [path for path in [*MESSAGES, *WRITERS] if not python_files(path)] == []
