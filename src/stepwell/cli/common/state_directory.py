"""Options that name a directory, such as `--data-dir` of the commands that work on one without a manager."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepwell.cli.common.parameters import option


def directory_path(given: str) -> Path:
    """Return the path as an absolute one. An empty text, often an unset variable of a script, is refused."""
    if not given:
        raise typer.BadParameter("it is empty: name a directory")
    return Path(given).absolute()


DataDir = Annotated[
    Path,
    option(
        "--data-dir",
        metavar="DIR",
        parse=directory_path,
        about="the directory that was given to `stepwell serve --data-dir`; there is no default, because it could be "
        "the wrong one",
    ),
]
