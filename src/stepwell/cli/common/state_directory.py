"""The option `--data-dir` of the commands that work on a data directory, without a manager."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    """Add the option. It is required, because a default could make a command check or copy the wrong directory."""
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        type=directory_path,
        required=True,
        help="required: the directory that was given to `stepwell serve --data-dir`; there is no default",
    )


def directory_path(given: str) -> Path:
    """Return the path as an absolute one, for argparse. An empty text, often an unset variable of a script, is
    refused.
    """
    if not given:
        raise argparse.ArgumentTypeError("it is empty: name a directory")
    return Path(given).absolute()
