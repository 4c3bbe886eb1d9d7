"""Where a command finds the fragments that it is about: in a manager of its own, or in one that is running."""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from stepwell.cli.addresses import resolve
from stepwell.cli.embedded import embedded
from stepwell.client.client import Client, connect
from stepwell.errors import InvalidArgument
from stepwell.ingest.inventory import project_name


def add_place(parser: argparse.ArgumentParser, *, is_option: bool = False) -> None:
    help_ = "a directory, or one file (default: this directory)"
    if is_option:
        parser.add_argument("--path", metavar="PATH", help=help_)
    else:
        parser.add_argument("path", metavar="PATH", nargs="?", help=help_)
    parser.add_argument(
        "--connect",
        metavar="SOCKET",
        help="ask the manager that listens there (default: one of its own, which keeps what it knows in the user's "
        "cache)",
    )
    parser.add_argument("--project", metavar="NAME", help="(default: as the directory is named)")


def root_of(path: Path) -> Path:
    """The directory that is read: a file's is the one that it is in."""
    try:
        found = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise InvalidArgument(f"{str(path)!r} cannot be read: {error}") from None
    return found if found.is_dir() else found.parent


@contextmanager
def opened(arguments: argparse.Namespace, *, workers: int | None = None) -> Generator[tuple[Client, Path | None]]:
    """A client that sees one project, and the path to read first: none, if a project of a manager was named alone."""
    is_named = arguments.connect is not None and arguments.project is not None and arguments.path is None
    path = None if is_named else Path(arguments.path or ".").absolute()
    project: str = arguments.project or project_name(root_of(path or Path()))
    if arguments.connect is not None:
        with connect(resolve(arguments.connect), [project]) as client:
            yield client, path
        return
    with embedded(root_of(path or Path()), project, workers=workers) as client:
        yield client, path
