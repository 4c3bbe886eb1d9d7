"""`stepwell ingest PATH`: bring a project of a running manager up to date with the files of a directory.

It prints one line: how many files were added, changed, deleted, unchanged and skipped, and how many fragments and
tokens they have. Skipped files are named on stderr with the reason, and so are secret files that were left out. With
`--watch` it repeats this until Ctrl-C and prints a line whenever something has changed; with `--json` each line is an
object.

It polls instead of using inotify, because inotify misses changes on network file systems and needs one watch for each
directory. The pause grows while nothing changes, and is a multiple of the time that a pass takes, so a large tree costs
a tenth of a core at most.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Final

from stepwell import limits
from stepwell.cli.common import progress_bar
from stepwell.cli.common.addresses import add_address, resolve_address
from stepwell.cli.common.output import print_error, print_result, print_struct
from stepwell.cli.common.secret_options import add_secret_options, report_left_out
from stepwell.cli.common.source import source_root
from stepwell.client.api.views import View
from stepwell.client.client import Client, connect
from stepwell.client.workflows.ingest import IngestReport
from stepwell.errors import StepwellError
from stepwell.ingest.inventory import project_name

SUMMARY: Final = "Bring a project up to date with the files of a directory"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="a directory, or one file")
    add_address(parser)
    parser.add_argument("--project", metavar="NAME", help="(default: as the directory is named)")
    add_secret_options(parser)
    parser.add_argument("--watch", action="store_true", help="look again and again, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="one JSON object, for machines; with --watch, a line each")


def run(arguments: argparse.Namespace) -> int:
    """Read the path once, or with `--watch` until Ctrl-C, which is exit code 0."""
    path = Path(arguments.path).absolute()
    project: str = arguments.project or project_name(source_root(path))
    with connect(resolve_address(arguments.address), [project]) as client:
        if arguments.watch:
            return _watch(client, path, arguments)
        report = _ingest(client, path, arguments)
        report_left_out(report)
        _print_report(report, as_json=arguments.json)
    return 0


def _ingest(client: Client, path: Path, arguments: argparse.Namespace) -> IngestReport:
    """Read the path once, with a progress bar."""
    with progress_bar.count_bar() as on_progress:
        return client.ingest(
            path,
            include_secrets=arguments.include_secrets,
            redact_entropy=arguments.redact_entropy,
            on_progress=on_progress,
        )


def _watch(client: Client, path: Path, arguments: argparse.Namespace) -> int:
    """Read the path again and again until Ctrl-C, and return 0.

    An error in one pass is reported, and the next pass may succeed: the manager may be restarting, or a directory
    may be in the middle of a move.
    """
    pause_s = limits.INGEST_PAUSE_SECONDS
    is_first = True
    seen: View | None = None
    left_out: dict[str, str] = {}
    try:
        while True:
            begun_s = time.monotonic()
            try:
                report = _ingest(client, path, arguments)
                has_changed = is_first or report.is_changed
                if report.secrets != left_out:  # said once, and again when there are others
                    report_left_out(report)
                    left_out = report.secrets
                if has_changed:
                    _print_report(report, as_json=arguments.json)
                is_first = False
                if has_changed or seen is None:
                    seen = client.view()  # held, so that the next pass replays only the changes since
            except (StepwellError, OSError) as error:
                print_error(f"{error}; trying again")
                has_changed = False
            # A change resets the pause, because more changes tend to follow. Without changes the pause doubles up to a
            # bound.
            taken_s = time.monotonic() - begun_s
            longest_s = max(limits.INGEST_PAUSE_SECONDS_MAX, taken_s * limits.INGEST_PAUSE_RATIO)
            pause_s = limits.INGEST_PAUSE_SECONDS if has_changed else min(2 * pause_s, longest_s)
            time.sleep(max(pause_s, taken_s * limits.INGEST_PAUSE_RATIO))
    except KeyboardInterrupt:
        return 0


def _print_report(report: IngestReport, *, as_json: bool) -> None:
    """Print the report of one pass, and name a few of the skipped files."""
    if as_json:
        print_struct(report)
        return
    print_result(
        f"{report.project}: {report.added:,} files added, {report.changed:,} changed, {report.deleted:,} deleted, "
        f"{report.unchanged:,} unchanged, {report.skipped_count:,} skipped; "
        f"{report.fragments:,} fragments, {report.tokens:,} tokens{_redacted_text(report)} ({report.seconds:.1f} s)"
    )
    for source, reason in [*report.skipped.items()][: limits.SKIPPED_SHOWN_BY_INGEST]:
        print_error(f"skipped {source}: {reason}")
    if (more := report.skipped_count - limits.SKIPPED_SHOWN_BY_INGEST) > 0:
        print_error(f"skipped {more:,} more: --json names them")


def _redacted_text(report: IngestReport) -> str:
    """Return the number of redacted secrets as a part of the line; empty if there are none."""
    return f", {report.redacted:,} secrets redacted" if report.redacted else ""
