"""The option that names a manager.

`stepwell serve` without an address listens where every other command without an address connects, and where
`stepwell.connect()` does: see `transport.address.default_address`. So a single user needs no address at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from stepwell.cli.common.parameters import address_option
from stepwell.transport.address import ADDRESS_VARIABLE, default_address

Address = Annotated[
    str | None, address_option(f"path of the manager's socket (default: {ADDRESS_VARIABLE}, or this user's own)")
]


def resolve_address(given: str | None) -> str:
    """Return the given address as an absolute path, or the default address.

    The path is absolute because it is printed, and the user may paste it into a shell in another directory.
    """
    return str(Path(given).absolute()) if given else default_address()
