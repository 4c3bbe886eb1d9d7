"""`stepwell backup`: a copy of a data directory, whether or not a manager is running on it."""

from __future__ import annotations

import argparse
import time
from typing import Final

from stepwell.cli.common.output import print_result
from stepwell.cli.common.state_directory import add_data_dir, directory_path
from stepwell.storage.backup import back_up

SUMMARY: Final = "Copy a data directory, consistently, while its manager goes on"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="TARGET",
        type=directory_path,
        help="the new directory, for `stepwell serve --data-dir TARGET`",
    )
    add_data_dir(parser)


def run(arguments: argparse.Namespace) -> int:
    began_s = time.monotonic()
    copied = back_up(arguments.data_dir, arguments.target)
    seconds = time.monotonic() - began_s
    print_result(
        f"copied revision {copied.revision:,}, {copied.bytes:,} bytes in {seconds:.1f} s, as epoch {copied.epoch}"
    )
    print_result(f"serve it with stepwell serve --data-dir {str(arguments.target)!r}")
    return 0
