"""What the documents show is what there is."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import re
from operator import attrgetter
from pathlib import Path

import pytest

import stepwell
from benchmarks import overview, page, report, summary
from tests.architecture.lifecycle_diagram import diagram, written
from tests.architecture.text_measurements import PRONOUN
from tests.support import command_reference
from tests.support.documents import DOCUMENTS, LANGUAGES, ROOT, snippets_of

README_LINES_MAX = 150
NO_NAMES = {"mark", "md", "sqlite", "strategies", "valid"}
"""Parts after `stepwell.` that are no names of the package: ends of files, and the group of entry points."""
HAND_WRITTEN = [path for path in DOCUMENTS if path.name not in {"CHANGELOG.md", "TRACK_RECORD.md", "performance.md"}]
RESULTS = ROOT / "benchmarks/results/run.json"


def named(document: Path) -> str:
    return str(document.relative_to(ROOT))


def test_the_diagram_comes_from_the_tables() -> None:
    """ARCHITECTURE.md draws the life of a plan as the tables have it."""
    assert written() == diagram()


def test_the_package_example_is_true() -> None:
    """The example in the package's docstring gives what it says."""
    assert doctest.testmod(stepwell).failed == 0


def test_the_figures_are_those_of_the_committed_run() -> None:
    """The page, the chart and the README's tables are generated from the results: no figure is written by hand."""
    results = report.decoded(RESULTS.read_bytes())
    assert (ROOT / "docs/performance.md").read_text() == page.written(results)
    assert RESULTS.with_suffix(".svg").read_text() == overview.drawn(results)
    readme = (ROOT / "README.md").read_text()
    assert readme == summary.written(readme, results)


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_links_lead_somewhere(document: Path) -> None:
    """A relative link in a document points at a file that exists, and at a heading that the file has."""
    found = re.findall(r"\]\((?!\w+:)([^)#]*)(?:#([^)]+))?\)", without_blocks(document))
    broken = [target for target, _ in found if target and not (document.parent / target).exists()]
    anchors = [(document.parent / target if target else document, anchor) for target, anchor in found if anchor]
    broken += [f"{path.name}#{anchor}" for path, anchor in anchors if path.exists() and anchor not in headings(path)]
    assert broken == []


def without_blocks(document: Path) -> str:
    """Return the text of a document without its blocks of code."""
    return re.sub(r"^(`{3,}).*?^\1$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)


def headings(document: Path) -> set[str]:
    """Return the anchors of a document's headings."""
    titles = re.findall(r"^#+ (.+)$", without_blocks(document), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_paths_in_documents_exist(document: Path) -> None:
    """A module, a test, an example or any other file that a document names is there."""
    text = without_blocks(document).replace("SUBJECT", "tiers")
    packages = "|".join(path.name for path in (ROOT / "src/stepwell").iterdir() if path.is_dir())
    modules = re.findall(rf"`((?:{packages})/[a-z_0-9/]+(?:\.py)?)`", text)
    folders = "benchmarks|docs|examples|features|src|tests|typings|workers"
    files = re.findall(rf"(?<![\w/.])((?:{folders})/[\w./-]+\.(?:py|json|svg|md|feature))\b", text)
    assert [path for path in modules if not (ROOT / "src/stepwell" / path).exists()] == []
    assert [path for path in files if not (ROOT / path).exists() and not (document.parent / path).exists()] == []


def test_every_package_is_described() -> None:
    """ARCHITECTURE.md says what each package and each module of the top level is for."""
    _, _, packages = (ROOT / "ARCHITECTURE.md").read_text().partition("## Packages")
    described = set(re.findall(r"`(\w+)(?:\.py)?`", packages.partition("\n## ")[0]))
    there = {path.stem for path in (ROOT / "src/stepwell").iterdir() if path.suffix in {"", ".py"}}
    assert {name for name in there if not name.startswith("_")} <= described


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_names_in_documents_exist(document: Path) -> None:
    """A name of the package that a document gives as `sw.NAME` or `stepwell.NAME` is there."""
    found = re.findall(r"\b(?:sw|stepwell)\.(?P<names>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?)", document.read_text())
    assert [name for name in found if name.partition(".")[0] not in NO_NAMES and not exists(name)] == []


def exists(name: str) -> bool:
    """Return True if the package, or a module of it, has the name."""
    with contextlib.suppress(ImportError):
        importlib.import_module(f"stepwell.{name.partition('.')[0]}")
    try:
        attrgetter(name)(stepwell)
    except AttributeError:
        return False
    return True


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_blocks_have_a_known_language(document: Path) -> None:
    """Blocks of Python and shell are executed, so none of them hides behind another name of its language."""
    assert {each.language for each in snippets_of(document)} <= LANGUAGES


@pytest.mark.parametrize("document", HAND_WRITTEN, ids=named)
def test_documents_name_the_role(document: Path) -> None:
    """A sentence names the role: client, manager, worker, session, caller."""
    prose = re.sub(r"`[^`]*`", "", without_blocks(document))
    assert PRONOUN.findall(prose) == []


def test_readme_is_short() -> None:
    """An engineer decides in a minute; everything else is in `docs`."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES_MAX


def test_the_readme_shows_a_real_answer() -> None:
    """The lines of code in the answer that the README shows are in the file that it names."""
    (answer,) = (each.code for each in snippets_of(ROOT / "README.md") if each.language == "text")
    heading, *lines = answer.splitlines()
    source = (ROOT / heading.removeprefix("### ").partition(":")[0]).read_text().splitlines()
    assert [line for line in lines if not line.strip().startswith(("```", "…", '"""…')) and line not in source] == []


def test_every_page_is_in_the_navigation() -> None:
    """A page that the site's navigation does not name is not found; `nox -s docs` checks the rest of the site."""
    _, _, navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    named_pages = set(re.findall(r": ([\w/-]+\.md)$", navigation, re.MULTILINE))
    added = set(re.findall(r'": "([\w-]+\.md)"', (ROOT / "docs/site_pages.py").read_text()))
    pages = {str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")}
    assert named_pages == pages | added


def test_every_name_is_in_the_reference() -> None:
    """The reference has each public name of the package; errors, events and types have pages of their own."""
    page = (ROOT / "docs/reference/stepwell.md").read_text()
    names = {name for name in stepwell.__all__ if not is_error(name)} - {"aio", "events", "types"}
    assert set(re.findall(r"^::: stepwell\.(\w+)$", page, re.MULTILINE)) == names


def is_error(name: str) -> bool:
    found = getattr(stepwell, name)
    return isinstance(found, type) and issubclass(found, Exception)


def test_the_command_line_is_described_as_it_is() -> None:
    """The page has the help of each command."""
    assert command_reference.PAGE.read_text() == command_reference.page()
