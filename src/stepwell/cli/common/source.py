"""The source of a command's fragments: a path with a manager of its own, or a project of a running manager.

`assemble`, `why` and `diff` share these options. Without `--connect` the command starts its own manager with a cache of
the path (`embedded`). With `--connect` it asks the running one; a PATH is then read into that manager first.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from stepwell.cli.common.addresses import add_address, resolve_address
from stepwell.cli.common.embedded import cache_directory, delete_unredacted, embedded_client
from stepwell.cli.common.secret_options import add_secret_options, secret_policy
from stepwell.client.client import Client, connect
from stepwell.errors import InvalidArgument
from stepwell.ingest.inventory import project_name
from stepwell.ingest.secret_policy import SecretPolicy


def add_source(parser: argparse.ArgumentParser, *, is_option: bool = False) -> None:
    """Add the options that name a source. `is_option` makes the path an option, for commands with other positional
    arguments.
    """
    help_ = "a directory, or one file (default: this directory)"
    if is_option:
        parser.add_argument("--path", metavar="PATH", help=help_)
    else:
        parser.add_argument("path", metavar="PATH", nargs="?", help=help_)
    add_address(parser, "of the manager to ask (default: one of its own, which keeps what it knows in your cache)")
    parser.add_argument("--project", metavar="NAME", help="(default: as the directory is named)")
    add_secret_options(parser)


def source_root(path: Path) -> Path:
    """Return the directory to read: the path itself, or the directory of a file. Raise `InvalidArgument` if it is not
    there.
    """
    try:
        found = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise InvalidArgument(f"{str(path)!r} cannot be read: {error}") from None
    return found if found.is_dir() else found.parent


class Source(Struct, frozen=True):
    """The source that a command's arguments name.

    `path` is read before the command works; None if only a project of a running manager was named. `root` is the key of
    the cache: for a single file it is the file, so that a cache of the file is not taken for one of its directory.
    `address` is the running manager's, or None for a manager of the command's own. `policy` is a part of the key of the
    cache, so that a cache that may have secrets is used only by commands that ask for them.
    """

    project: str
    path: Path | None
    root: Path
    address: str | None
    policy: SecretPolicy


def source_of(arguments: argparse.Namespace) -> Source:
    """Return the source that the arguments name. The default is the working directory.

    With both `--connect` and `--project` and no path, nothing is read: the project is used as the manager has it.
    """
    is_named = arguments.address is not None and arguments.project is not None and arguments.path is None
    path = None if is_named else Path(arguments.path or ".").absolute()
    name = arguments.project or project_name(source_root(path or Path()))
    address = None if arguments.address is None else resolve_address(arguments.address)
    return Source(name, path, (path or Path()).resolve(), address, secret_policy(arguments))


@contextmanager
def open_source(source: Source, *, workers: int | None = None, use_cache: bool = True) -> Generator[Client]:
    """Yield a client that sees the source's project only.

    `use_cache` applies to a manager of the command's own. A running manager is never started or stopped here.
    """
    if source.address is not None:
        with connect(source.address, [source.project]) as client:
            yield client
        return
    delete_unredacted(source.root)
    directory = cache_directory(source.root, source.policy) if use_cache else None
    with embedded_client(directory, source.project, workers=workers) as client:
        yield client
