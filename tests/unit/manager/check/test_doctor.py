"""The doctor names what is wrong with a data directory, and changes nothing in it."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.model import Tier
from stepwell.errors import Busy, InvalidArgument
from stepwell.manager.check.doctor import Check, CheckReport, examine
from stepwell.storage import readonly
from stepwell.storage.files.directory import DATABASE, LOCK
from stepwell.storage.files.mark import MARK
from stepwell.storage.schema import VERSION
from tests.support.data_directories import alter, everything_in, killed_manager_directory, serving


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("doctor") / "data"
    killed_manager_directory(directory)
    return directory


@pytest.fixture(scope="module")
def closed_template(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = Path(shutil.copytree(template, tmp_path_factory.mktemp("doctor") / "closed"))
    alter(directory, "VACUUM")
    assert {path.name for path in directory.iterdir()} == {DATABASE, LOCK, MARK}
    return directory


@pytest.fixture
def directory(template: Path, tmp_path: Path) -> Path:
    """As a manager left it that was killed."""
    return Path(shutil.copytree(template, tmp_path / "data"))


@pytest.fixture
def closed(closed_template: Path, tmp_path: Path) -> Path:
    """As a manager left it that has ended well: the database alone."""
    return Path(shutil.copytree(closed_template, tmp_path / "data"))


def seven(_encoding: str) -> Callable[[bytes], int]:
    return lambda _: 7


def examined(directory: Path) -> CheckReport:
    """What the doctor says; that it leaves no trace is part of every test."""
    before = everything_in(directory)
    report = examine(directory, seven)
    assert everything_in(directory) == before
    return report


# What is as it should be.


def test_what_a_killed_manager_left_is_healthy(directory: Path) -> None:
    """Nothing is wrong, every table was looked at, and neither the log nor its index was touched."""
    assert (directory / f"{DATABASE}-wal").stat().st_size
    report = examined(directory)
    assert (report.problems, report.is_healthy) == ([], True)
    assert [*report.checks] == [*Check]
    assert (report.schema, report.directory) == (VERSION, str(directory))
    assert report.epoch
    assert report.counts["fragments"] == 14
    assert {table for table, count in report.counts.items() if not count} == set()


def test_what_a_manager_closed_is_healthy(closed: Path) -> None:
    """No log and no index come into being."""
    report = examined(closed)
    assert report.problems == []
    assert report.counts["fragments"] == 14


def test_a_log_without_its_index_is_read_all_the_same(directory: Path) -> None:
    """What was copied without the index is complete, and is not given one."""
    (directory / f"{DATABASE}-shm").unlink()
    report = examined(directory)
    assert report.problems == []
    assert report.counts["fragments"] == 14


def test_a_directory_that_is_being_served(directory: Path) -> None:
    """The manager is neither asked nor hindered."""
    with serving(directory):
        report = examine(directory, seven)
    assert report.problems == []
    assert report.counts["fragments"] == 14


def test_an_empty_file_is_where_a_manager_begins(tmp_path: Path) -> None:
    """One may have been killed before its first commit."""
    (tmp_path / DATABASE).touch()
    report = examined(tmp_path)
    assert (report.problems, report.schema) == ([], None)
    assert "nothing in it yet" in report.notes[0]


def test_tokens_that_somebody_else_counted_are_no_problem(closed: Path) -> None:
    """It is said how many; bodies that are no text are not counted."""
    report = examined(closed)
    assert report.problems == []
    (note,) = [each for each in report.notes if "tokens" in each]
    assert note.startswith("1 of 13 fragments with another number of tokens than estimate gives")


def test_an_encoding_that_is_not_to_be_had(closed: Path) -> None:
    report = examine(closed, lambda _: None)
    assert report.problems == []
    assert "tokens were not counted: encoding 'estimate' is not available here" in report.notes


def test_what_a_crash_leaves_is_a_note(closed: Path) -> None:
    """Parts and bodies that nothing refers to are removed by the next manager."""
    alter(
        closed,
        "INSERT INTO body_parts VALUES (99, 0, x'0102')",
        "INSERT INTO bodies VALUES (NULL, x'$empty', 0, 0, NULL, 0, x'', NULL)".replace("$empty", digest_of(b"").hex()),
    )
    report = examined(closed)
    assert report.problems == []
    assert any("1 part of an upload, 2 bytes, without a body" in note for note in report.notes)
    assert any("1 body that nothing refers to" in note for note in report.notes)


def test_a_lease_without_its_session_is_a_note(closed: Path) -> None:
    """It expires by itself."""
    alter(closed, "DELETE FROM sessions", "DELETE FROM replies", "DELETE FROM reply_parts")
    report = examined(closed)
    assert report.problems == []
    assert any("1 lease of sessions that are gone" in note for note in report.notes)


# What is not.

NAMES = {
    "$first": "(SELECT digest FROM fragments WHERE fragment_id = 'f0')",
    "$large": ("(SELECT upload FROM bodies WHERE digest = (SELECT digest FROM fragments WHERE fragment_id = 'large'))"),
}
ROWS = [
    ("store SET revision = 'x'", "rows: table store: revision: "),
    ("fragments SET metadata = '{' WHERE fragment_id = 'f0'", "table fragments, project 'p', fragment_id 'f0'"),
    ("fragments SET tier = 'tepid' WHERE fragment_id = 'f0'", "tokens: there is no tier 'tepid'"),
    ("actions SET arguments = '[1]'", "rows: table actions, name 'local/fix'"),
    ("plans SET phase = 'sleep'", "rows: table plans, plan_id "),
    ("leases SET token = 'x'", "rows: table leases, plan_id "),
    ("sessions SET projects = '{}'", "rows: table sessions, session_id "),
    ("actions SET description = CAST(x'ff' AS TEXT)", "rows: table actions, name 'local/fix': its checksum is wrong"),
    ("entries SET operation = 'guess'", "rows: table entries, changeset_id "),
    ("receipts SET projects = '7'", "rows: table receipts, receipt_id 'receipt'"),
    ("logs SET keep_ms = 'x'", "rows: table logs, project 'p', name 'log'"),
    ("log_entries SET metadata = '7' WHERE position = 2", "rows: table log_entries, log "),
    ("budget SET value = 0 WHERE name = 'hot_tokens'", "rows: table budget: "),
    ("bodies SET digest = x'00' WHERE digest = $first", "rows: table bodies, digest b'\\x00'"),
    ("bodies SET size = 'x' WHERE digest = $first", "rows: table bodies, body "),
    ("bodies SET upload = 1 WHERE digest = $first", "it is both in one piece and in parts"),
    ("bodies SET data = NULL WHERE digest = $first", "it is neither in one piece nor in parts"),
]
STATE = [
    ("plans SET state = 'queued'", "processing_means_leased: "),
    ("budget SET value = 1 WHERE name = 'hot_tokens'", "every_tier_is_within_its_budget: hot tokens: "),
    ("fragments SET serial = 1000 WHERE serial = 1", "projects_have_their_fragments_in_order_of_creation: "),
    ("fragments SET revision = 1000 WHERE serial = 1", "revisions: fragment ('p', 'f0') is of 1000"),
    ("receipts SET revision = 1000", "receipts_are_in_order_and_summed: receipt is of revision 1000"),
    ("receipts SET size = 1 << 40", "every_tier_is_within_its_budget: body bytes: "),
    ("logs SET next_position = 1", "entries_of_logs_are_in_order: ('p', 'log') has positions from 1 to 2 of 1"),
    ("logs SET last_position = 1", "entries_of_logs_are_in_order: ('p', 'log') has entry 2 behind its last one"),
    ("logs SET head = 1000", "entries_of_logs_are_in_order: ('p', 'log') has head 1000, from the future"),
    ("log_entries SET revision = 1000", "is of revision 1000, from the future"),
    ("fragments SET tokens = 0 WHERE serial = 1", "tokens: fragment ('p', 'f0') has 0"),
    ("fragments SET tokens = 10000000 WHERE serial = 1", "every_tier_is_within_its_budget: hot tokens: "),
]
BODIES = [
    ("fragments SET size = 1 WHERE fragment_id = 'f0'", "by the rows that refer to it (fragment ('p', 'f0'))"),
    ("bodies SET data = zeroblob(length(data)) WHERE digest = $first", "its bytes have the digest "),
    ("bodies SET digest = randomblob(32) WHERE digest = $first", "its bytes have the digest "),
    ("bodies SET data = substr(data, 2) WHERE digest = $first", "has 319 of its 320 bytes"),
    ("bodies SET data = zeroblob(length(data) + 1) WHERE digest = $first", "has more than its 320 bytes"),
    ("bodies SET data = 'text' WHERE digest = $first", "has text, or a number, in place of bytes"),
    ("bodies SET packed = 1 WHERE digest = $first", "cannot be uncompressed: "),
    ("bodies SET upload = 1 WHERE upload IS NOT NULL", "the parts of upload 1 belong to more than one body"),
]
OTHERS = [
    ("replies SET session_id = 'nobody'", "sessions: reply to request "),
    ("replies SET frame = x'0000'", "not our protocol"),
    ("replies SET frame = 1000000000000", "not our protocol"),
    ("reply_parts SET session_id = 'nobody'", "sessions: part 0 of the reply to request "),
    ("reply_parts SET results = x'00'", "not the results of a batch"),
    ("reply_parts SET results = 7", "not the results of a batch"),
    ("events SET event = '{}' WHERE revision = 1", "events: event 0 of revision 1: "),
    ("events SET kind = 'Birthday' WHERE revision = 1", "events: event 0 of revision 1 says that it is a "),
    ("events SET revision = 1000 WHERE revision = 1", "event 0 of revision 1000 is beyond the store's revision"),
    ("events SET ordinal = 5 WHERE revision = 1", "events: event 5 of revision 1, at "),
    ("events SET at_ms = 1 WHERE revision = 5", "events: event 0 of revision 5, at 1 ms, is out of order"),
    ("store SET events_after = 1000", "events: the oldest is behind revision 1000"),
]
TWICE = [
    (
        "INSERT INTO bodies SELECT NULL, digest, size, packed, NULL, 0, data, NULL FROM bodies WHERE data NOT NULL",
        "is there twice: as number ",
    ),
    ("UPDATE fragments SET fragment_id = 'f0' WHERE fragment_id = 'f1'", "fragment ('p', 'f0') is there twice"),
]
GONE = [
    ("DELETE FROM store", "rows: table store has 0 rows"),
    ("DELETE FROM plans", "sessions: lease "),
    ("DELETE FROM changesets", "contexts_own_exactly_their_open_changesets: it could not be checked: "),
    ("DELETE FROM decisions", "decisions_form_trees: "),
    ("DELETE FROM entries", "entries_are_numbered_without_gaps: "),
    ("DELETE FROM bodies WHERE digest = $first", "is not there (fragment ('p', 'f0'))"),
    ("DELETE FROM bodies WHERE digest = (SELECT after_digest FROM entries)", "is not there (entry 1 of changeset "),
    ("DELETE FROM bodies WHERE digest = (SELECT digest FROM receipts)", "is not there (receipt receipt)"),
    ("DELETE FROM log_entries WHERE position = 2", "entries_of_logs_are_in_order: ('p', 'log') has no entry 2"),
    (
        "DELETE FROM bodies WHERE digest = (SELECT digest FROM log_entries)",
        "is not there (entry 1 of log ('p', 'log'))",
    ),
    ("DELETE FROM body_parts WHERE upload = $large AND part = 1", "has no part 1 (fragment ('p', 'large'))"),
    ("DELETE FROM body_parts WHERE upload = $large AND part = 2", "has 2,097,152 of its 2,097,153 bytes"),
    ("DROP TABLE events", "events: cannot be read to the end: no such table: events"),
    ("DROP TABLE receipts", "rows: table receipts cannot be read behind its first 0 rows: no such table"),
    ("DROP TABLE plans", "rows: table plans cannot be read behind its first 0 rows: no such table"),
    ("PRAGMA user_version = 0", "schema: there is no version 0"),
    (f"PRAGMA user_version = {VERSION + 1}", f"schema: version {VERSION + 1} is of a later stepwell"),
]


@pytest.mark.parametrize(
    "statement, named",
    [(f"UPDATE {what}", named) for what, named in ROWS + STATE + BODIES + OTHERS] + TWICE + GONE,
)
def test_each_damage_is_named(closed: Path, statement: str, named: str) -> None:
    """With what and where."""
    for name, query in NAMES.items():
        statement = statement.replace(name, query)
    alter(closed, statement)
    report = examined(closed)
    assert not report.is_healthy
    assert any(named in problem for problem in report.problems), report.problems


def test_rows_behind_one_that_cannot_be_read_are_read(closed: Path) -> None:
    """All that is wrong is said, not only what is wrong first."""
    alter(closed, "UPDATE fragments SET tier = 'tepid' WHERE tier = 'warm'")
    report = examined(closed)
    assert report.checks[Check.ROWS].count == 5


def test_a_page_that_is_not_what_was_written(closed: Path) -> None:
    """Bytes were turned over in every page but the first: SQLite's own check and ours say so, and nobody stumbles."""
    database = closed / DATABASE
    content = bytearray(database.read_bytes())
    for page in range(4096, len(content), 4096):
        content[page : page + 16] = bytes(each ^ 0xFF for each in content[page : page + 16])
    database.write_bytes(content)
    report = examined(closed)
    assert report.checks[Check.FILE].count
    assert report.checks[Check.ROWS].count


@pytest.mark.parametrize("offset", range(0, 120, 8))
def test_a_turned_byte_in_the_header(closed: Path, offset: int) -> None:
    """Whatever it does: a problem, a refusal, or nothing that matters, but never a traceback."""
    content = bytearray((closed / DATABASE).read_bytes())
    content[offset] ^= 0xFF
    (closed / DATABASE).write_bytes(content)
    with contextlib.suppress(InvalidArgument):
        examined(closed)


@pytest.mark.parametrize("size", [1, 100, 4096, 40_000])
def test_a_file_that_was_cut_off(closed: Path, size: int) -> None:
    with (closed / DATABASE).open("r+b") as file:
        file.truncate(size)
    report = examined(closed)
    assert not report.is_healthy
    assert report.problems[0].startswith("file: ")


def test_an_empty_file_beside_its_log(directory: Path) -> None:
    """SQLite would delete the log, and with it everything that was acknowledged."""
    (directory / DATABASE).write_bytes(b"")
    report = examined(directory)
    assert "is empty, and its log is not" in report.problems[0]


def test_another_file_where_a_manager_was(closed: Path) -> None:
    (closed / DATABASE).write_text("Dear diary, " * 100)
    report = examined(closed)
    assert "does not begin as a database does" in report.problems[0]


def test_problems_beyond_the_bound_are_counted(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROBLEMS_LISTED_MAX", 3)
    alter(closed, "UPDATE fragments SET tokens = 0")
    problems = [problem for problem in examined(closed).problems if problem.startswith("tokens: ")]
    assert len(problems) == 4
    assert problems[-1] == "tokens: and 11 more"


def test_an_older_schema_is_left_to_the_next_manager(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.manager.check.doctor.VERSION", VERSION + 1)
    report = examined(closed)
    assert report.problems == []
    assert "which the next manager brings up to date" in report.notes[0]


# What is no data directory.


def test_refusals(tmp_path: Path) -> None:
    """Each says what to give instead."""
    with pytest.raises(InvalidArgument, match="there is no directory"):
        examine(tmp_path / "missing", seven)
    with pytest.raises(InvalidArgument, match=f"there is no {DATABASE} in"):
        examine(tmp_path, seven)
    (tmp_path / DATABASE).write_text("Dear diary, " * 100)
    with pytest.raises(InvalidArgument, match="is no database"):
        examine(tmp_path, seven)
    (tmp_path / DATABASE).unlink()
    alter(tmp_path, "CREATE TABLE mine (id)")
    with pytest.raises(InvalidArgument, match="another program's"):
        examine(tmp_path, seven)


def test_what_may_not_be_read(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(InvalidArgument, match="may not be read"):
        examine(closed, seven)


def test_a_manager_that_comes_meanwhile(closed: Path) -> None:
    """Where nothing shields a reader from it, the reader looks again."""
    looks = 0

    def look(_db: object) -> int:
        nonlocal looks
        looks += 1
        if looks == 1:
            (closed / DATABASE).touch()
        elif looks == 2:
            (closed / DATABASE).touch()
            raise ValueError(looks)
        return looks

    assert readonly.inspect(closed / DATABASE, look) == 3


def test_managers_that_come_and_go(closed: Path) -> None:
    """It is not tried for ever; and an error that is nobody's doing is raised at once."""
    with pytest.raises(Busy, match="start and stop"):
        readonly.inspect(closed / DATABASE, lambda _: (closed / DATABASE).touch())
    with pytest.raises(ZeroDivisionError):
        readonly.inspect(closed / DATABASE, lambda _: 1 / 0)


def test_sums_are_of_every_tier(closed: Path) -> None:
    """What the table says is compared with what a manager would count."""
    alter(closed, "UPDATE fragments SET tier = 'tepid' WHERE fragment_id = 'f1'")
    problems = examined(closed).checks[Check.TOKENS].listed
    assert [problem for problem in problems if problem.startswith(tuple(Tier))] == []
