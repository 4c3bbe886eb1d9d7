"""The source of a command's fragments: a path with an index in the cache, or a project of a running manager.

`assemble`, `why` and `diff` share these options. Without `--connect` the command uses the index of the path
(`stepwell.directory_index`), and no manager. With `--connect` it asks the running one; a PATH is then read into that
manager first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from msgspec import Struct

from stepwell.cli.common.completions import complete_projects
from stepwell.cli.common.parameters import address_option, argument, option
from stepwell.errors import InvalidArgument
from stepwell.ingest.inventory import project_name
from stepwell.ingest.secret_policy import SecretPolicy

_PATH_ABOUT: Final = "a directory, or one file (default: this directory)"

SourcePath = Annotated[str | None, argument("PATH", _PATH_ABOUT)]
SourcePathOption = Annotated[str | None, option("--path", metavar="PATH", about=_PATH_ABOUT)]
SourceAddress = Annotated[
    str | None,
    address_option("path of a running manager's socket (default: none, but an index of the directory in the cache)"),
]
SourceProject = Annotated[
    str | None,
    option(
        "--project",
        metavar="NAME",
        about="name of the project (default: that of the directory)",
        complete=complete_projects,
    ),
]


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
    `address` is the running manager's, or None for the index of the path. `policy` is a part of the key of the cache,
    so that a cache that may have secrets is used only by commands that ask for them.
    """

    project: str
    path: Path | None
    root: Path
    address: str | None
    policy: SecretPolicy


def the_path(given: str | None, option_: str | None) -> str | None:
    """Return the path that a user gave, as an argument or as an option. Raise `InvalidArgument` for both."""
    if given is not None and option_ is not None:
        raise InvalidArgument(f"the path is {given!r}, and with --path {option_!r}: give one of them")
    return given if option_ is None else option_


def source_of(path: str | None, address: str | None, project: str | None, policy: SecretPolicy) -> Source:
    """Return the source that the options of a command name. The default is the working directory.

    With both an address and a project and no path, nothing is read: the project is used as the manager has it.
    """
    is_named = address is not None and project is not None and path is None
    read = None if is_named else _absolute(Path(path or "."))
    name = project or project_name(source_root(read or Path()))
    return Source(name, read, (read or Path()).resolve(), _resolved(address), policy)


def _absolute(path: Path) -> Path:
    """Return the path as an absolute one. Raise `InvalidArgument` if the working directory is gone."""
    try:
        return path.absolute()
    except OSError as error:
        raise InvalidArgument(f"the working directory cannot be read: {error}: give an absolute PATH") from None


def _resolved(address: str | None) -> str | None:
    """Return the absolute path of the manager's socket, if a manager is named."""
    if address is None:
        return None
    from stepwell.cli.common.addresses import resolve_address  # noqa: PLC0415 - most questions name no manager

    return resolve_address(address)
