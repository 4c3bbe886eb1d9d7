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

import time
from pathlib import Path
from typing import Annotated, Final

from stepwell import limits
from stepwell.cli.common import progress_bar
from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.output import print_error, print_result, print_struct
from stepwell.cli.common.parameters import JSON_ABOUT, argument, flag
from stepwell.cli.common.secret_options import IncludeSecrets, RedactEntropy, report_left_out, secret_policy
from stepwell.cli.common.source import SourceProject, source_root
from stepwell.client.api.views import View
from stepwell.client.client import Client, connect
from stepwell.errors import StepwellError
from stepwell.ingest.inventory import project_name
from stepwell.ingest.report import IngestReport
from stepwell.ingest.secret_policy import SecretPolicy
from stepwell.text import plural

app: Final = command_app()


@app.command(cls=ShellCommand)
def run(
    *,
    path: Annotated[str, argument("PATH", "a directory, or one file")],
    address: Address = None,
    project: SourceProject = None,
    include_secrets: IncludeSecrets = False,
    redact_entropy: RedactEntropy = False,
    watch: Annotated[bool, flag("--watch", "look again and again, until Ctrl-C")] = False,
    json: Annotated[bool, flag("--json", f"{JSON_ABOUT}; with --watch, a line each")] = False,
) -> int:
    """The project is one of a running manager. Only files that changed since the last time are read. Ctrl-C ends
    --watch with exit code 0.
    """
    policy = secret_policy(include_secrets=include_secrets, redact_entropy=redact_entropy)
    root = Path(path).absolute()
    name = project or project_name(source_root(root))
    with connect(resolve_address(address), [name]) as client:
        if watch:
            return _watch(client, root, policy, as_json=json)
        report = _ingest(client, root, policy)
        report_left_out(report)
        _print_report(report, as_json=json)
    return 0


def _ingest(client: Client, path: Path, policy: SecretPolicy) -> IngestReport:
    """Read the path once, with a progress bar."""
    with progress_bar.count_bar() as on_progress:
        return client.ingest(
            path,
            include_secrets=policy is SecretPolicy.INCLUDE,
            redact_entropy=policy is SecretPolicy.REDACT_ENTROPY,
            on_progress=on_progress,
        )


def _watch(client: Client, path: Path, policy: SecretPolicy, *, as_json: bool) -> int:
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
                report = _ingest(client, path, policy)
                has_changed = is_first or report.is_changed
                if report.secrets != left_out:  # said once, and again when there are others
                    report_left_out(report)
                    left_out = report.secrets
                if has_changed:
                    _print_report(report, as_json=as_json)
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
        f"{report.project}: {plural(report.added, 'file')} added, {report.changed:,} changed, "
        f"{report.deleted:,} deleted, {report.unchanged:,} unchanged, {report.skipped_count:,} skipped; "
        f"{plural(report.fragments, 'fragment')}, {plural(report.tokens, 'token')}{_redacted_text(report)} "
        f"({report.seconds:.1f} s)"
    )
    for source, reason in [*report.skipped.items()][: limits.SKIPPED_SHOWN_BY_INGEST]:
        print_error(f"skipped {source}: {reason}")
    if (more := report.skipped_count - limits.SKIPPED_SHOWN_BY_INGEST) > 0:
        print_error(f"skipped {more:,} more: --json names them")


def _redacted_text(report: IngestReport) -> str:
    """Return the number of redacted secrets as a part of the line; empty if there are none."""
    return f", {plural(report.redacted, 'secret')} redacted" if report.redacted else ""
