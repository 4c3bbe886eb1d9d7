"""`stepwell backup TARGET --data-dir DIR`: a consistent copy of a data directory.

The manager may go on serving while the copy is made. The copy has the state of one revision, and its own epoch, so that
clients of the original do not take it for the same manager. The command prints the revision, the size and the time, and
how to serve the copy. A target that is not empty is refused and never overwritten.
"""

from __future__ import annotations

import argparse
import time
from typing import Final

from stepwell.cli.common.output import print_result
from stepwell.cli.common.state_directory import add_data_dir, directory_path
from stepwell.storage.backup import back_up

SUMMARY: Final = "Make a consistent copy of a data directory, also while its manager runs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="TARGET",
        type=directory_path,
        help="the new directory, for `stepwell serve --data-dir TARGET`",
    )
    add_data_dir(parser)


def run(arguments: argparse.Namespace) -> int:
    """Copy the directory and print what was copied."""
    began_s = time.monotonic()
    copied = back_up(arguments.data_dir, arguments.target)
    seconds = time.monotonic() - began_s
    print_result(
        f"copied revision {copied.revision:,}, {copied.bytes:,} bytes in {seconds:.1f} s, as epoch {copied.epoch}"
    )
    print_result(f"serve it with stepwell serve --data-dir {str(arguments.target)!r}")
    return 0
