"""Make documents of the repository's root into pages of the site. MkDocs calls the functions by their names.

The root documents are written for readers of the repository, with links into `docs` and to sources. On the site a link
to a document leads to its page, and a link to a source is its text alone.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "set-up-and-rules.md",
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "TRACK_RECORD.md": "track-record.md",
    "benchmarks/results/run.svg": "run.svg",
}
"""Files outside `docs`, and what they are called on the site. The site has its own first page instead of the README."""

_LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<target>(?!\w+:)[^)#]+)?(?P<anchor>#[^)]*)?\)")
_STATES = re.compile(r"^```mermaid\nstateDiagram-v2\n(?P<steps>.*?)^```$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents of the root to the files of the site."""
    for source, name in PAGES.items():
        if source != "README.md":
            files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page with links of the site, and with diagrams as tables: no script draws them."""
    name = page.file.src_uri
    sources = {page: source for source, page in PAGES.items() if page != "index.md"}
    place = sources.get(name, f"docs/{name}")
    linked = _LINK.sub(lambda link: _on_site(link, place, name), markdown)
    return _STATES.sub(lambda diagram: _table(diagram["steps"]), linked)


def _on_site(link: re.Match[str], place: str, name: str) -> str:
    """Return a link of a page of the site for one in a document at `place`."""
    if link["target"] is None:
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(place), link["target"]))
    target = path.removeprefix("docs/") if path.startswith("docs/") else PAGES.get(path)
    if target is None:
        return link["text"].strip("[]")
    return f"{link['text']}({posixpath.relpath(target, posixpath.dirname(name) or '.')}{link['anchor'] or ''})"


def _table(steps: str) -> str:
    """Return the steps of a state diagram as a table."""
    rows = [re.split(r" --> |: ", step.strip()) for step in steps.splitlines()]
    cells = [f"| {' | '.join([*row, ''][:3])} |" for row in rows]
    return "\n".join(["| from | to | by |", "|---|---|---|", *cells])
