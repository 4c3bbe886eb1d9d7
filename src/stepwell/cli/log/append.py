"""`stepwell log append LOG [TEXT...]`: append entries, given as arguments or on stdin.

Each argument is an entry. Without one, each line of stdin is; `--whole` makes all of stdin one entry. Lines are
appended as they come, so that the output of a program can be followed while it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from io import BufferedReader
from typing import Annotated, Final, cast

from stepwell import limits
from stepwell.cli.common.addresses import Address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.error_report import reports_errors
from stepwell.cli.common.output import print_json, print_result
from stepwell.cli.common.parameters import NameValue, argument, flag, json_flag, name_value, option
from stepwell.cli.log.exit_codes import EXIT_CODES
from stepwell.cli.log.options import ExpectedHead, LogName, Project, opened_log
from stepwell.domain.logs.model import LogEntry
from stepwell.errors import InvalidArgument
from stepwell.text import plural

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    name: LogName,
    texts: Annotated[list[str] | None, argument("TEXT", "an entry each (default: a line of stdin each)")] = None,
    project: Project,
    whole: Annotated[bool, flag("--whole", "all of stdin is one entry, and may be bytes that are no text")] = False,
    kind: Annotated[str, option("--kind", metavar="LABEL", about="kind of the entries")] = "text",
    metadata: Annotated[
        list[NameValue] | None,
        option(
            "--metadata",
            metavar="NAME=VALUE",
            about="metadata of each entry; may be given several times",
            parse=name_value,
        ),
    ] = None,
    expected_head: ExpectedHead = None,
    address: Address = None,
    json: Annotated[bool, json_flag("`entries`, their number, `first_position`, `last_position` and `head`")] = False,
) -> int:
    """With --expected-head, all of them are appended in one step, at most 256. Otherwise any number of lines, in
    several.
    """
    labels = dict[str, str](metadata or [])
    count = first = last = head = 0
    with opened_log(address, project, name) as log:
        for bodies in _groups(texts, whole=whole, is_one=expected_head is not None):
            appended = log.append(*(LogEntry(body, kind, labels) for body in bodies), expected_head=expected_head)
            count, head = count + len(appended.positions), appended.head
            first, last = first or appended.first_position, appended.last_position
    if json:
        print_json({"entries": count, "first_position": first, "last_position": last, "head": head})
    elif count:
        print_result(f"appended {plural(count, 'entry', 'entries')} up to position {last}")
    return 0


def _groups(texts: list[str] | None, *, whole: bool, is_one: bool) -> Iterator[Sequence[str | bytes]]:
    """Yield the bodies of each append: the arguments, all of stdin, or its lines, as many as have come.

    With `is_one` there is one group, however many bodies it has.
    """
    if texts and whole:
        raise InvalidArgument("--whole is for stdin: give no TEXT with it")
    if whole:
        yield [sys.stdin.buffer.read()]
    elif texts or is_one:
        given: Sequence[str | bytes] = texts or [line for lines in _lines() for line in lines]
        size = len(given) if is_one else limits.LOG_APPENDED_MAX
        yield from (given[start : start + size] for start in range(0, len(given), size))
    else:
        for lines in _lines():
            yield from (
                lines[start : start + limits.LOG_APPENDED_MAX]
                for start in range(0, len(lines), limits.LOG_APPENDED_MAX)
            )


def _lines() -> Iterator[Sequence[bytes]]:
    """Yield the lines of stdin without their ends: those that are there whenever there are any."""
    rest, stdin = b"", cast("BufferedReader", sys.stdin.buffer)
    while part := stdin.read1(limits.RECEIVE_BYTES_CLIENT):
        *lines, rest = (rest + part).split(b"\n")
        yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]
