"""Where a manager is when nobody says."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from stepwell.errors import InvalidArgument


def add_address(parser: argparse.ArgumentParser, help_: str = "path of the manager's socket") -> None:
    """Which manager is meant. The option is called as by whoever serves, and as by whoever connects."""
    parser.add_argument("--connect", "--address", dest="address", metavar="SOCKET", help=help_)


def resolve_address(given: str | None) -> str:
    """The address given, as one that holds in every directory; or this user's own."""
    return str(Path(given).absolute()) if given else str(default_address())


def default_address() -> Path:
    """`$XDG_RUNTIME_DIR/stepwell/manager.sock`, or in the temporary directory a directory of this user's own."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "stepwell" / "manager.sock"
    directory = Path(tempfile.gettempdir()) / f"stepwell-{os.getuid()}"
    # Anybody may have made it first: neither serve in it nor trust what serves there.
    if directory.exists() and directory.stat().st_uid != os.getuid():
        raise InvalidArgument(f"the directory {str(directory)!r} is somebody else's: give --address")
    return directory / "manager.sock"
