"""`client.ingest`: whatever happens to a directory, or to its rows, the project has what the files are now."""

import os
import shutil
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

import stepwell as sw
from stepwell import limits, types
from stepwell.client.session.calls import Call
from stepwell.client.session.session import Session
from stepwell.domain.tiers.commit_history import HISTORY_ID, Commit, decode_history
from stepwell.domain.tiers.source_outline import FILE_KIND, Outline
from stepwell.ingest import files, secret_policy
from stepwell.ingest.inventory import project_name
from stepwell.ingest.split import Part, split
from stepwell.testing import LocalRuntime
from tests.support.client.sessions import in_threads
from tests.support.ingest import BODY, all_rows, git, write
from tests.support.measurement import untraced

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

R = TypeVar("R")

FUNCTION = f"def {{}}():\n{BODY}\n"
TWO = FUNCTION.format("f") + FUNCTION.format("g")


@pytest.fixture(scope="module")
def runtime() -> Iterator[sw.Runtime]:
    """A manager in a process of its own, because this process is measured."""
    with sw.Runtime.start(workers=0, log_level="error") as started:
        yield started


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


Rows = dict[str, tuple[str, str, int, bytes, dict[str, str]]]


def rows(client: sw.Client, project: str | None = None) -> Rows:
    """What a project has, but for when it was stored."""
    found = all_rows(client, project)
    return {row.fragment_id: (row.source, row.kind, row.tokens, row.digest, row.metadata) for row in found}


def bodies(client: sw.Client, source: str) -> str:
    """The text of a file, put together again."""
    parts = [each for each in client.view() if each.source == source and each.kind != FILE_KIND]
    parts.sort(key=lambda each: Outline.of(each.metadata).order or 0)
    return "".join(each.text for each in parts)


def age(root: Path, seconds: int = 10**9) -> None:
    """Let all files be old enough to be recognised by their time."""
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            os.utime(path, ns=(seconds * 10**9, seconds * 10**9))


def test_files_become_fragments(client: sw.Client, root: Path) -> None:
    """In warm, with their lines, names and kinds; and one row for each file, which lists them."""
    write(
        root, {"a.py": TWO, "docs/b.md": "# Title\n\ntext\n", "c.jsonl": '{"role": "user", "content": "hi"}\n', "d": ""}
    )
    report = client.ingest(root)
    assert (report.added, report.changed, report.deleted, report.unchanged, report.skipped_count) == (4, 0, 0, 0, 0)
    found = {row.fragment_id: row for row in all_rows(client)}
    assert {*found} == {
        "a.py#f",
        "a.py#g",
        "file:a.py",
        "docs/b.md#Title",
        "file:docs/b.md",
        "c.jsonl#1",
        "file:c.jsonl",
        "file:d",
    }
    assert {row.tier for row in found.values()} == {sw.Tier.WARM}
    assert [found[each].kind for each in ("a.py#f", "docs/b.md#Title", "c.jsonl#1")] == ["code", "markdown", "turn"]
    assert Outline.of(found["a.py#g"].metadata) == Outline(lines=(4, 6), name="g", order=1)
    assert client.tiers.get("file:a.py").text == "1-3 f\n4-6 g"
    assert client.tiers.get("file:c.jsonl").text == "1-1 user"
    assert bodies(client, "a.py") == TWO
    parts = [row for row in found.values() if row.kind != FILE_KIND]
    assert (report.fragments, report.tokens) == (len(parts), sum(row.tokens for row in parts))
    assert report.stored == len(parts)


def test_rows_of_files_are_no_fragments(client: sw.Client, root: Path) -> None:
    """A list and the metrics have what a user stored and ingested; the rows of files are apart."""
    client.tiers.store(sw.Fragment(fragment_id="mine", body="a note", kind="file"))
    write(root, {"a.py": TWO, "d": ""})
    report = client.ingest(root)
    listed = client.tiers.list()
    assert [row.fragment_id for row in listed] == ["mine", "a.py#f", "a.py#g"]
    assert [*client.tiers.scoped()] == [*listed]
    files = client.tiers.list(kind="file")
    assert [row.fragment_id for row in files] == ["mine", "file:a.py", "file:d"]  # also what a user named so
    metrics = client.tiers.metrics()
    assert (metrics.hot.entries, metrics.hot.files) == (1, 0)
    assert (metrics.warm.entries, metrics.warm.files) == (report.fragments, 2)
    client.tiers.demote("file:d")
    assert (client.tiers.metrics().warm.files, client.tiers.metrics().cold.files) == (1, 1)
    client.tiers.delete("file:d")
    assert client.tiers.metrics().cold == types.TierUsage()
    assert client.status().metrics == client.tiers.metrics()
    assert (client.ingest(root).stored, client.tiers.metrics().warm.files) == (0, 2)  # made again


def test_tokens_are_counted_as_ever(client: sw.Client, root: Path) -> None:
    """The same as of a fragment whose tokens were not given."""
    write(root, {"a.py": TWO})
    client.ingest(root)
    row = next(row for row in all_rows(client) if row.fragment_id == "a.py#f")
    client.tiers.store(sw.Fragment(fragment_id="same", body=client.tiers.get("a.py#f").body))
    assert client.tiers.get("same").tokens == row.tokens


def test_again(client: sw.Client, root: Path) -> None:
    """A tree that has not changed is not read, and nothing is written."""
    write(root, {"a.py": TWO, "b.bin": b"\0"})
    age(root)
    client.ingest(root)
    (root / "a.py").chmod(0)
    revision = client.status().revision
    report = client.ingest(root)
    assert (report.added, report.changed, report.unchanged, report.stored) == (0, 0, 1, 0)
    assert report.skipped == {"b.bin": "it is binary"}
    assert report.fragments == 2
    assert not report.is_changed
    assert client.status().revision == revision


def test_a_change(client: sw.Client, root: Path) -> None:
    """Only parts that are others than before are written, and each in the tier that it is in."""
    write(root, {"a.py": TWO + FUNCTION.format("h")})
    client.ingest(root)
    client.tiers.promote("a.py#g")
    before = {row.fragment_id: row for row in all_rows(client)}
    write(root, {"a.py": FUNCTION.format("f") + FUNCTION.format("g").replace("some words", "other words")})
    report = client.ingest(root)
    assert (report.changed, report.stored, report.fragments) == (1, 1, 2)
    after = {row.fragment_id: row for row in all_rows(client)}
    assert {*after} == {"a.py#f", "a.py#g", "file:a.py"}
    assert after["a.py#f"] == before["a.py#f"]
    assert after["a.py#g"].revision > before["a.py#g"].revision
    assert after["a.py#g"].tier is sw.Tier.HOT
    assert after["a.py#g"].revision == after["file:a.py"].revision, "all rows of a file change at one revision"
    assert bodies(client, "a.py") == (root / "a.py").read_text()


def test_a_file_that_was_only_touched(client: sw.Client, root: Path) -> None:
    """Is read, found to be the same, and recognised by its new time from then on."""
    write(root, {"a.py": TWO, "b.bin": b"\0"})
    age(root)
    client.ingest(root)
    age(root, 1_500_000_000)
    before = rows(client)
    report = client.ingest(root)
    assert (report.unchanged, report.stored, report.skipped_count) == (1, 0, 1)
    assert {name for name, row in rows(client).items() if row != before[name]} == {"file:a.py", "file:b.bin"}
    assert client.tiers.get("file:a.py").text == "1-3 f\n4-6 g"
    revision = client.status().revision
    client.ingest(root)
    assert client.status().revision == revision


def test_a_file_from_the_future(client: sw.Client, root: Path) -> None:
    """Is read each time, because its time says nothing; but what is the same is not written again."""
    write(root, {"a.py": TWO})
    age(root, 10**10)
    client.ingest(root)
    revision = client.status().revision
    assert client.ingest(root).unchanged == 1
    assert client.status().revision == revision


def test_same_size_within_a_tick(client: sw.Client, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was changed just now is read again, because it may have changed without a trace."""
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    write(root, {"a.py": TWO})
    stat = (root / "a.py").stat()
    client.ingest(root)
    write(root, {"a.py": TWO.replace("def f", "def e")})
    os.utime(root / "a.py", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert client.ingest(root).changed == 1
    assert bodies(client, "a.py").startswith("def e")


def test_deleted_and_renamed(client: sw.Client, root: Path) -> None:
    """Rows of what is gone go; a renamed file's come under its new name, with the same bodies."""
    write(root, {"a.py": TWO, "b.py": FUNCTION.format("k")})
    client.ingest(root)
    held = client.tiers.metrics().body_bytes
    (root / "a.py").rename(root / "c.py")
    report = client.ingest(root)
    assert (report.added, report.deleted, report.unchanged) == (1, 1, 1)
    assert {row.source for row in all_rows(client)} == {"b.py", "c.py"}
    assert client.tiers.metrics().body_bytes == held
    (root / "b.py").unlink()
    (root / "c.py").unlink()
    assert client.ingest(root).deleted == 2
    assert rows(client) == {}


@pytest.mark.parametrize(
    "harm",
    [
        lambda client: client.tiers.delete("a.py#f"),
        lambda client: client.tiers.delete("file:a.py"),
        lambda client: client.tiers.store(sw.Fragment(fragment_id="a.py#g", body="mine")),
        lambda client: client.tiers.store(
            sw.Fragment(fragment_id="a.py#x", body="x", source="a.py", metadata={"split": "1"})
        ),
        lambda client: client.tiers.store(sw.Fragment(fragment_id="file:a.py", body="x", kind="file", source="a.py")),
    ],
    ids=["a part is gone", "the file's row is gone", "a part is another", "a part too many", "rubbish"],
)
def test_rows_that_others_have_harmed(client: sw.Client, root: Path, harm: Callable[[sw.Client], object]) -> None:
    """Are seen to be missing, or wrong, though the file has not changed; and are as they were."""
    write(root, {"a.py": TWO})
    age(root)
    client.ingest(root)
    before = rows(client)
    harm(client)
    assert client.ingest(root).stored >= 0
    assert rows(client) == before


def test_what_was_evicted_comes_back(client: sw.Client, root: Path) -> None:
    """Cold, with all of it deleted: by hand here, by its retention elsewhere."""
    write(root, {"a.py": TWO})
    age(root)
    client.ingest(root)
    before = rows(client)
    for tier in (sw.Tier.WARM, sw.Tier.COLD):
        client.tiers.evict_lru(tier, 100)
    assert rows(client) == {}
    report = client.ingest(root)
    assert (report.added, report.stored) == (1, 2)
    assert rows(client) == before


def test_parts_of_a_file_that_nobody_knows_any_more(client: sw.Client, root: Path) -> None:
    """Go, though the row that stood for the file went before the file did."""
    write(root, {"a.py": TWO})
    client.ingest(root)
    client.tiers.delete("file:a.py")
    (root / "a.py").unlink()
    client.ingest(root)
    assert rows(client) == {}


def test_what_others_say_about_a_file_is_theirs(client: sw.Client, root: Path) -> None:
    """Whatever becomes of the file."""
    write(root, {"a.py": TWO})
    client.tiers.store(sw.Fragment(fragment_id="note", body="x", source="a.py"))
    about = {"lines": "1-2", "order": "0"}
    client.tiers.store(sw.Fragment(fragment_id="a.py#note", body="x", source="a.py", metadata=about))
    client.ingest(root)
    (root / "a.py").unlink()
    client.ingest(root)
    assert {*rows(client)} == {"note", "a.py#note"}


def test_a_file_that_cannot_be_read_any_more(client: sw.Client, root: Path) -> None:
    """What was stored of it goes: the project has what a first ingest would give it."""
    write(root, {"a.py": TWO, "b.py": TWO})
    client.ingest(root)
    write(root, {"a.py": b"\0"})
    (root / "b.py").unlink()
    (root / "b.py").symlink_to("a.py")
    report = client.ingest(root)
    assert (report.deleted, report.skipped_count) == (2, 2)
    assert {*rows(client)} == {"file:a.py"}
    assert client.ingest(root).deleted == 0
    write(root, {"a.py": TWO})
    assert client.ingest(root).added == 1


def test_one_file_of_many(client: sw.Client, root: Path) -> None:
    """The others stay as they are."""
    write(root, {"a.py": TWO, "b.py": TWO})
    client.ingest(root)
    write(root, {"a.py": FUNCTION.format("only"), "b.py": FUNCTION.format("not_yet")})
    report = client.ingest(root / "a.py")
    assert (report.changed, report.deleted) == (1, 0)
    assert {"a.py#only", "b.py#f"} <= {*rows(client)}


def test_two_directories_in_one_project(client: sw.Client, tmp_path: Path) -> None:
    """Neither takes the other's files for deleted ones; a directory that was moved is still itself."""
    write(tmp_path, {"one/a.py": TWO, "two/b.py": TWO})
    for name in ("one", "two", "one", "two"):
        client.ingest(tmp_path / name)
    assert {row.source for row in all_rows(client)} == {"a.py", "b.py"}
    (tmp_path / "one").rename(tmp_path / "three")
    write(tmp_path, {"three/c.py": TWO})
    (tmp_path / "three/a.py").rename(tmp_path / "three/d.py")
    report = client.ingest(tmp_path / "three")
    assert (report.added, report.deleted) == (2, 1)
    assert {row.source for row in all_rows(client)} == {"b.py", "c.py", "d.py"}


def test_git_decides_what_belongs(client: sw.Client, root: Path) -> None:
    write(root, {"a.py": TWO, "b.log": "x", ".gitignore": "*.log\n"})
    git(root, "init")
    client.ingest(root)
    assert {row.source for row in all_rows(client)} == {"a.py", ".gitignore"}


def test_a_file_with_more_parts_than_a_transaction(client: sw.Client, root: Path) -> None:
    """Is stored in several; and so it is deleted."""
    turns = "".join(f'{{"speaker": "s{number}", "text": "x"}}\n' for number in range(limits.BATCH_COMMANDS_MAX + 100))
    write(root, {"a.jsonl": turns, "b.py": TWO})
    assert client.ingest(root).fragments == limits.BATCH_COMMANDS_MAX + 102
    assert bodies(client, "a.jsonl") == turns
    assert client.ingest(root).stored == 0
    (root / "a.jsonl").unlink()
    assert client.ingest(root).deleted == 1
    assert {row.source for row in all_rows(client)} == {"b.py"}


@pytest.mark.parametrize("after", [0, 1, 3])
def test_what_was_interrupted_is_done_again(
    client: sw.Client, root: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Wherever a large file was left, the next ingest finds it unfinished, and ends as if nothing had happened."""
    turns = [f'{{"speaker": "s{number}", "text": "x"}}\n' for number in range(limits.BATCH_COMMANDS_MAX + 100)]
    write(root, {"a.jsonl": "".join(turns)})
    client.ingest(root)
    write(root, {"a.jsonl": "".join(turns[50:])})
    age(root)
    before_each(monkeypatch, dying_after(after))
    with pytest.raises(KeyboardInterrupt):
        client.ingest(root)
    monkeypatch.undo()
    client.ingest(root)
    assert bodies(client, "a.jsonl") == "".join(turns[50:])
    assert len(rows(client)) == len(turns) - 50 + 1


def before_each(monkeypatch: pytest.MonkeyPatch, deed: Callable[[], object]) -> None:
    """Something happens before each transaction is sent."""
    real = Session.perform_together

    def perform(session: Session, calls: Sequence[Call[R]]) -> list[tuple[R | sw.StepwellError, int]]:
        deed()
        return real(session, calls)

    monkeypatch.setattr(Session, "perform_together", perform)


def dying_after(count: int) -> Callable[[], None]:
    """Somebody presses Ctrl-C when so many have been sent."""
    numbers = iter(range(count))

    def die() -> None:
        if next(numbers, None) is None:
            raise KeyboardInterrupt

    return die


def test_somebody_else_is_faster(client: sw.Client, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they have stored meanwhile is seen, and what was planned is planned anew."""
    write(root, {"a.py": TWO, "b.py": TWO, "c.py": TWO})
    client.ingest(root)
    write(root, {"a.py": FUNCTION.format("mine"), "b.py": FUNCTION.format("mine")})
    (root / "c.py").unlink()
    stale = {"size": "1", "mtime_ns": "1", "digest": "x"}
    theirs = sw.Fragment(fragment_id="file:b.py", body="theirs", kind="file", source="b.py", metadata=stale)
    deeds: Iterator[Callable[[], object]] = iter(
        [
            lambda: client.tiers.delete("a.py#f"),
            lambda: client.tiers.delete("file:c.py"),
            lambda: client.tiers.store(theirs),
        ]
    )

    def harm() -> None:
        for deed in islice(deeds, 1):
            deed()

    before_each(monkeypatch, harm)
    report = client.ingest(root)
    assert (report.changed, report.deleted) == (2, 1)
    assert {*rows(client)} == {"a.py#mine", "file:a.py", "b.py#mine", "file:b.py"}


def test_somebody_else_is_always_faster(client: sw.Client, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it is said, after a few attempts."""
    write(root, {"a.py": TWO})
    times: list[sw.types.FragmentPlaced] = []

    def faster() -> None:
        theirs = sw.Fragment(fragment_id="file:a.py", body=str(len(times)), kind="file", source="a.py")
        times.append(client.tiers.store(theirs))

    before_each(monkeypatch, faster)
    with pytest.raises(sw.Conflict, match="other clients have stored the same files"):
        client.ingest(root)
    assert len(times) == limits.INGEST_ATTEMPTS_MAX


def test_many_at_once(runtime: sw.Runtime, root: Path) -> None:
    """Clients that ingest the same directory at the same time leave what one of them would."""
    write(root, {f"{number}.py": TWO.replace("f()", f"f{number}()") for number in range(60)})
    with runtime.client(projects=["alone"]) as alone:
        alone.ingest(root)
        expected = {name: row[:4] for name, row in rows(alone).items()}

    def ingest(_number: int) -> None:
        with runtime.client(projects=["together"]) as one:
            one.ingest(root)

    in_threads(4, ingest)
    with runtime.client(projects=["together"]) as client:
        assert {name: row[:4] for name, row in rows(client).items()} == expected


def test_a_transaction_that_is_refused_for_good(root: Path) -> None:
    """No room is no race: it is said at once."""
    write(root, {f"{number}.py": TWO for number in range(3)})
    with sw.Runtime.start(workers=0, budget=sw.TierBudget(warm_entries=2, cold_entries=2), log_level="error") as small:
        with small.client(projects=["p"]) as client, pytest.raises(sw.TransactionAborted, match="cold already holds"):
            client.ingest(root)


def test_a_tree_that_would_fill_warm(root: Path) -> None:
    """Goes to cold from the half on: others have fragments, too."""
    write(root, {f"{number:03}.py": TWO for number in range(200)})
    with sw.Runtime.start(workers=0, budget=sw.TierBudget(warm_entries=200), log_level="error") as small:
        with small.client(projects=["p"]) as client:
            client.tiers.store(sw.Fragment(fragment_id="other", body="x"), tier=sw.Tier.WARM)
            client.ingest(root)
            metrics = client.tiers.metrics()
            assert 50 < metrics.warm.entries + metrics.warm.files <= 110
            assert metrics.warm.entries + metrics.cold.entries == 401
            assert metrics.warm.files + metrics.cold.files == 200
            assert client.tiers.get("other").tier is sw.Tier.WARM
            assert client.ingest(root).stored == 0


def test_a_small_arena(root: Path) -> None:
    """What has no room in shared memory is made room for: bodies go to cold, and none is lost."""
    write(root, {f"{number:03}.txt": os.urandom(1500).hex() for number in range(400)})
    budget = sw.TierBudget(arena_bytes=limits.MIB)
    with sw.Runtime.start(workers=0, budget=budget, log_level="error") as small:
        with small.client(projects=["p"]) as client:
            client.ingest(root)
            assert bodies(client, "399.txt") == (root / "399.txt").read_text()
            assert client.ingest(root).stored == 0


def test_a_busy_manager_is_waited_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While room is made for what is stored; but not for ever, and not once the client is closed."""
    write(root, {"a.txt": "one"})
    monkeypatch.setattr(limits, "INGEST_BUSY_PAUSE_SECONDS", 0.001)
    with LocalRuntime(workers=0) as runtime, runtime.client(projects=["p"]) as client:
        with runtime.faults.refuse(of="StoreFragment", times=3):
            assert client.ingest(root).added == 1
        write(root, {"a.txt": "other"})
        monkeypatch.setattr(limits, "INGEST_BUSY_SECONDS_MAX", -1.0)
        with runtime.faults.refuse(of="StoreFragment"), pytest.raises(sw.Busy):
            client.ingest(root)


def test_progress(client: sw.Client, root: Path) -> None:
    """It is told of each file, and comes to its end."""
    write(root, {f"{number}.py": TWO for number in range(5)})
    told: list[tuple[int, int, str]] = []
    client.ingest(root, on_progress=lambda *each: told.append(each))
    assert [each[:2] for each in told] == [(number, 5) for number in range(1, 6)]
    assert {each[2] for each in told} == {f"{number}.py" for number in range(5)}


def test_whose_project(runtime: sw.Runtime, root: Path) -> None:
    """The one given, the session's only one, or one that is named as the directory is; never one out of scope."""
    write(root, {"a.py": TWO})
    with runtime.client() as everything:
        assert everything.ingest(root).project == "root"
        assert everything.ingest(root, project="given").project == "given"
    with runtime.client(projects=["only"]) as only:
        assert only.ingest(root).project == "only"
        with pytest.raises(sw.OutOfScope):
            only.ingest(root, project="given")
    with runtime.client(projects=["one", "two"]) as two, pytest.raises(sw.OutOfScope):
        two.ingest(root)


@pytest.mark.parametrize(
    "directory, name",
    [
        ("repo", "repo"),
        (".dotted", "dotted"),
        ("a b", "a-b"),
        ("日本", "project"),
        ("x" * 200, "x" * 128),
        ("/", "project"),
    ],
)
def test_a_directorys_name_as_a_projects(directory: str, name: str) -> None:
    assert project_name(Path("/home") / directory) == name
    sw.Fragment(fragment_id="a", body="", project=name)


def test_what_is_not_there(client: sw.Client, tmp_path: Path) -> None:
    """Is the caller's mistake; nothing is taken for deleted."""
    with pytest.raises(sw.InvalidArgument, match="cannot be read"):
        client.ingest(tmp_path / "nothing")


def test_a_new_way_of_splitting(client: sw.Client, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits what has not changed, too."""
    write(root, {"a.py": TWO})
    age(root)
    client.ingest(root)
    monkeypatch.setattr(secret_policy, "VERSION", "next")
    assert client.ingest(root).changed == 1


def test_a_report_names_only_so_many(client: sw.Client, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INGEST_SKIPPED_MAX", 2)
    write(root, {f"{number}": b"\0" for number in range(4)})
    report = client.ingest(root)
    assert (len(report.skipped), report.skipped_count) == (2, 4)
    assert msgspec.json.decode(msgspec.json.encode(report), type=sw.types.IngestReport) == report


def test_a_text_that_defeats_us(client: sw.Client, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs that file only."""
    write(root, {"a.py": TWO, "b.py": TWO})

    def picky(source: str, data: bytes) -> list[Part]:
        if source == "a.py":
            raise RuntimeError("no such luck")
        return split(source, data)

    monkeypatch.setattr(files, "split", picky)
    report = client.ingest(root)
    assert report.skipped == {"a.py": "splitting it failed: RuntimeError: no such luck"}
    assert report.added == 1


def test_names_that_no_id_can_have(client: sw.Client, root: Path) -> None:
    """Are stored under ids that can be, and found again."""
    write(root, {"a\nb.py": TWO, "c#d.py": TWO, "e%f.py": TWO, f"{'g' * 200}/{'h' * 200}/{'i' * 200}.py": TWO})
    assert client.ingest(root).added == 4
    age(root)
    client.ingest(root)
    assert client.ingest(root).unchanged == 4
    assert bodies(client, "a\nb.py") == TWO
    for path in [*root.rglob("*.py")]:
        path.unlink()
    client.ingest(root)
    assert rows(client) == {}


@untraced()
def test_memory_is_bounded(client: sw.Client, root: Path) -> None:
    """However many files there are, only a few of them are here at once."""
    line = "many words that are counted quickly\n"
    peaks: list[int] = []
    for count in (60, 180):
        write(root, {f"{count}-{number}.txt": f"{number}\n" + line * 1_000 for number in range(count)})
        tracemalloc.start()
        try:
            assert client.ingest(root).added == count
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_the_commits_of_a_repository(client: sw.Client, tmp_path: Path) -> None:
    """They are stored once for each commit that is checked out, and go with the repository; a report ignores them."""
    write(tmp_path, {"a.py": "x = 1\n"})
    client.ingest(tmp_path)
    assert not client.tiers.contains(HISTORY_ID)
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--message", "Begin")
    report = client.ingest(tmp_path)
    assert (report.is_changed, report.stored) == (False, 0)
    first = client.tiers.peek(HISTORY_ID)
    assert decode_history(bytes(first.body)) == (Commit("Begin", ("a.py",)),)
    client.ingest(tmp_path)
    client.ingest(tmp_path / "a.py")
    again = client.tiers.peek(HISTORY_ID)
    assert again.revision == first.revision, "nothing was stored again"
    shutil.rmtree(tmp_path / ".git")
    client.ingest(tmp_path)
    assert not client.tiers.contains(HISTORY_ID)
