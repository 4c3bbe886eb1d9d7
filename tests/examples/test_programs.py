"""The examples of `docs/examples.md`: each runs as it stands, and prints what the page shows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import CART, ROOT, snippets_of

PAGE = ROOT / "docs/examples.md"
PROGRAMS = ["own_strategy.py", "team_of_agents.py", "two_processes.py"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_prints_what_the_page_shows(name: str, tmp_path: Path) -> None:
    """A reader gets the output of the page, line by line, and nothing on standard error."""
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "cart.py").write_text(CART)
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name, shop],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == shown(name)


def test_the_page_has_each_program() -> None:
    """The programs of the page are the files, so that a copy cannot be out of date."""
    programs = [each.code for each in snippets_of(PAGE) if each.language == "python"]
    assert sorted(programs) == sorted((ROOT / "examples" / name).read_text() for name in [*PROGRAMS, "three_agents.py"])


def shown(name: str) -> str:
    """Return the output that stands below a program on the page."""
    program = (ROOT / "examples" / name).read_text()
    blocks = [each for each in snippets_of(PAGE) if each.language in {"python", "text"}]
    (place,) = (number for number, each in enumerate(blocks) if each.code == program)
    return blocks[place + 1].code
