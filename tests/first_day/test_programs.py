"""Whole programs: the examples, and a small application of several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import CART

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    path.stem if path.suffix else path.name
    for path in (ROOT / "examples").iterdir()
    if (path / "__main__.py").exists() or (path.suffix == ".py" and path.stem != "__init__")
)
ARGUMENTS = {
    "demo": ("--processes", "2", "--threads", "2"),
    "team_of_agents": ("team",),
    "three_agents": ("shop",),
}
"""The arguments that make an example small, or that it needs; others have none."""

SHOP = {
    "__init__.py": "from shop.cart import TAX, total\nfrom shop.door import greet\n",
    "cart.py": "TAX = 0.16\n\n\ndef total(items):\n    return sum(round(x) for x in items)\n",
    "door.py": 'def greet():\n    return "Helo"\n',
}


def write_shop(directory: Path) -> None:
    directory.mkdir(parents=True)
    for name, text in SHOP.items():
        (directory / name).write_text(text)


def run(*arguments: str, directory: Path) -> str:
    """Return the output of a program in Python that has to end well."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=directory, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str, tmp_path: Path) -> None:
    """Each runs as a module, from any directory, and ends well."""
    write_shop(tmp_path / "shop")
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "cart.py").write_text(CART)
    run("-m", f"examples.{name}", *ARGUMENTS.get(name, ()), directory=tmp_path)


def test_application(tmp_path: Path) -> None:
    """Three agents mend a shop: all three changes are in the files, none is lost, and nothing else is left there."""
    shop = tmp_path / "live" / "shop"
    write_shop(shop)
    assert run(str(Path(__file__).with_name("application.py")), str(shop.parent), directory=tmp_path) == "applied\n"
    assert (shop / "cart.py").read_text() == SHOP["cart.py"].replace("0.16", "0.19").replace("round(x)", "round(x, 2)")
    assert (shop / "door.py").read_text() == SHOP["door.py"].replace("Helo", "Hello")
    assert {path.name for path in tmp_path.iterdir()} == {"live", "state"}
