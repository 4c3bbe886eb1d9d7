"""Files, split by workers or here: whatever becomes of the workers, each file has an outcome."""

import gc
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.client.workflows import split_files
from stepwell.client.workflows.split_files import FileSplitter
from stepwell.ingest import files
from stepwell.ingest.files import FileRequest, FileSkipped, FileSplit, Outcome, SplitJob
from stepwell.ingest.secret_policy import SecretPolicy
from stepwell.pool.strategy.jobs import JOBS

TEXT = "def f():\n    return 1\n"


class Workers:
    """Take jobs as worker processes do; the test says what they do with them."""

    def __init__(self, work: Callable[[SplitJob], bytes]) -> None:
        self.work = work
        self.chores: list[SplitJob] = []

    def submit(self, payloads: Iterable[bytes]) -> Sequence[Future[bytes]]:
        return [self._future(payload) for payload in payloads]

    def _future(self, payload: bytes) -> Future[bytes]:
        chore = files.job_decoder.decode(payload)
        self.chores.append(chore)
        future: Future[bytes] = Future()
        try:
            future.set_result(self.work(chore))
        except TimeoutError:
            pass
        except Exception as error:  # noqa: BLE001 - it is what the future has
            future.set_exception(error)
        return future


def honest(chore: SplitJob) -> bytes:
    return JOBS[files.SPLIT_JOB](files.encoder.encode(chore))


def outcomes(root: Path, work: Callable[[SplitJob], bytes], names: Sequence[str]) -> list[Outcome]:
    """What has become of files that some workers were given."""
    workers = Workers(work)
    splitter = FileSplitter(workers.submit, root, "estimate", SecretPolicy.REDACT)
    looked = [*splitter.split_all((FileRequest(name), 100) for name in names)]
    for outcome, data in looked:
        if isinstance(outcome, FileSplit):
            assert data == (root / outcome.source).read_bytes()
    return [outcome for outcome, _ in looked]


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    found = [f"{number:02}.py" for number in range(40)]
    for name in found:
        (tmp_path / name).write_text(TEXT)
    return found


def refuse(error: Exception) -> Callable[[SplitJob], bytes]:
    def work(_chore: SplitJob) -> bytes:
        raise error

    return work


@pytest.mark.parametrize(
    "work",
    [
        honest,
        refuse(sw.NotFound("no worker has offered it")),
        refuse(sw.TaskFailed("there is no room for its result")),
        refuse(sw.BodyGone("the result is gone")),
        refuse(sw.StartFailed("no process can be started")),
        lambda _chore: b"rubbish",
        lambda chore: honest(SplitJob(chore.root, chore.encoding, chore.files[1:])),
        lambda chore: files.encoder.encode([FileSkipped(each.source, "no such file") for each in chore.files]),
    ],
    ids=["honest", "none", "no room", "gone", "no process", "rubbish", "too few", "elsewhere"],
)
def test_every_file_is_split(tmp_path: Path, names: list[str], work: Callable[[SplitJob], bytes]) -> None:
    """In their order, by whoever can."""
    found = outcomes(tmp_path, work, names)
    assert [each.source for each in found] == names
    assert all(isinstance(each, FileSplit) for each in found)


def test_no_worker_at_all(tmp_path: Path, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has offered it when it is submitted."""
    monkeypatch.setattr(Workers, "submit", lambda *_: refuse(sw.NotFound("nobody"))(SplitJob(b"", "", ())))
    assert all(isinstance(each, FileSplit) for each in outcomes(tmp_path, honest, names))


def test_workers_that_never_answer(tmp_path: Path, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Are not waited for for ever."""
    monkeypatch.setattr(split_files, "_JOB_SECONDS_MAX", 0.001)
    assert all(isinstance(each, FileSplit) for each in outcomes(tmp_path, refuse(TimeoutError()), names))


def test_a_file_that_never_ends(tmp_path: Path, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that a worker has begun and does not end costs the files that it cannot split alone, not this process."""
    monkeypatch.setattr(split_files, "_JOB_SECONDS_MAX", 0.001)

    class Busy(Workers):
        def _future(self, payload: bytes) -> Future[bytes]:
            future = super()._future(payload)
            if not future.done():
                future.set_running_or_notify_cancel()
            return future

    def work(chore: SplitJob) -> bytes:
        if any(each.source == "07.py" for each in chore.files):
            raise TimeoutError
        return honest(chore)

    splitter = FileSplitter(Busy(work).submit, tmp_path, "estimate", SecretPolicy.REDACT)
    found = {outcome.source: outcome for outcome, _ in splitter.split_all((FileRequest(name), 100) for name in names)}
    assert found.pop("07.py") == FileSkipped("07.py", "splitting it failed: it takes too long", is_unsafe=True)
    assert all(isinstance(each, FileSplit) for each in found.values())


@pytest.mark.parametrize("error", [sw.TaskQuarantined, sw.DeadlineExceeded, sw.MemoryExceeded, sw.WorkerDied])
def test_a_file_that_workers_die_of(tmp_path: Path, names: list[str], error: type[sw.StepwellError]) -> None:
    """Costs that file only, and nobody tries it here."""

    def work(chore: SplitJob) -> bytes:
        if any(each.source == "07.py" for each in chore.files):
            raise error("they died of it")
        return honest(chore)

    found = {each.source: each for each in outcomes(tmp_path, work, names)}
    assert found.pop("07.py") == FileSkipped("07.py", "splitting it failed: they died of it", is_unsafe=True)
    assert len(found) == len(names) - 1
    assert all(isinstance(each, FileSplit) for each in found.values())


def test_a_file_that_changes_meanwhile(tmp_path: Path, names: list[str]) -> None:
    """Is split as it is when it is stored."""

    def work(chore: SplitJob) -> bytes:
        answer = honest(chore)
        (tmp_path / "03.py").write_text("def other():\n    return 2\n")
        return answer

    (changed,) = [each for each in outcomes(tmp_path, work, names) if each.source == "03.py"]
    assert isinstance(changed, FileSplit)
    assert changed.parts[0].part_id == "03.py#other"


def test_chores_are_of_a_bounded_size(tmp_path: Path) -> None:
    """So many files, so many bytes; and only so many at a time."""
    workers = Workers(
        lambda chore: files.encoder.encode([FileSkipped(each.source, "x", digest="x") for each in chore.files])
    )
    splitter = FileSplitter(workers.submit, tmp_path, "estimate", SecretPolicy.REDACT)
    asked = [(FileRequest(str(number)), 0) for number in range(10_000)]
    looks = splitter.split_all(asked)
    next(looks)
    assert len(workers.chores) == limits.INGEST_JOBS_IN_FLIGHT
    assert 1 + sum(1 for _ in looks) == len(asked)
    assert {len(chore.files) for chore in workers.chores} == {limits.INGEST_JOB_FILES}
    workers.chores.clear()
    list(splitter.split_all((FileRequest(str(number)), limits.INGEST_JOB_BYTES // 2) for number in range(9)))
    assert [len(chore.files) for chore in workers.chores] == [2, 2, 2, 2, 1]


def test_leaving_before_the_end(tmp_path: Path) -> None:
    """Cancels what nobody will ask for."""
    futures: list[Future[bytes]] = []

    class Slow(Workers):
        def _future(self, payload: bytes) -> Future[bytes]:
            futures.append(super()._future(payload) if not futures else Future())
            return futures[-1]

    splitter = FileSplitter(Slow(honest).submit, tmp_path, "estimate", SecretPolicy.REDACT)
    for _ in splitter.split_all((FileRequest(str(number)), 0) for number in range(100)):
        break
    gc.collect()
    assert len(futures) > 1
    assert all(future.cancelled() for future in futures[1:])
