"""Ingesting with real workers and processes that die: the project ends up as the files are."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.ingest import files
from stepwell.strategies.protocol import ContextRequest
from tests.support.cli.processes import interrupt, started
from tests.support.ingest import all_rows, write
from tests.support.processes import kill
from tests.support.secrets import GITHUB, KEY_LINE, MARK, PRIVATE_KEY, contents, repository
from tests.support.spelled import spelled
from tests.support.wait import eventually

ROOT = Path(__file__).parent.parent.parent
LONG = "words that are long enough to be no tiny part of anything, " * 4
SECONDS = 60.0


def tree(root: Path, count: int) -> Path:
    """Files of three kinds, each of a few parts; old enough to be recognised by their time."""
    for number in range(count):
        parts = range(1 + number % 7)
        code = "".join(f"def f{number}_{part}():\n    return '{LONG}'\n\n\n" for part in parts)
        prose = "".join(f"# Part {part}\n\n{LONG} {number}\n\n" for part in parts)
        turns = "".join(f'{{"speaker": "A{part}", "text": "{number}"}}\n' for part in parts)
        write(root, {f"d{number % 10}/{number}.py": code, f"{number}.md": prose, f"{number}.jsonl": turns})
    for path in root.rglob("*.*"):
        os.utime(path, ns=(10**18, 10**18))
    return root


Rows = dict[str, tuple[object, ...]]


def rows(client: sw.Client) -> Rows:
    found = all_rows(client)
    return {row.fragment_id: (row.source, row.kind, row.tokens, row.digest, row.metadata) for row in found}


@pytest.fixture
def runtime() -> Iterator[sw.Runtime]:
    """Of its own for each test: a worker may be replaced, and would be taken for what a test has left behind."""
    with sw.Runtime.start(workers=2, log_level="error") as started_:
        yield started_


@pytest.fixture
def client(runtime: sw.Runtime) -> Iterator[sw.Client]:
    with runtime.client(projects=["p"]) as connected:
        yield connected


@contextmanager
def expected_of(root: Path) -> Iterator[Rows]:
    """What a manager without workers makes of it."""
    with sw.Runtime.start(workers=0, log_level="error") as alone, alone.client(projects=["p"]) as client:
        client.ingest(root)
        yield rows(client)


def test_workers_find_what_a_client_finds(client: sw.Client, tmp_path: Path) -> None:
    """The same rows, however many do the work; and they did it."""
    root = tree(tmp_path, 40)
    with expected_of(root) as expected:
        told: list[int] = []
        report = client.ingest(root, on_progress=lambda done, _total, _note: told.append(done))
        assert rows(client) == expected
    assert (report.added, told[-1]) == (120, 120)
    assert client.ingest(root).unchanged == 120


def test_the_workers_do_it(client: sw.Client, tmp_path: Path) -> None:
    """It is a chore, which they offer, and no strategy, which would be asked for context."""
    found = client.strategies.list()
    assert files.SPLIT_JOB not in {each.name for each in found.offers}
    assert all(files.SPLIT_JOB in {each.name for each in worker.offers} for worker in found.workers)
    (project,) = client.projects or ()
    client.ingest(tree(tmp_path, 1))
    execution = sw.DefaultStrategyExecutor(client).execute(ContextRequest(projects=[project], query="words"))
    assert files.SPLIT_JOB not in execution.results | execution.failures
    chore = files.SplitJob(os.fsencode(tmp_path), client.status().encoding, (files.FileRequest("0.md"),))
    (future,) = client.strategies.submit_jobs(files.SPLIT_JOB, project, [files.encoder.encode(chore)])
    (outcome,) = files.outcomes_decoder.decode(future.result(SECONDS))
    assert isinstance(outcome, files.FileSplit)
    (refused,) = client.strategies.submit_jobs(files.SPLIT_JOB, project, [b"rubbish"])
    assert isinstance(refused.exception(SECONDS), sw.TaskFailed)


def test_secrets_with_workers(tmp_path: Path) -> None:
    """Of eleven secret files and two secrets in code, none is in a body, an answer, or a byte of the data directory."""
    root = repository(tmp_path / "root")
    write(root, {"settings.py": f'# password, token, key\nTOKEN = "{GITHUB}"\nKEY = """{PRIVATE_KEY}"""\n'})
    for name in ("settings.py", "code.py"):
        os.utime(root / name, ns=(10**18, 10**18))  # old enough to be recognised by its time
    with (
        sw.Runtime.start(workers=2, data_dir=tmp_path / "data", log_level="error") as own,
        own.client(projects=["p"]) as client,
        expected_of(root) as expected,
    ):
        report = client.ingest(root)
        assert (report.secrets_count, report.redacted, report.added) == (11, 2, 2)
        assert rows(client) == expected
        request = ContextRequest(projects=["p"], query="password token key")
        answer = client.assemble(request, strategies=["keyword"])
        assert len(answer.redacted) == 2
        texts = "\n".join(each.text for each in client.view())
    found = contents(tmp_path / "data") + texts.encode() + answer.text.encode() + spelled(answer).encode()
    assert found.count(b"[redacted: GitHub token]") >= 3
    assert not {each for each in (MARK, GITHUB, KEY_LINE) if each.encode() in found}


def test_watch_says_once_what_is_left_out(runtime: sw.Runtime, tmp_path: Path) -> None:
    """And again only when other secret files are there."""
    root = tree(tmp_path / "watched", 1)
    write(root, {"a.pem": "x"})
    with started("ingest", str(root), "--address", runtime.address, "--watch") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("watched: 3 files added")
        write(root, {"new.py": "x = 1\n"})
        assert process.stdout.readline().startswith("watched: 1 file added")
        write(root, {"b.pem": "x", "newer.py": "x = 1\n"})
        assert "1 secret file: a.pem" in process.stderr.readline()
        assert "2 secret files: a.pem (key or certificate), b.pem" in process.stderr.readline()
        interrupt(process)


def test_an_answer_that_no_message_carries(client: sw.Client, tmp_path: Path) -> None:
    """A file of many parts is answered beside the messages."""
    turns = "".join(f'{{"speaker": "speaker {number}", "text": "x"}}\n' for number in range(3_000))
    write(tmp_path, {"a.jsonl": turns})
    assert client.ingest(tmp_path).fragments == 3_000


def test_workers_that_are_killed(tmp_path: Path) -> None:
    """Their work is done by others."""
    root = tree(tmp_path, 100)
    with (
        sw.Runtime.start(workers=2, log_level="error") as own,
        own.client(projects=["p"]) as client,
        expected_of(root) as expected,
    ):
        victims = iter([*own.workers])

        def harm(done: int, _total: int, _note: str) -> None:
            if done % 100 == 50 and (pid := next(victims, None)):
                with suppress(ProcessLookupError):  # it was slow, and is replaced already
                    kill(pid)

        client.ingest(root, on_progress=harm)
        assert next(victims, None) is None
        assert rows(client) == expected


@pytest.mark.parametrize("done", [1, 60, 150])
def test_an_ingest_that_is_killed(tmp_path: Path, done: int) -> None:
    """In the middle, with kill -9: each file is stored entirely or not at all, and the next ingest does the rest."""
    root = tree(tmp_path, 60)
    with (
        sw.Runtime.start(workers=1, log_level="error") as own,
        own.client(projects=["p"]) as client,
        expected_of(root) as expected,
    ):
        program = [sys.executable, "-m", "tests.support.programs.ingest_program", own.address, str(root), str(done)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        peers = client.status().peers
        with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n"
            process.kill()
        eventually(lambda: client.status().peers <= peers)  # whatever it had sent is done by then
        half = rows(client)
        assert half.items() <= expected.items()
        whole = {name.removeprefix("file:") for name in half if name.startswith("file:")}
        assert {str(row[0]) for row in half.values()} == whole
        assert all(name in half for name, row in expected.items() if row[0] in whole)
        assert client.ingest(root).unchanged == len(whole)
        assert rows(client) == expected


def test_many_processes_at_once(runtime: sw.Runtime, tmp_path: Path) -> None:
    """Several that ingest one directory at the same time leave what one of them would."""
    root = tree(tmp_path, 40)
    failures: list[str] = []

    def run() -> None:
        command = ["ingest", str(root), "--address", runtime.address, "--project", "together", "--json"]
        with started(*command) as process:
            told, complaint = process.communicate(timeout=SECONDS)
            if process.returncode or json.loads(told)["added"] + json.loads(told)["unchanged"] != 120:
                failures.append(told + complaint)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with expected_of(root) as expected, runtime.client(projects=["together"]) as client:
        assert rows(client) == expected


def test_watch(runtime: sw.Runtime, tmp_path: Path) -> None:
    """What changes is there soon; an error is said, and survived; Ctrl-C ends it well."""
    root = tree(tmp_path / "watched", 2)
    with (
        runtime.client(projects=["watched"]) as client,
        started("ingest", str(root), "--address", runtime.address, "--watch", "--json") as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        first = json.loads(process.stdout.readline())
        assert (first["project"], first["added"]) == ("watched", 6)
        write(root, {"new.py": f"def new():\n    return '{LONG}'\n"})
        (root / "0.md").unlink()
        changed: list[dict[str, int]] = []
        while sum(each["added"] for each in changed) < 1 or sum(each["deleted"] for each in changed) < 1:
            changed.append(json.loads(process.stdout.readline()))
        assert client.tiers.get("new.py#new").text.startswith("def new")
        root.rename(tmp_path / "away")
        assert "trying again" in process.stderr.readline()
        (tmp_path / "away").rename(root)
        write(root, {"newer.py": f"def newer():\n    return '{LONG}'\n"})
        assert json.loads(process.stdout.readline())["added"] == 1
        _, complaints = interrupt(process)
        assert process.returncode == 0
        assert "Traceback" not in complaints
