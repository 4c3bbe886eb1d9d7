"""The data directory that a command is about."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        type=directory_path,
        required=True,
        help="required: the directory that was given to `stepwell serve --data-dir`; there is no default",
    )


def directory_path(given: str) -> Path:
    """One that holds whatever the working directory is."""
    if not given:
        raise argparse.ArgumentTypeError("it is empty: name a directory")
    return Path(given).absolute()
