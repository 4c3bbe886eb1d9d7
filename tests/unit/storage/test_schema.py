"""Tables of every version become ours, or are left alone."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stepwell.errors import StartFailed, StepwellError, StoreDamaged
from stepwell.storage import rows, schema
from stepwell.storage.files.directory import DATABASE
from stepwell.storage.schema import APPLICATION_ID, MIGRATIONS, VERSION
from tests.support.storage.kept_database import VERSIONS
from tests.support.storage.state import durable_state, files, fill, kept, tamper

ADDED = "CREATE TABLE added (x INTEGER);\nINSERT INTO added VALUES (7);\n"


def refused(directory: Path, kind: type[StepwellError], message: str) -> None:
    """It does not open, says why, and every byte is as it was."""
    before = files(directory)
    with pytest.raises(StepwellError, match=message) as caught, durable_state(directory):
        pass
    assert type(caught.value) is kind
    assert files(directory) == before


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """One with something in every table."""
    with durable_state(tmp_path) as made:
        fill(made)
    return tmp_path


def next_version(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """As if this were the stepwell after ours."""
    monkeypatch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, script))
    monkeypatch.setattr(schema, "VERSION", VERSION + 1)


def value(directory: Path, query: str) -> object:
    with closing(sqlite3.connect(directory / DATABASE)) as db:
        return db.execute(query).fetchone()[0]


def test_fresh_database_says_whose_it_is(tmp_path: Path) -> None:
    """To any tool, by SQLite's own means."""
    with durable_state(tmp_path):
        pass
    assert value(tmp_path, "PRAGMA application_id") == APPLICATION_ID
    assert value(tmp_path, "PRAGMA user_version") == VERSION


def test_every_table_is_filled_by_the_fixture(directory: Path) -> None:
    """So that what is said below of a directory is said of all of them; parts are of large bodies alone."""
    renamed = set(re.findall(r"ALTER TABLE (\w+) RENAME", "".join(MIGRATIONS)))
    tables = set(re.findall(r"CREATE TABLE (\w+)", "".join(MIGRATIONS))) - renamed
    empty = {table for table in tables if not value(directory, f"SELECT count(*) FROM {table}")}  # noqa: S608 - ours
    assert empty == {"body_parts"}


def test_later_version_is_left_alone(directory: Path) -> None:
    tamper(directory, f"PRAGMA user_version = {VERSION + 1}")
    refused(directory, StartFailed, "later stepwell")


@pytest.mark.parametrize("version", [0, -1])
def test_version_that_was_never_written_is_damage(directory: Path, version: int) -> None:
    """It is neither empty, nor a disk that cannot be written."""
    tamper(directory, f"PRAGMA user_version = {version}")
    refused(directory, StoreDamaged, "version")


@pytest.mark.parametrize("statement", ["CREATE TABLE t (x)", "PRAGMA user_version = 1", "PRAGMA application_id = 5"])
def test_database_of_somebody_else_is_left_alone(tmp_path: Path, statement: str) -> None:
    tamper(tmp_path, statement)
    refused(tmp_path, StartFailed, "not stepwell's")


def test_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"a text, and no database\n" * 1_000)
    refused(tmp_path, StoreDamaged, "not a database")


def test_older_version_is_brought_up_to_date(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that was in it."""
    before = kept(directory)
    next_version(monkeypatch, ADDED)
    with durable_state(directory):
        pass
    assert value(directory, "SELECT x FROM added") == 7
    assert value(directory, "PRAGMA user_version") == VERSION + 1
    assert kept(directory).rows == before.rows


def test_older_version_is_read_as_the_tables_are_afterwards(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads them knows the tables of this version, and no others."""
    next_version(monkeypatch, "ALTER TABLE decisions RENAME COLUMN choice TO chosen;\n")
    monkeypatch.setattr(rows.DECISIONS, "select", rows.DECISIONS.select.replace("choice", "chosen"))
    with durable_state(directory) as made:
        assert len(made.owner._state.decisions) == 1


def test_damage_of_an_older_version_is_not_sealed(tmp_path: Path) -> None:
    """A migration that writes new checksums compares the old ones first: the row is named, and nothing is changed."""
    shutil.copyfile(VERSIONS / "7.sqlite", tmp_path / DATABASE)
    tamper(tmp_path, "UPDATE plans SET description = 'another one'")
    refused(tmp_path, StoreDamaged, "table plans, plan_id 'plan': its checksum is wrong")


@pytest.mark.parametrize("script", ["CREATE TABLE plans (x);\n", f"{ADDED}nonsense;\n", f"{ADDED}{ADDED}"])
def test_migration_that_fails_leaves_everything_as_it_was(
    directory: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """All of it, or nothing; and the stepwell before it still opens it."""
    before = files(directory)
    with monkeypatch.context() as patch:
        next_version(patch, script)
        with pytest.raises(StepwellError), durable_state(directory):
            pass
    assert files(directory) == before
    with durable_state(directory) as made:
        assert len(made.owner._state.plans) == 2
