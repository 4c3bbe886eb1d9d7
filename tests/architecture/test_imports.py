"""Imports point downwards only, and the core does no I/O."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGE, ROOT, called_names, python_files

PURE = [PACKAGE / "assembly", PACKAGE / "domain", PACKAGE / "protocol"]
IMPURE_CALLS = {"__import__", "breakpoint", "datetime.datetime.now", "datetime.now", "input", "open", "print"}


def lint_imports(path: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of pyproject.toml against the `stepwell` at the path."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        cwd=ROOT,
        env={"PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )


def impure_calls(source: str) -> list[str]:
    return [f"line {line}: {name}" for line, name in called_names(ast.parse(source)) if name in IMPURE_CALLS]


def test_the_contracts_hold() -> None:
    """Every module has its layer and imports only from the layers below it; see pyproject.toml."""
    result = lint_imports(PACKAGE.parent)
    assert result.returncode == 0, result.stdout


@pytest.fixture
def empty_package(tmp_path: Path) -> Path:
    """A package that has every layer, with nothing in it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    package = tmp_path / "stepwell"
    for layer in re.findall(r"\w+", " ".join(contracts[0]["layers"])):
        (package / layer).mkdir(parents=True)
        (package / layer / "__init__.py").touch()
    (package / "__init__.py").touch()
    return package


@pytest.mark.parametrize(
    "module, statement, reason",
    [
        ("domain/machine.py", "import stepwell.runtime", "domain is not allowed to import stepwell.runtime"),
        ("manager/loop.py", "import stepwell.client", "manager is not allowed to import stepwell.client"),
        ("protocol/codec.py", "import socket", "protocol is not allowed to import socket"),
        ("domain/clock.py", "def now():\n    import time", "domain is not allowed to import time"),
        ("homeless.py", "", "homeless"),
    ],
)
def test_the_contracts_can_be_broken(empty_package: Path, module: str, statement: str, reason: str) -> None:
    """Imports upwards, sideways or of I/O are found, also inside a function; so is a module in no layer."""
    assert lint_imports(empty_package.parent).returncode == 0
    (empty_package / module).write_text(f"{statement}\n")
    result = lint_imports(empty_package.parent)
    assert result.returncode == 1
    assert reason in result.stdout


def test_the_core_does_no_io_without_an_import() -> None:
    """The contracts see imports; what needs none is not used in the domain or the protocol either."""
    found = {str(path.relative_to(PACKAGE)): impure_calls(path.read_text()) for path in python_files(*PURE)}
    assert {path: calls for path, calls in found.items() if calls} == {}


@pytest.mark.parametrize("sample", ["open('x')", "def f():\n    print(1)", "x = datetime.now()"])
def test_impure_calls_are_recognised(sample: str) -> None:
    assert len(impure_calls(sample)) == 1
