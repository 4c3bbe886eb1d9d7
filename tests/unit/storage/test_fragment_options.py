"""What a fragment asks for is stored with it: keep, expiry and writer come back, also from what version 7 has left."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stepwell.cli.main import main
from stepwell.domain import invariants
from stepwell.domain.tiers.commands import (
    CheckFragment,
    DemoteFragment,
    ExpireFragments,
    GetFragment,
    StoreFragment,
    StoreOptions,
)
from stepwell.domain.tiers.model import FragmentRow, Tier, Work, Writer
from stepwell.domain.verdict import Origin
from stepwell.errors import StoreDamaged
from stepwell.storage.files.directory import DATABASE
from tests.support.storage.kept_database import SUFFIX, VERSIONS
from tests.support.storage.state import NOON_MS, DurableState, durable_state, tamper

WRITERS = [
    None,
    Writer("alice", 7),
    Writer("alice", 7, "planner", Work("plan")),
    Writer("b", 2**22, "x", Work("p", "c")),
]
OPTIONS = [
    StoreOptions(),
    StoreOptions(keep=True),
    StoreOptions(expires_at_ms=NOON_MS + 1_000),
    StoreOptions(keep=True, expires_after_ms=1_000),
    StoreOptions(expires_at_ms=NOON_MS + 5, expires_after_ms=1_000, unique=True),
]


def rows_of(made: DurableState) -> dict[str, FragmentRow]:
    return {entry.row.fragment_id: entry.row for entry in made.owner._state.fragments}


def fill(made: DurableState) -> None:
    """A fragment with each writer and each option."""
    for number, writer in enumerate(WRITERS):
        for options in OPTIONS:
            name = f"{number}-{OPTIONS.index(options)}"
            command = StoreFragment("p", name, name.encode(), 1, options=options)
            made.owner.execute(command, Origin("alice", NOON_MS, writer=writer))


@pytest.mark.parametrize("is_followed", [True, False], ids=["from the tables", "from the log"])
def test_everything_comes_back(tmp_path: Path, *, is_followed: bool) -> None:
    """Rows, the lists of what is kept, and the order of expiry. Equal writers are one object."""
    with durable_state(tmp_path) as made:
        fill(made)
        made.do(DemoteFragment("p", "0-1"))
        made.commit()
        if is_followed:
            made.follow()
        before, times = rows_of(made), made.owner._state.fragments.expiry.times()
    with durable_state(tmp_path) as made:
        assert invariants.check(made.owner._state) == []
        assert rows_of(made) == before
        table = made.owner._state.fragments
        assert table.expiry.times() == times
        assert [entry.row.fragment_id for entry in table.oldest_kept(Tier.COLD)] == ["0-1"]
        assert len({id(row.writer) for row in rows_of(made).values() if row.writer}) == len(WRITERS) - 1


def test_expired_is_absent_after_a_restart(tmp_path: Path) -> None:
    """By the time of the new manager; what a read has moved is there."""
    with durable_state(tmp_path) as made:
        for name in ("read", "not"):
            made.do(StoreFragment("p", name, name.encode(), 1, options=StoreOptions(keep=True, expires_after_ms=1_000)))
        made.do(GetFragment("p", "read"), NOON_MS + 900)
        made.journal.write_uses()
        made.commit()
        made.follow()
    with durable_state(tmp_path) as made:
        for name, revision in (("read", 1), ("not", None)):
            reply = made.do(CheckFragment("p", name), NOON_MS + 1_800).reply
            assert getattr(reply, "fragment_revision", 0) == revision
        made.do(ExpireFragments(), NOON_MS + 1_800)
        made.commit()
        made.follow()
    with durable_state(tmp_path) as made:
        assert [*rows_of(made)] == ["read"]
        assert invariants.check(made.owner._state) == []


def test_stored_again_after_its_expiry(tmp_path: Path) -> None:
    """One row is left, the new one, whether or not the tables have had the other."""
    for is_followed in (True, False):
        path = tmp_path / str(is_followed)
        with durable_state(path) as made:
            made.do(StoreFragment("p", "a", b"body", 1, options=StoreOptions(expires_at_ms=NOON_MS + 1)))
            made.do(StoreFragment("p", "b", b"b", 1))
            made.commit()
            if is_followed:
                made.follow()
            made.do(StoreFragment("p", "a", b"body", 2), NOON_MS + 1)
            made.commit()
            made.work()
        with durable_state(path) as made:
            row = rows_of(made)["a"]
            assert (row.serial, row.tokens, row.created_at_ms) == (3, 2, NOON_MS + 1)
            assert len(rows_of(made)) == 2
            assert invariants.check(made.owner._state) == []
        with closing(sqlite3.connect(path / DATABASE)) as db:
            assert db.execute("SELECT count(*) FROM fragments").fetchone() == (2,)
        assert main(["doctor", "--data-dir", str(path)]) == 0


def test_doctor_is_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fragments in no tier are no problem."""
    with durable_state(tmp_path) as made:
        fill(made)
        made.do(DemoteFragment("p", "0-1"))
        made.work()
    found = main(["doctor", "--data-dir", str(tmp_path)])
    assert found == 0, capsys.readouterr().out


def test_doctor_counts_what_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Apart from the tiers: a warm one that is kept is in neither."""
    with durable_state(tmp_path) as made:
        fill(made)
        made.work()
    tamper(tmp_path, "UPDATE fragments SET tier = 'warm' WHERE fragment_id = '0-1'")
    assert main(["doctor", "--data-dir", str(tmp_path)]) == 1
    assert "warm (keep)" in capsys.readouterr().out
    with pytest.raises(StoreDamaged, match="stepwell doctor"), durable_state(tmp_path):
        pass


@pytest.mark.parametrize("column", ["writer", "keep", "expires_at_ms", "expires_after_ms"])
def test_damage_is_found(tmp_path: Path, column: str) -> None:
    """The checksum of a row has the new columns, too."""
    with durable_state(tmp_path) as made:
        fill(made)
        made.work()
    value = "'[]'" if column == "writer" else "1"
    with closing(sqlite3.connect(tmp_path / DATABASE)) as db:
        db.execute(f"UPDATE fragments SET {column} = {value} WHERE fragment_id = '3-0'")  # noqa: S608 - ours
        db.commit()
    with pytest.raises(StoreDamaged, match="fragments"), durable_state(tmp_path):
        pass


def rows_of_again(directory: Path) -> list[FragmentRow]:
    with durable_state(directory) as made:
        return [*rows_of(made).values()]


class TestVersion7:
    """A directory of the version before, with rows that have none of these columns."""

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        shutil.copyfile(VERSIONS / f"7{SUFFIX}", tmp_path / DATABASE)
        return tmp_path

    def test_nothing_is_asked_for(self, directory: Path) -> None:
        """No writer, no keep, no expiry; and all of it can be asked for from now on."""
        for _ in range(2):
            with durable_state(directory) as made:
                rows = [row for row in rows_of(made).values() if row.fragment_id != "new"]
                assert rows
                assert {(row.writer, row.keep, row.expires_at_ms, row.expires_after_ms) for row in rows} == {
                    (None, False, None, None)
                }
                made.do(StoreFragment("p", "new", b"new", 1, options=StoreOptions(keep=True)))
                made.work()
        assert [row.fragment_id for row in rows_of_again(directory) if row.keep] == ["new"]

    def test_damage_stays_damage(self, directory: Path) -> None:
        """A migration that made new checksums of what it found would hide a row that is wrong."""
        with closing(sqlite3.connect(directory / DATABASE)) as db:
            (names,) = zip(*db.execute("SELECT fragment_id FROM fragments"), strict=True)
            db.execute("DELETE FROM redo_log")
            db.execute("UPDATE fragments SET tokens = tokens + 1 WHERE fragment_id = ?", (names[0],))
            db.commit()
        with pytest.raises(StoreDamaged, match="fragments"), durable_state(directory):
            pass

    def test_damaged_session_stays_damaged(self, directory: Path) -> None:
        """The same of a session, which has a label now."""
        with closing(sqlite3.connect(directory / DATABASE)) as db:
            db.execute("UPDATE sessions SET pid = pid + 1")
            db.commit()
        with pytest.raises(StoreDamaged, match="sessions"), durable_state(directory):
            pass
