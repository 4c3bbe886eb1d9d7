"""`stepwell backup TARGET --data-dir DIR`: a consistent copy of a data directory.

The manager may go on serving while the copy is made. The copy has the state of one revision, and its own epoch, so that
clients of the original do not take it for the same manager. The command prints the revision, the size and the time, and
how to serve the copy. A target that is not empty is refused and never overwritten.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final

from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.output import print_result
from stepwell.cli.common.parameters import argument
from stepwell.cli.common.state_directory import DataDir, directory_path
from stepwell.storage.backup import back_up

app: Final = command_app()


@app.command(cls=ShellCommand)
def run(
    *,
    target: Annotated[
        Path,
        argument("TARGET", "the new directory, for `stepwell serve --data-dir TARGET`", parse=directory_path),
    ],
    data_dir: DataDir,
) -> int:
    """The copy has the state of one revision, and its own epoch. A target that is not empty is refused."""
    began_s = time.monotonic()
    copied = back_up(data_dir, target)
    seconds = time.monotonic() - began_s
    print_result(
        f"copied revision {copied.revision:,}, {copied.bytes:,} bytes in {seconds:.1f} s, as epoch {copied.epoch}"
    )
    print_result(f"serve it with stepwell serve --data-dir {str(target)!r}")
    return 0
