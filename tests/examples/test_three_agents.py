"""The application of three agents: it runs as it stands, in few lines, and leaves a repaired tree and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

from stepwell.trees.key import state_directory
from tests.architecture.sources import ROOT

PROGRAM = ROOT / "examples/three_agents.py"
LINES_MAX = 35

CART = '''"""The cart."""

TAX = 0.19


def price(items):
    return sum(item.price for item in items) * (1 + TAX)


def rounded(items):
    total = price(items)
    return round(total)


def receipt(items):
    return f"Totl: {rounded(items)}"
'''


def test_repairs_a_shop(tmp_path: Path) -> None:
    """All three edits of one file are there, from three copies of it; no copy is left."""
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "cart.py").write_text(CART)
    done = subprocess.run(
        [sys.executable, PROGRAM, shop],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    repaired = CART.replace("0.19", "0.2").replace("round(total)", "round(total, 2)").replace("Totl", "Total")
    assert (shop / "cart.py").read_text() == repaired
    assert {each.name for each in shop.iterdir()} == {"cart.py", ".stepwell"}
    assert [each.name for each in Path(state_directory(), "scratch").iterdir()] == ["table.lock"]


def test_is_short() -> None:
    assert len(PROGRAM.read_text().splitlines()) <= LINES_MAX
