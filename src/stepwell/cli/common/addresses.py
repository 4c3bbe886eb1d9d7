"""The address of the manager: the option, and its default.

`stepwell serve` without an address listens where every other command without an address connects, so that a single user
needs no address at all.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from stepwell.errors import InvalidArgument


def add_address(parser: argparse.ArgumentParser, help_: str = "path of the manager's socket") -> None:
    """Add the option that names a manager. It has two spellings: `--address` as in `serve`, and `--connect`."""
    parser.add_argument("--connect", "--address", dest="address", metavar="SOCKET", help=help_)


def resolve_address(given: str | None) -> str:
    """Return the given address as an absolute path, or the default address of this user.

    The path is absolute because it is printed, and the user may paste it into a shell in another directory.
    """
    return str(Path(given).absolute()) if given else str(default_address())


def default_address() -> Path:
    """Return `$XDG_RUNTIME_DIR/stepwell/manager.sock`, or a path in this user's own directory below the temporary
    directory.

    Raise `InvalidArgument` if that directory belongs to another user.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "stepwell" / "manager.sock"
    directory = Path(tempfile.gettempdir()) / f"stepwell-{os.getuid()}"
    # Every user can create this name in a shared temporary directory. Serving there would show our socket to its owner;
    # connecting would trust a manager that is not ours.
    if directory.exists() and directory.stat().st_uid != os.getuid():
        raise InvalidArgument(f"the directory {str(directory)!r} belongs to another user: give --address")
    return directory / "manager.sock"
