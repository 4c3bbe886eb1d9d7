"""The arguments and options that the commands of `stepwell log` share, and how they print entries."""

from __future__ import annotations

import base64
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, Final

from stepwell.cli.common.addresses import resolve_address
from stepwell.cli.common.completions import complete_projects
from stepwell.cli.common.output import write_result
from stepwell.cli.common.parameters import argument, option, whole_number
from stepwell.client.api.log_entries import StoredLogEntry
from stepwell.client.api.logs import Log
from stepwell.client.client import connect

ENTRY_KEYS: Final = "`position`, `kind`, `metadata`, `appended_at_ms`, and `text`, or `base64` if it is no text"

LogName = Annotated[str, argument("LOG", "name of the log")]
Project = Annotated[str, option("--project", metavar="NAME", about="project of the log", complete=complete_projects)]
ExpectedHead = Annotated[
    int | None,
    option(
        "--expected-head",
        metavar="N",
        about="refuse, unless the log has this head: the one that --json told; 0: it must not exist",
        parse=whole_number,
    ),
]


@contextmanager
def opened_log(address: str | None, project: str, name: str) -> Generator[Log]:
    """Yield a log of a running manager."""
    with connect(resolve_address(address), [project]) as client:
        yield client.log(name)


def print_entry(entry: StoredLogEntry) -> None:
    """Print the body of an entry, on lines of its own. Bytes that are no text are shown as replacement characters."""
    text = str(entry.body, "utf-8", "replace")
    write_result(text if text.endswith("\n") else f"{text}\n")


def entry_json(entry: StoredLogEntry) -> dict[str, object]:
    """Return an entry as a JSON object."""
    try:
        body = {"text": entry.text}
    except UnicodeDecodeError:
        body = {"base64": base64.b64encode(entry.body).decode()}
    return {
        "position": entry.position,
        "kind": entry.kind,
        "metadata": dict(entry.metadata),
        "appended_at_ms": entry.row.at_ms,
        **body,
    }
