"""What the documents show is what there is."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import stepwell
from benchmarks import overview, page, report
from tests.architecture.lifecycle_diagram import diagram, written

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
RESULTS = ROOT / "benchmarks/results/run.json"


def test_the_diagram_comes_from_the_tables() -> None:
    """ARCHITECTURE.md draws the life of a plan as the tables have it."""
    assert written() == diagram()


def test_the_package_example_is_true() -> None:
    """The example in the package's docstring gives what it says."""
    assert doctest.testmod(stepwell).failed == 0


def test_the_figures_are_those_of_the_committed_run() -> None:
    """`docs/performance.md` and the chart are generated from the results, so no figure in them is written by hand."""
    results = report.decoded(RESULTS.read_bytes())
    assert (ROOT / "docs/performance.md").read_text() == page.written(results)
    assert RESULTS.with_suffix(".svg").read_text() == overview.drawn(results)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    """A relative link in a document points at a file that exists."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_in_documents_exist(document: Path) -> None:
    """A module or a package that a document names is there."""
    packages = "|".join(path.name for path in (ROOT / "src/stepwell").iterdir() if path.is_dir())
    named = re.findall(rf"`((?:{packages})/[a-z_0-9/]+(?:\.py)?)`", document.read_text())
    assert [path for path in named if not (ROOT / "src/stepwell" / path).exists()] == []
