"""A trial: worker processes run the workload on one subject, and their records become one history.

The subject is a manager of the trial's own, one that is killed again and again, one that runs already, or a peer. All
worker processes connect first. Then they are given one time at which all of them begin, so that their rounds agree.
"""

from __future__ import annotations

import contextlib
import random
import select
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec import Struct

from stepwell import limits
from stepwell.client.client import Client, connect
from stepwell.domain.plans.model import Plan
from stepwell.domain.tiers.model import Fragment
from stepwell.errors import AlreadyExists, PlanNotReady, StartFailed, StepwellError
from stepwell.identifiers import new_id
from stepwell.process import ChildProcess, describe_exit
from stepwell.prove import peers
from stepwell.prove.history import AnyRecord, History, TrialHeader, history_of, read_records
from stepwell.prove.lane import LaneSettings
from stepwell.prove.recorder import END_KEY
from stepwell.prove.restarts import KillableManager
from stepwell.prove.worker import STEPWELL, TrialReport, TrialWorkerSettings
from stepwell.prove.workload import rounds_in
from stepwell.runtime import Runtime
from stepwell.telemetry import LogLevel

OnElapsed = Callable[[float], None]
"""Called several times a second with the seconds since the beginning of the run."""

_WORKER: Final = "stepwell.prove.worker"
_ACTION: Final = "local/stepwell-prove"
_BEGIN_SECONDS: Final = 0.05


class TrialSettings(Struct, frozen=True):
    """The settings of a trial. `address` names a running manager, which is never killed. `data_dir` is the directory of
    a manager that is killed; it stays, and the default is a temporary one. Without `read_index`, the trial's own
    manager gets a request for each read.
    """

    subject: str = STEPWELL
    seconds: float = 30.0
    processes: int = 4
    threads: int = 2
    seed: int = 0
    kill: bool = False
    address: str | None = None
    data_dir: str | None = None
    read_index: bool = True


class _Subject(Struct, frozen=True):
    """A subject that is ready: where it is, what its calls name, and the manager to kill, if it is to be killed."""

    address: str
    project: str
    plans: tuple[str, ...]
    killable: KillableManager | None = None
    client: Client | None = None


def run_trial(settings: TrialSettings, on_elapsed: OnElapsed | None = None) -> History:
    """Run the workload on a subject, and return what was recorded. Nothing of it is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="stepwell-prove-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        with _prepared(settings, directory) as subject:
            records = _recorded(settings, subject, directory, on_elapsed or (lambda _elapsed_s: None))
            kills = subject.killable.kills if subject.killable else 0
    header = TrialHeader(settings.subject, settings.seed, settings.processes, settings.threads, settings.seconds, kills)
    return history_of(header, records)


@contextmanager
def _prepared(settings: TrialSettings, directory: Path) -> Generator[_Subject]:
    """Start a subject, or connect to it, and create the plans of the run."""
    count = min(rounds_in(settings.seconds, peers.round_ms_of(settings.subject)), limits.PROVE_PLANS_MAX)
    if settings.subject != STEPWELL:
        with peers.serve_peer(settings.subject, directory) as address:
            yield _Subject(address, "", tuple(map(str, range(count))))
        return
    project = f"stepwell-prove-{new_id()}"
    with contextlib.ExitStack() as stack:
        killable: KillableManager | None = None
        if settings.address is not None:
            address = settings.address
        elif settings.kill:
            killable = stack.enter_context(
                KillableManager(directory, settings.data_dir, read_index=settings.read_index)
            )
            address = killable.address
        else:
            runtime = Runtime.start(workers=0, log_level=LogLevel.ERROR, read_index=settings.read_index)
            address = stack.enter_context(runtime).address
        client = stack.enter_context(connect(address, [project]))
        plans = _plans(client, project, count)
        if settings.address is not None:
            stack.callback(_clean, client, project, plans)
        yield _Subject(address, project, plans, killable, client)


def _plans(client: Client, project: str, count: int) -> tuple[str, ...]:
    """Create the plans of a run, and return their ids."""
    with contextlib.suppress(AlreadyExists):
        client.plans.create_action(
            _ACTION,
            description="A plan for which the processes of `stepwell prove` compete",
            definition_of_done="The history is judged",
            strategy_actor=_ACTION,
            execution_actor=_ACTION,
        )
    found: list[Plan] = []
    for start in range(0, count, limits.STREAM_COMMANDS):
        with client.batch() as batch:
            size = min(limits.STREAM_COMMANDS, count - start)
            pending = [batch.plans.use_action(_ACTION, projects=[project]) for _ in range(size)]
        found += [each.result() for each in pending]
    return tuple(each.plan_id for each in found)


def _clean(client: Client, project: str, plans: Iterable[str]) -> None:
    """Delete the fragments of a run from a manager that goes on, and cancel its plans, which retention then deletes."""
    keys = [row.fragment_id for row in client.tiers.scoped(project=project)]
    for start in range(0, len(keys), limits.STREAM_COMMANDS):
        with client.batch() as batch:
            for key in keys[start : start + limits.STREAM_COMMANDS]:
                batch.tiers.delete(key, project=project)
    for plan_id in plans:
        with contextlib.suppress(PlanNotReady):  # it is cancelled already
            client.plans.cancel_plan(plan_id)


def _recorded(settings: TrialSettings, subject: _Subject, directory: Path, on_elapsed: OnElapsed) -> list[AnyRecord]:
    """Run all worker processes, and return what they have recorded."""
    paths = [directory / f"history-{number}.jsonl" for number in range(settings.processes)]
    with _Workers([_worker_settings(settings, subject, number, path) for number, path in enumerate(paths)]) as workers:
        workers.wait_for("ready", limits.PROVE_START_SECONDS_MAX)
        begin_s = time.monotonic() + _BEGIN_SECONDS
        workers.begin(round(begin_s * 1e9))
        kill = subject.killable.kill if subject.killable else None
        killer = _Killer(settings.seed, kill, begin_s)
        until_s = begin_s + settings.seconds

        def each_moment() -> None:
            now_s = time.monotonic()
            on_elapsed(min(max(0.0, now_s - begin_s), settings.seconds))
            if now_s < until_s:
                killer.kill_if_due(now_s)

        workers.wait_for("done", settings.seconds + limits.PROVE_START_SECONDS_MAX, each_moment)
        if subject.client is not None:
            subject.client.tiers.store(Fragment(fragment_id=END_KEY, project=subject.project, body=END_KEY, tokens=1))
        workers.wait_for_end()
    return [record for path in paths for record in read_records(path)]


def _worker_settings(settings: TrialSettings, subject: _Subject, number: int, path: Path) -> Callable[[int], str]:
    """Return a function that encodes the settings of a worker process, given the descriptor of its socket.

    The first process has a blocking watch, and the last one a watch of an event loop.
    """
    watches = [kind for kind, at in (("blocking", 0), ("asyncio", settings.processes - 1)) if at == number]

    def encode(socket_fd: int) -> str:
        worker = TrialWorkerSettings(
            subject=settings.subject,
            address=subject.address,
            project=subject.project,
            process=number,
            threads=settings.threads,
            lanes=LaneSettings(settings.seed, settings.seconds, subject.plans, peers.round_ms_of(settings.subject)),
            path=str(path),
            watches=tuple(watches) if subject.client is not None else (),
            socket_fd=socket_fd,
        )
        return msgspec.json.encode(worker).decode()

    return encode


class _Killer:
    """Kills a manager at seeded random moments. Without a manager to kill it does nothing."""

    def __init__(self, seed: int, kill: Callable[[], None] | None, begin_s: float) -> None:
        self._random = random.Random(seed)  # noqa: S311 - seeded, to be repeatable
        self._kill = kill
        self._next_s = begin_s + self._pause_s()

    def kill_if_due(self, now_s: float) -> None:
        """Kill the manager if it is time to."""
        if self._kill is not None and now_s >= self._next_s:
            self._kill()
            self._next_s = time.monotonic() + self._pause_s()

    def _pause_s(self) -> float:
        return self._random.uniform(limits.PROVE_KILL_SECONDS_MIN, limits.PROVE_KILL_SECONDS_MAX)


class _Workers:
    """The worker processes of a trial. At the end of the block none of them is left."""

    def __init__(self, settings: Sequence[Callable[[int], str]]) -> None:
        self._processes: list[ChildProcess] = []
        try:
            for encode in settings:
                self._processes.append(ChildProcess(_WORKER, encode))
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def begin(self, begin_ns: int) -> None:
        """Tell all processes when the run begins."""
        for process in self._processes:
            process.socket.sendall(str(begin_ns).encode())

    def wait_for(self, word: str, seconds: float, each_moment: Callable[[], None] | None = None) -> None:
        """Wait until all processes have reported a word; raise the error that one of them reports instead."""
        waiting = {process.socket.fileno(): process for process in self._processes}
        until_s = time.monotonic() + seconds
        while waiting:
            readable, _, _ = select.select([*waiting], [], [], limits.PROVE_POLL_SECONDS)
            for descriptor in readable:
                _require_word(waiting.pop(descriptor), word)
            if each_moment is not None:
                each_moment()
            if time.monotonic() > until_s:
                raise StartFailed(f"a worker process was not {word} within {seconds:g} s")

    def wait_for_end(self) -> None:
        """Wait until all processes have ended well; raise what one of them reports instead."""
        for process in self._processes:
            process.socket.settimeout(limits.PROVE_START_SECONDS_MAX)
            report = _report(process)
            if report.error or process.end(time.monotonic() + limits.MANAGER_END_SECONDS_MAX):
                raise _failure(process, report)

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            process.close()


def _report(process: ChildProcess) -> TrialReport:
    """Return the next report of a process, an empty one if it has ended."""
    received = process.socket.recv(limits.PROVE_REPORT_BYTES_MAX)
    return msgspec.json.decode(received, type=TrialReport) if received else TrialReport()


def _require_word(process: ChildProcess, word: str) -> None:
    """Read a report of a process; raise if it is another one."""
    report = _report(process)
    if report.word != word:
        raise _failure(process, report)


def _failure(process: ChildProcess, report: TrialReport) -> StepwellError:
    """Return the error of a process that has failed: the one that it reports, or the manner of its end."""
    ended = f"a worker process {describe_exit(process.wait() or 0)}; see its output above"
    return StepwellError(report.error or ended)
