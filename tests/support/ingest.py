"""Helpers of the ingest tests: splitting texts, running git, writing trees."""

import subprocess
from pathlib import Path

import stepwell as sw
from stepwell import types
from stepwell.domain.tiers.source_outline import FILE_KIND
from stepwell.ingest.split import Part, split

FILLER = "some words that make this so long that it is not tiny any more, and stands alone; "
"""A text half as long as a part that is not tiny."""

BODY = f'    return "{FILLER}{FILLER}"\n'


def named(source: str, text: str) -> dict[str, str]:
    """Return the parts of a text by name, checked to be all of it."""
    return {part.outline.name: body for part, body in parts(source, text)}


def parts(source: str, text: str) -> list[tuple[Part, str]]:
    """Return the parts of a text with their bodies, checked to be all of it."""
    data = text.encode()
    found = split(source, data)
    bodies = [data[part.start : part.end].decode() for part in found]
    assert "".join(bodies) == text
    return [*zip(found, bodies, strict=True)]


def lines(source: str, text: str) -> list[tuple[int, int] | None]:
    return [part.outline.lines for part, _ in parts(source, text)]


def git(root: Path, *arguments: str) -> None:
    """Run git with a user of the test's own, and without the machine's configuration of names."""
    who = ["-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)


def all_rows(client: sw.Client, project: str | None = None) -> list[types.FragmentRow]:
    """Return everything that a project has: its fragments, and the rows that stand for files."""
    return [*client.tiers.scoped(project=project), *client.tiers.scoped(project=project, kind=FILE_KIND)]


def write(root: Path, files: dict[str, str | bytes]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
