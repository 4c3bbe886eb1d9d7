"""Where a command finds the fragments that it is about: in a manager of its own, or in one that is running."""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from stepwell.cli.common.addresses import add_address, resolve_address
from stepwell.cli.common.embedded import embedded_client
from stepwell.client.client import Client, connect
from stepwell.errors import InvalidArgument
from stepwell.ingest.inventory import project_name


def add_source(parser: argparse.ArgumentParser, *, is_option: bool = False) -> None:
    help_ = "a directory, or one file (default: this directory)"
    if is_option:
        parser.add_argument("--path", metavar="PATH", help=help_)
    else:
        parser.add_argument("path", metavar="PATH", nargs="?", help=help_)
    add_address(parser, "of the manager to ask (default: one of its own, which keeps what it knows in your cache)")
    parser.add_argument("--project", metavar="NAME", help="(default: as the directory is named)")


def source_root(path: Path) -> Path:
    """The directory that is read: a file's is the one that it is in."""
    try:
        found = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise InvalidArgument(f"{str(path)!r} cannot be read: {error}") from None
    return found if found.is_dir() else found.parent


class Source(Struct, frozen=True):
    """What a command is about."""

    project: str
    path: Path | None  # to be read first; None if a project of a manager was named alone
    root: Path  # what is kept is of this: a file's is its own, so that the rest of its directory is not asked
    address: str | None  # of a manager that is running


def source_of(arguments: argparse.Namespace) -> Source:
    """Where the arguments say, or in this directory."""
    is_named = arguments.address is not None and arguments.project is not None and arguments.path is None
    path = None if is_named else Path(arguments.path or ".").absolute()
    name = arguments.project or project_name(source_root(path or Path()))
    address = None if arguments.address is None else resolve_address(arguments.address)
    return Source(name, path, (path or Path()).resolve(), address)


@contextmanager
def open_source(source: Source, *, workers: int | None = None, use_cache: bool = True) -> Generator[Client]:
    """A client that sees that one project. A manager of its own keeps what it knows, unless it cannot."""
    if source.address is not None:
        with connect(source.address, [source.project]) as client:
            yield client
        return
    with embedded_client(source.root, source.project, workers=workers, use_cache=use_cache) as client:
        yield client
