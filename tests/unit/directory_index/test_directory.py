"""The index of a directory: it follows the files, answers like one built anew, and needs nothing but the files."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.assembly.answer import Answer
from stepwell.client.session import tokens
from stepwell.client.workflows.split_files import FileSplitter
from stepwell.directory_index import array_file, contents, directory, refresh
from stepwell.directory_index.cache import CacheDirectory
from stepwell.directory_index.directory import DirectoryIndex
from stepwell.directory_index.receipts import ReceiptFiles
from stepwell.domain.tiers.commit_history import HISTORY_ID, decode_history
from stepwell.domain.tiers.source_outline import FILE_KIND
from stepwell.ingest import files
from stepwell.ingest.files import FileRequest, SplitJob
from stepwell.ingest.secret_policy import SecretPolicy
from stepwell.strategies.builtin.keyword import KeywordStrategy
from stepwell.strategies.index import embeddings
from stepwell.strategies.index.index_cache import IndexCaches
from stepwell.strategies.protocol import ContextRequest
from tests.support.ingest import git, write
from tests.support.seeds import seeded
from tests.support.wait import eventually

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

FILES: dict[str, str | bytes] = {
    "src/budget.py": 'import tiers\n\n\ndef keep(budget):\n    """Demote what is least used."""\n    tiers.demote()\n',
    "src/tiers.py": "def demote(what):\n    return what.least_used\n\n\ndef promote(what):\n    return what.most\n",
    "docs/wells.md": "# Wells\n\nA well has steps, and a budget of buckets.\n\n## Water\n\nIt is cold.\n",
    "chat.md": "Alice: where is the budget?\n\nBob: in the well.\n",
    "picture.png": b"\x89PNG\x00\x00",
    "server.pem": "password=hunter2\n",
}
ASKED = ("keyword", "graph", "tiered")


class Place:
    """A directory with files, and its cache. Each `open` is what one command does."""

    def __init__(self, path: Path) -> None:
        self.root = path / "root"
        self.cache = CacheDirectory(path / "cache" / "one")
        self.notices: list[str] = []
        self._open = ExitStack()
        write(self.root, FILES)

    def open(self, cache: CacheDirectory | None = None, project: str = "p") -> DirectoryIndex:
        found = DirectoryIndex(self.root, project, SecretPolicy.REDACT, cache or self.cache, self.notices.append)
        return self._open.enter_context(found)

    def close(self) -> None:
        """Leave the blocks of all indexes that were opened."""
        self._open.close()

    def ask(self, query: str, *, cache: CacheDirectory | None = None, names: Sequence[str] | None = ASKED) -> Answer:
        opened = self.open(cache)
        opened.refresh()
        return opened.assemble(ContextRequest(projects=["p"], query=query, budget_tokens=800), strategies=names)

    def settle(self) -> None:
        """Set the files back in time, as files are that were not written just now."""
        for path in self.root.rglob("*"):
            if path.is_file():
                seen = path.stat()
                os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns - 10 * limits.INGEST_SETTLED_NS))


@pytest.fixture
def young(tmp_path: Path) -> Iterator[Place]:
    """A directory whose files were written just now."""
    found = Place(tmp_path)
    yield found
    found.close()


@pytest.fixture
def place(young: Place) -> Place:
    """A directory whose files are older than any tick of a clock."""
    young.settle()
    return young


def sources(answer: Answer) -> list[str]:
    return [each.source for each in answer.fragments]


def reads(place: Place, monkeypatch: pytest.MonkeyPatch, query: str = "budget") -> list[str]:
    """Return the files that are split for a question."""
    split = FileSplitter.split_here
    found: list[str] = []

    def noted(self: FileSplitter, asked: FileRequest) -> object:
        found.append(asked.source)
        return split(self, asked)

    with monkeypatch.context() as patch:
        patch.setattr(FileSplitter, "split_here", noted)
        place.ask(query)
    return found


def test_first_and_later_questions(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one reads the files, and later ones do not; what is left out is said each time."""
    opened = place.open()
    left_out = opened.refresh()
    assert left_out.skipped == {"picture.png": "it is binary"}
    assert left_out.secrets == {"server.pem": "key or certificate"}
    answer = opened.assemble(ContextRequest(projects=["p"], query="who demotes the least used?", budget_tokens=800))
    assert sources(answer)[0] == "src/budget.py"
    assert "Demote what is least used." in answer.text
    assert answer.total_tokens <= 800
    assert reads(place, monkeypatch) == []
    again = place.open()
    assert again.refresh() == left_out
    assert place.ask("who demotes the least used?", names=None).text == answer.text
    assert place.notices == []


def test_only_changed_files_are_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few changes are read again at each question; when there are more, the index is written."""
    place.ask("budget")
    written = place.cache.index.stat().st_ino
    write(place.root, {"src/new.py": "def leaky_bucket(): ...\n"})
    (place.root / "chat.md").unlink()
    for _ in range(2):
        assert reads(place, monkeypatch) == ["src/new.py"]
        assert sources(place.ask("leaky bucket"))[0] == "src/new.py"
        assert "chat.md" not in sources(place.ask("where is the budget"))
    assert place.cache.index.stat().st_ino == written
    write(place.root, {f"src/more{number}.py": f"def rope_{number}(): ...\n" for number in range(9)})
    place.settle()
    assert len(reads(place, monkeypatch)) > 9
    assert place.cache.index.stat().st_ino != written
    assert reads(place, monkeypatch) == []
    assert sources(place.ask("rope_7")) == ["src/more7.py"]


def test_young_files_are_compared_by_digest(young: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was written just before it was read may change again within one tick of its clock."""
    place = young
    place.ask("budget")
    path = place.root / "src/tiers.py"
    seen = path.stat()
    path.write_text(path.read_text().replace("least_used", "rust_used_"))
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert sources(place.ask("rust_used_"))[0] == "src/tiers.py"
    place.settle()
    assert len(reads(place, monkeypatch)) == len(FILES) - 1, "their times are known from now on"
    assert reads(place, monkeypatch) == []


def test_following_equals_building(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any changes, the answers are those of an index that was built for the files as they are."""
    random, words = seeded(11), ["budget", "bucket", "rope", "well", "water", "tiers"]
    monkeypatch.setattr(limits, "DIRECTORY_UNSAVED_FILES_MAX", 1)
    monkeypatch.setattr(limits, "DIRECTORY_ROUND_BYTES", 300)
    names = [f"src/{letter}.py" for letter in "abcdefgh"]
    for step in range(25):
        for name in random.sample(names, random.randint(1, 4)):
            if random.random() < 0.3:
                (place.root / name).unlink(missing_ok=True)
            else:
                body = "".join(
                    f"def {random.choice(words)}_{number}():\n    return {random.choice(words)}\n\n\n"
                    for number in range(random.randint(1, 6))
                )
                write(place.root, {name: f"import {random.choice('abcdefgh')}\n\n\n{body}"})
        query = " ".join(random.sample(words, 2))
        fresh = CacheDirectory(tmp_path / "cache" / f"fresh{step}")
        assert place.ask(query).text == place.ask(query, cache=fresh).text


def test_commits_find_files(place: Place) -> None:
    """The commits of a repository are part of the index, and new ones are noticed."""
    write(place.root, {".gitignore": "*.png\n*.pem\n"})
    git(place.root, "init")
    git(place.root, "add", "--all")
    git(place.root, "commit", "-m", "Dig a well")
    place.ask("budget")
    view = place.open().view
    before = next(row for row in view.rows("p") if row.fragment_id == HISTORY_ID)
    (place.root / "docs/wells.md").write_text("# Wells\n\nDeep.\n")
    git(place.root, "commit", "--all", "-m", "Mention the aquifer")
    opened = place.open()
    opened.refresh()
    after = next(row for row in opened.view.rows("p") if row.fragment_id == HISTORY_ID)
    assert after.digest != before.digest
    assert sources(place.ask("aquifer in wells"))[0] == "docs/wells.md"


def test_listings_of_files(place: Place) -> None:
    """The rows that stand for files are found by a request that names their kind."""
    place.ask("budget")
    opened = place.open()
    opened.refresh()
    asked = ContextRequest(projects=["p"], query="demote", kinds=[FILE_KIND], budget_tokens=800)
    assert "demote" in opened.assemble(asked, strategies=["keyword"]).text


def test_listings_of_a_repository(place: Place) -> None:
    """The row with the commits has its body also in an index that was read from the cache."""
    git(place.root, "init")
    git(place.root, "add", "--all")
    git(place.root, "commit", "-m", "Dig a well")
    place.ask("budget")
    opened = place.open()
    opened.refresh()
    asked = ContextRequest(projects=["p"], query="demote", kinds=[FILE_KIND], budget_tokens=800)
    answer = opened.assemble(asked, strategies=["keyword"])
    assert answer.failures == ()
    assert "demote" in answer.text
    commits = opened.view.get(HISTORY_ID, project="p")
    assert commits is not None
    assert [each.message for each in decode_history(bytes(commits.body))] == ["Dig a well"]


def test_a_file_that_changes_while_it_is_asked(place: Place) -> None:
    """Its parts cannot be shown any more, the others can."""
    place.ask("budget")
    opened = place.open()
    opened.refresh()
    (place.root / "src/tiers.py").write_text("gone = 1\n")
    asked = ContextRequest(projects=["p"], query="demote the least used budget", budget_tokens=800)
    answer = opened.assemble(asked, strategies=["keyword"])
    assert "src/budget.py" in sources(answer)
    assert "src/tiers.py" not in sources(answer)
    part = opened.view.get("src/tiers.py#demote", project="p")
    assert part is not None
    with pytest.raises(sw.BodyGone, match="has changed since"):
        _ = part.body
    (place.root / "src/tiers.py").unlink()
    other = place.open()
    part = other.view.get("src/tiers.py#demote", project="p")
    assert part is not None
    with pytest.raises(sw.BodyGone, match="cannot be read any more"):
        _ = part.text


def test_unreadable_files(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are named each time, and read when they can be."""
    read_file = files.read_file

    def refuse(root: bytes, source: str) -> object:
        if source == "src/tiers.py":
            raise PermissionError(13, "Permission denied")
        return read_file(root, source)

    with monkeypatch.context() as patch:
        patch.setattr(files, "read_file", refuse)
        for _ in range(2):
            assert place.open().refresh().skipped["src/tiers.py"] == "permission denied"
    assert "src/tiers.py" not in place.open().refresh().skipped
    assert "src/tiers.py" in sources(place.ask("promote"))


def test_what_is_not_new_is_not_written(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are read at each question, and are the same or unreadable, do not make it write the index."""
    tomorrow_ns = time.time_ns() + 24 * 3600 * 10**9
    write(place.root, {f"src/{state}{number}.py": "rope = 1\n" for state in ("early", "shut") for number in range(9)})
    for path in place.root.glob("src/early*"):
        os.utime(path, ns=(tomorrow_ns, tomorrow_ns))
    read_file = files.read_file

    def refuse(root: bytes, source: str) -> object:
        if "shut" in source:
            raise PermissionError(13, "Permission denied")
        return read_file(root, source)

    monkeypatch.setattr(files, "read_file", refuse)
    place.ask("budget")
    written = place.cache.index_stamp()
    assert {"src/early0.py", "src/shut0.py"} <= {*reads(place, monkeypatch)}
    assert place.cache.index_stamp() == written


def test_another_project_name(place: Place) -> None:
    """The same index serves under another name."""
    place.ask("budget")
    opened = place.open(project="other/name")
    opened.refresh()
    answer = opened.assemble(ContextRequest(projects=["other/name"], query="budget", budget_tokens=800))
    assert {each.project for each in answer.fragments} == {"other/name"}


def test_worker_processes_split_many_files(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same parts as one process finds."""
    alone = place.ask("budget").text
    monkeypatch.setattr(limits, "DIRECTORY_FILES_ALONE_MAX", 0)
    assert place.ask("budget", cache=CacheDirectory(place.cache.path.with_name("two"))).text == alone


def test_a_file_that_workers_die_of(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left out until it changes: this process would die of it, too."""
    split_file = files.split_file

    def dying(root: bytes, asked: FileRequest, count: files.Count, policy: SecretPolicy) -> object:
        assert asked.source != "src/tiers.py", "workers have died of it"
        return split_file(root, asked, count, policy)

    def skipped(self: FileSplitter, asked: Iterable[tuple[FileRequest, int]]) -> Iterator[object]:
        for each, _ in asked:
            is_deadly = each.source == "src/tiers.py"
            yield (
                (files.FileSkipped(each.source, "it kills", is_unsafe=True), b"")
                if is_deadly
                else self.split_here(each)
            )

    with monkeypatch.context() as patch:
        patch.setattr(limits, "DIRECTORY_FILES_ALONE_MAX", 0)
        patch.setattr(FileSplitter, "split_all", skipped)
        place.open().refresh()
    with monkeypatch.context() as patch:
        patch.setattr(files, "split_file", dying)
        assert reads(place, monkeypatch) == []
        assert place.open().refresh().skipped["src/tiers.py"] == "it kills"
    (place.root / "src/tiers.py").write_text("harmless = 1\n")
    assert sources(place.ask("harmless")) == ["src/tiers.py"]


def test_a_job_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker dies, so that the next job has one."""
    monkeypatch.setattr(limits, "DIRECTORY_SPLIT_SECONDS_MAX", 0.1)
    monkeypatch.setattr(refresh, "split_file", lambda *_: signal.pause())
    pid = os.fork()
    if not pid:
        refresh.split_job(files.encoder.encode(SplitJob(b"/", tokens.ESTIMATE, (FileRequest("a"),))))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGALRM


def test_other_code_or_tokens_begin_anew(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that other code has made, or with other tokens, is not used."""
    place.ask("budget")
    with monkeypatch.context() as patch:
        patch.setattr(contents, "_code_digest", lambda: "of another release")
        assert len(reads(place, monkeypatch)) == len(FILES) - 1
    monkeypatch.setattr(directory, "counter", lambda: tokens.counter(tokens.ESTIMATE))
    assert len(reads(place, monkeypatch)) == len(FILES) - 1


def test_another_model_begins_anew(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Vectors of one model are not compared with those of another, and not kept up to date without a model."""
    place.ask("budget")
    for installed in (tmp_path, None):
        contents._code_digest.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(embeddings, "installed_at", lambda found=installed: found)
            assert len(reads(place, monkeypatch)) == len(FILES) - 1
    contents._code_digest.cache_clear()


def test_code_in_an_archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another archive has other code."""
    archive = tmp_path / "stepwell.pyz"
    monkeypatch.setattr(contents, "_PACKAGE", archive / "stepwell")
    found: set[str] = set()
    for text in ("one", "three"):
        archive.write_text(text)
        contents._code_digest.cache_clear()
        found.add(contents._code_digest())
    contents._code_digest.cache_clear()
    assert len(found) == 2


def test_a_damaged_cache_is_built_again(place: Place) -> None:
    """The answer is the same, and a notice says so; also where the rows are no rows."""
    expected = place.ask("budget").text
    whole = place.cache.index.read_bytes()
    for damaged in (b"", whole[:-100], whole.replace(b"budget", b"badger")):
        place.cache.index.write_bytes(damaged)
        assert place.ask("budget").text == expected
        assert "the cache cannot be used, and is built again" in place.notices.pop()
    assert place.ask("budget").text == expected
    assert place.notices == []


def test_a_state_that_makes_no_sense(place: Place) -> None:
    """A file with right checksums and wrong contents is damaged, too."""
    place.ask("budget")
    arrays = array_file.read(place.cache.index, place.open()._version)
    assert arrays is not None
    array_file.write(place.cache.index, place.open()._version, {**arrays, "rows": arrays["identity"]})
    assert sources(place.ask("budget"))
    assert "cannot be read" in place.notices.pop()


def test_arrays_that_do_not_fit_together(place: Place) -> None:
    """An array that is shorter or missing, or has a number beyond what it counts, is damage, not an answer."""
    place.ask("budget")
    version = place.open()._version
    whole = array_file.read(place.cache.index, version)
    assert whole is not None
    with_room = {"timelines/codes", "timelines/columns"}
    damaged = [{**whole, name: array[:-1]} for name, array in whole.items() if len(array) and name not in with_room]
    numbered = {name for name in whole if name.rpartition("/")[2] in {"places", "file_numbers", "0.slots", "0.borders"}}
    assert len(numbered) == 6
    for name in numbered:
        damaged.append({key: array for key, array in whole.items() if key != name})
        for wrong in (-7, 1 << 30):
            changed = whole[name].copy()
            changed[len(changed) // 2] = abs(wrong) if changed.dtype.kind == "u" else wrong
            damaged.append({**whole, name: changed})
    for arrays in damaged:
        array_file.write(place.cache.index, version, arrays)
        with pytest.raises(sw.StoreDamaged, match="cannot be read"):
            contents.load(place.cache.index, version, "p", IndexCaches())


def test_no_cache_at_all(place: Place) -> None:
    """The answer is the same without one, and has no receipt."""
    place.cache.path.parent.write_text("a file, where the cache would be")
    answer = place.ask("budget")
    assert (bool(answer.fragments), answer.receipt_id) == (True, "")
    assert [each.split(":")[0] for each in place.notices] == ["nothing is cached for the next time"]


def test_the_disk_is_full(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """At whatever is written, the answer is given all the same."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(array_file, "write", refuse)
        assert place.ask("budget").receipt_id == ""
    with monkeypatch.context() as patch:
        patch.setattr(ReceiptFiles, "add", refuse)
        assert place.ask("budget").fragments
    assert len(place.notices) == 2
    assert place.ask("budget").receipt_id


def test_a_read_only_cache(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index in it is used, and nothing is written."""
    place.ask("budget")
    write(place.root, {f"src/more{number}.py": f"def rope_{number}(): ...\n" for number in range(9)})
    opened, opener = place.open(), os.open

    def refuse(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise OSError(30, "Read-only file system")
        return opener(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    opened.refresh()
    asked = ContextRequest(projects=["p"], query="rope_7", budget_tokens=800)
    assert sources(opened.assemble(asked, strategies=["keyword"])) == ["src/more7.py"]
    assert place.notices == ["nothing is cached for the next time: [Errno 30] Read-only file system"]


def test_a_damaged_cache_of_few_files(place: Place) -> None:
    """It is written anew at once, although its files are so few that no index need be written."""
    place.ask("budget")
    for source in FILES:
        if source != "chat.md":
            (place.root / source).unlink()
    place.cache.index.write_bytes(b"")
    for _ in range(2):
        assert sources(place.ask("where is the budget")) == ["chat.md"]
    assert len(place.notices) == 1


def test_two_commands_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has to write waits for the other, and then has nothing left to read."""
    waiting, first = place.open(), place.open()
    with ThreadPoolExecutor(1) as threads:
        with place.cache.locked(lambda: None):
            waiter = threads.submit(waiting.refresh)
            eventually(lambda: place.notices == ["another command reads the same files: waiting for it"])
            first._follow(refresh.compare(first._tree, first._state), None)
            first._save()
        waiter.result()
    assert waiting.view.revision == first.view.revision > 0
    assert reads(place, monkeypatch) == []


def test_files_that_come_while_it_waits(place: Place) -> None:
    """A command that waited looks at the files again: it does not take those that the other one found for deleted."""
    waiting = place.open()
    with ThreadPoolExecutor(1) as threads:
        with place.cache.locked(lambda: None):
            waiter = threads.submit(waiting.refresh)
            eventually(lambda: place.notices == ["another command reads the same files: waiting for it"])
            write(place.root, {"src/late.py": "def rope(): ...\n"})
            first = place.open()
            first._follow(refresh.compare(first._tree, first._state), None)
            first._save()
        waiter.result()
    assert "src/late.py" in {row.source for row in waiting.view.rows("p")}


def test_a_directory_that_becomes_a_file(place: Place) -> None:
    """The files that git has tracked in it are deleted, not unreadable."""
    git(place.root, "init")
    git(place.root, "add", "--all")
    place.ask("budget")
    shutil.rmtree(place.root / "src")
    write(place.root, {"src": "rope\n"})
    opened = place.open()
    assert opened.refresh().skipped == {"picture.png": "it is binary"}
    assert {row.source for row in opened.view.rows("p")} == {"src", "docs/wells.md", "chat.md", "picture.png"}


def test_embeddings_are_kept(place: Place) -> None:
    """Vectors are computed once, by the first question that needs them."""
    pytest.importorskip("wordllama")
    place.ask("budget", names=None)
    first = place.open()
    assert first._caches.embeddings.known("p") is not None
    write(place.root, {"src/new.py": "def leaky_bucket(): ...\n"})
    assert "src/new.py" in sources(place.ask("leaky bucket", names=["semantic"]))


def test_embeddings_are_kept_beside_changed_files(place: Place) -> None:
    """The first question that needs them writes them, also if it has read files that are not yet in the index."""
    pytest.importorskip("wordllama")
    place.ask("budget")
    write(place.root, {"src/new.py": "def leaky_bucket(): ...\n"})
    place.ask("leaky bucket", names=["semantic"])
    assert place.open()._caches.embeddings.known("p") is not None


def test_indexes_of_another_command_stay(place: Place) -> None:
    """A question does not wait to write new indexes, and writes none over those of another command."""
    pytest.importorskip("wordllama")
    place.ask("budget")
    asked = ContextRequest(projects=["p"], query="budget", budget_tokens=800)
    busy, late = place.open(), place.open()
    for each in (busy, late):
        each.refresh()
    with place.cache.locked(lambda: None):
        busy.assemble(asked, strategies=["semantic"])
        written = place.cache.index_stamp()
    write(place.root, {f"src/more{number}.py": f"def rope_{number}(): ...\n" for number in range(9)})
    place.open().refresh()
    replaced = place.cache.index_stamp()
    late.assemble(asked, strategies=["semantic"])
    assert written != replaced == place.cache.index_stamp()


def test_deadline(place: Place) -> None:
    """A built-in strategy that takes longer than it may fails by name, and the others answer."""
    opened = place.open()
    opened.refresh()
    asked = ContextRequest(projects=["p"], query="budget", budget_tokens=800)
    answer = opened.assemble(asked, strategies=["keyword"], deadline_s=1e-9)
    assert [each.kind for each in answer.failures] == ["DeadlineExceeded"]


def test_a_strategy_that_raises(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A built-in one costs itself only, too, with whatever it raises."""
    monkeypatch.setattr(KeywordStrategy, "assemble", lambda *_: 1 // 0)
    answer = place.ask("budget", names=["keyword", "graph"])
    assert [(each.strategy, each.kind) for each in answer.failures] == [("keyword", "TaskFailed")]
    assert answer.fragments


def test_unknown_strategy(place: Place) -> None:
    answer = place.ask("budget", names=["keyword", "nobody-has-this"])
    assert [(each.strategy, each.kind) for each in answer.failures] == [("nobody-has-this", "NotFound")]
    assert answer.fragments


def test_nothing_is_left(place: Place) -> None:
    """Neither a draft nor another file, after any number of questions."""
    for _ in range(3):
        place.ask("budget")
    assert sorted(each.name for each in place.cache.path.iterdir()) == ["command.lock", "index", "receipts"]
    assert subprocess.run(["find", place.cache.path, "-perm", "/077"], check=True, capture_output=True).stdout == b""
    assert place.ask("budget").receipt_id in {each.stem for each in place.cache.receipts.iterdir()}
