"""`stepwell prove`: record what many processes see of a manager, and judge if one order of all calls explains it.

It starts a manager of its own, and with `--kill` kills it again and again, or it uses a running one with `--connect`.
Worker processes make seeded random calls for some seconds and record them. Each history is then judged without the
manager's revisions, by values and outcomes only (see `stepwell.prove`). The same workload runs for a few seconds on
what programs use without a manager, and the table has both verdicts, with the smallest illegal part of each illegal
history below it.

The exit code is that of the verdict about stepwell: 0 if every history is legal, 1 if one is not, or if one could not
be judged. The peers do not matter for it.
"""

from __future__ import annotations

import math
import secrets
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
from msgspec import Struct
from rich import box
from rich.table import Table

from stepwell import limits
from stepwell.cli.common import progress_bar
from stepwell.cli.common.addresses import resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.console import result_console
from stepwell.cli.common.exit_codes import FAILED
from stepwell.cli.common.output import print_struct, write_result
from stepwell.cli.common.parameters import JsonFlag, address_option, decimal_number, flag, option, whole_number
from stepwell.cli.common.state_directory import directory_path
from stepwell.errors import InvalidArgument, StepwellError
from stepwell.prove import peers
from stepwell.prove.history import History, read_history, write_history
from stepwell.prove.report import timeline
from stepwell.prove.search import SearchResult
from stepwell.prove.trial import TrialSettings, run_trial
from stepwell.prove.verdict import HistoryVerdict, judge
from stepwell.text import plural

app: Final = command_app()

_NOT_INSTALLED: Final = "not installed"
_SIGNALLED: Final = 128  # plus the number of the signal, by the convention of shells


class _Judged(Struct, frozen=True):
    """A subject with its history and the verdict about it; None for a peer that is not installed."""

    name: str
    verdict: HistoryVerdict | None = None
    history: History | None = None

    @property
    def result(self) -> str:
        """The verdict in a word or two."""
        return _NOT_INSTALLED if self.verdict is None else self.verdict.result.value

    @property
    def illegal_part(self) -> list[str] | None:
        """The lines that show the smallest illegal part of the history; None if it is legal."""
        example = self.verdict and self.verdict.counterexample
        return timeline(example) if example else None


def _seconds(text: str) -> float:
    """Return a time that a run may take."""
    seconds = decimal_number(text)
    if not 0 < seconds <= limits.PROVE_SECONDS_MAX:
        raise typer.BadParameter(f"{text!r} is not a number of seconds up to {limits.PROVE_SECONDS_MAX:g}")
    return seconds


def _count(largest: int) -> Callable[[str], int]:
    """Return a function that converts a number from 1 on."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= largest:
            raise typer.BadParameter(f"{text!r} is not a number from 1 to {largest}")
        return int(text)

    return parse


@app.command(cls=ShellCommand)
def run(
    *,
    seconds: Annotated[
        float, option("--seconds", metavar="S", about="time to record stepwell for", parse=_seconds)
    ] = 30.0,
    processes: Annotated[
        int,
        option("--processes", metavar="N", about="processes that call", parse=_count(limits.PROVE_PROCESSES_MAX)),
    ] = 4,
    threads: Annotated[
        int, option("--threads", metavar="M", about="threads of each", parse=_count(limits.PROVE_THREADS_MAX))
    ] = 2,
    kill: Annotated[bool, flag("--kill", "kill the manager with SIGKILL again and again, and restart it")] = False,
    data_dir: Annotated[
        Path | None,
        option(
            "--data-dir",
            metavar="DIR",
            parse=directory_path,
            about="with --kill: a new directory for the state, which stays (default: a temporary one)",
        ),
    ] = None,
    address: Annotated[
        str | None, address_option("path of a running manager's socket (default: a manager of its own)")
    ] = None,
    seed: Annotated[
        int | None, option("--seed", metavar="N", about="choose the same calls again", parse=whole_number)
    ] = None,
    no_read_index: Annotated[
        bool, flag("--no-read-index", "start the manager so that every read of a client is a request")
    ] = False,
    no_peers: Annotated[bool, flag("--no-peers", "leave out the same workload on a shared dict and on SQLite")] = False,
    keep: Annotated[
        Path | None, option("--keep", metavar="FILE", about="write the history of stepwell to a file", parse=Path)
    ] = None,
    again: Annotated[
        Path | None, option("--judge", metavar="FILE", about="judge a kept history, and run nothing", parse=Path)
    ] = None,
    json: JsonFlag = False,
) -> int:
    """The exit code is 0 if every history of stepwell is legal, and 1 if one is not; the smallest illegal part is
    printed. A manager that is given with --connect gets a project and plans of this command; the fragments are deleted
    and the plans cancelled at the end.
    """
    _check(address, data_dir, keep, again, kill=kill, no_read_index=no_read_index)
    if again is not None:
        judged = [_judge(_read(again))]
    else:
        settings = TrialSettings(
            seconds=seconds,
            processes=processes,
            threads=threads,
            seed=secrets.randbits(32) if seed is None else seed,
            kill=kill,
            address=None if address is None else resolve_address(address),
            data_dir=None if data_dir is None else str(data_dir),
            read_index=not no_read_index,
        )
        with _ended_by_sigterm():
            judged = [_tried(settings, keep), *([] if no_peers else _tried_peers(settings))]
    if json:
        print_struct(_json_object(judged))
    else:
        _print(judged)
    return 0 if judged[0].result == SearchResult.LEGAL else FAILED


def _check(
    address: str | None,
    data_dir: Path | None,
    keep: Path | None,
    again: Path | None,
    *,
    kill: bool,
    no_read_index: bool,
) -> None:
    """Refuse options that contradict each other, before anything is started."""
    if address is not None and kill:
        raise InvalidArgument("--kill is for a manager of the command's own: leave out --connect, or --kill")
    if data_dir is not None and not kill:
        raise InvalidArgument("--data-dir is for --kill: without kills the state is in memory")
    if no_read_index and (address is not None or again is not None):
        raise InvalidArgument("--no-read-index is for a manager of the command's own: leave out --connect and --judge")
    if again is not None and (kill or address is not None or keep is not None):
        raise InvalidArgument("--judge runs nothing: leave out --kill, --connect and --keep")
    if keep is not None and not keep.absolute().parent.is_dir():
        raise InvalidArgument(f"{keep} cannot be written: there is no such directory")


@contextmanager
def _ended_by_sigterm() -> Generator[None]:
    """End by an exception at SIGTERM, with which CI ends a command: so no temporary directory is left."""

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(_SIGNALLED + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _read(path: Path) -> History:
    """Return a kept history."""
    try:
        return read_history(path)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from error


def _tried(settings: TrialSettings, keep: Path | None = None) -> _Judged:
    """Run the workload on a subject, and judge what was recorded."""
    with _elapsed_bar(settings) as on_elapsed:
        history = run_trial(settings, on_elapsed)
    if keep is not None:
        try:
            write_history(keep, history)
        except OSError as error:
            raise StepwellError(f"{keep} cannot be written: {error.strerror}") from error
    return _judge(history)


def _tried_peers(settings: TrialSettings) -> list[_Judged]:
    """Run the same workload on each peer that is installed, for a shorter time: they fail early."""
    short = min(settings.seconds, limits.PROVE_PEER_SECONDS_MAX)
    return [
        _tried(
            TrialSettings(
                subject=peer,
                seconds=short,
                processes=settings.processes,
                threads=settings.threads,
                seed=settings.seed,
            )
        )
        if peers.is_installed(peer)
        else _Judged(peer)
        for peer in (peers.DICT, peers.SQLITE)
    ]


def _judge(history: History) -> _Judged:
    """Judge a history, with a bar."""
    with progress_bar.count_bar("judging") as advance:
        verdict = judge(history, lambda done, total: advance(done, total, ""))
    return _Judged(history.header.subject, verdict, history)


@contextmanager
def _elapsed_bar(settings: TrialSettings) -> Generator[Callable[[float], None]]:
    """Yield a callback that moves a bar of seconds."""
    with progress_bar.count_bar(f"recording {settings.subject}") as advance:
        yield lambda elapsed_s: advance(math.floor(elapsed_s), math.ceil(settings.seconds), "")


def _json_object(judged: list[_Judged]) -> dict[str, object]:
    """Return the object for `--json`."""
    header = judged[0].history.header if judged[0].history else None
    assert header is not None, "the first subject has a history"
    return {
        "verdict": judged[0].result,
        "seed": header.seed,
        "seconds": header.seconds,
        "processes": header.processes,
        "threads": header.threads,
        "kills": header.kills,
        "subjects": [_subject_object(each) for each in judged],
    }


def _subject_object(judged: _Judged) -> dict[str, object]:
    """Return the part of the object that is about one subject."""
    found: dict[str, object] = {"subject": judged.name, "verdict": judged.result}
    if judged.verdict is not None:
        names = ("histories", "watched", "calls", "unknown", "illegal", "undecided")
        found |= {name: getattr(judged.verdict, name) for name in names}
        found["illegal_part"] = judged.illegal_part
    return found


def _print(judged: list[_Judged]) -> None:
    """Print the table of verdicts, and below it the illegal parts."""
    result_console().print(_table(judged))
    for each in judged:
        if each.illegal_part is not None:
            lines = [f"the smallest illegal part of {each.name}:", *(f"  {line}" for line in each.illegal_part), ""]
            write_result("\n".join(lines) + "\n")


def _table(judged: list[_Judged]) -> Table:
    """Return a table with a row for each subject."""
    header = judged[0].history.header if judged[0].history else None
    assert header is not None, "the first subject has a history"
    kills = f", {plural(header.kills, 'kill')}" if header.kills else ""
    table = Table(
        title=f"{plural(header.processes, 'process', 'processes')}, {plural(header.threads, 'thread')} each{kills}, "
        f"seed {header.seed}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("subject")
    for heading in ("histories", "calls", "unknown outcomes", "illegal", "undecided"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for each in judged:
        found = each.verdict
        counts = [] if found is None else [found.histories, found.calls, found.unknown, found.illegal, found.undecided]
        cells = [f"{count:,}" for count in counts] or [""] * 5
        table.add_row(each.name, *cells, each.result)
    return table
