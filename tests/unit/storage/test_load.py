"""Damage is found and said, whatever it is; and nothing is touched by looking."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.domain.tiers.commands import StoreFragment
from stepwell.errors import StartFailed, StepwellError, StoreDamaged
from stepwell.manager.sessions import SessionTable
from stepwell.storage.files.directory import DATABASE
from tests.support.measurement import untraced
from tests.support.seeds import seeded
from tests.support.storage.state import DurableState, durable_state, files, fill, kept, tamper

FLIPS = 400
SHARES = 4


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database with something in every table."""
    directory = tmp_path_factory.mktemp("sound")
    with durable_state(directory) as made:
        fill(made)
    tamper(directory, "UPDATE store SET has_mark = 0")  # as a backup has it, so that the file is enough
    return (directory / DATABASE).read_bytes()


def opens(directory: Path) -> bool:
    """Whether a manager comes up on a directory; if not, it says what is wrong, and leaves every byte as it is."""
    before = files(directory)
    made: DurableState | StepwellError
    try:
        made = DurableState(directory)
    except (StoreDamaged, StartFailed) as error:
        made = error
    if isinstance(made, StepwellError):
        assert any(word in made.message for word in ("table ", "the database", "the data directory", "body ")), made
        assert files(directory) == before, f"changed, in spite of {made}"
        return False
    sessions = SessionTable()
    try:
        found = made.owner.stored
        assert found is not None, "what is damaged counts as empty"
        sessions.restore(found.sessions, found.replies, found.reply_parts, 0.0)
    finally:
        sessions.close()
        made.close()
    return True


@pytest.mark.parametrize("share", range(SHARES))
@untraced()
def test_flipped_bytes(tmp_path: Path, sound: bytes, share: int) -> None:
    """One or a few of them, anywhere: it opens, or says what is damaged. Nothing else is raised."""
    random = seeded(share)
    outcomes: set[bool] = set()
    for number in range(FLIPS // SHARES):
        damaged = bytearray(sound)
        for _ in range(random.choice([1, 1, 1, 4])):
            damaged[random.randrange(len(damaged))] ^= random.randrange(1, 256)
        directory = tmp_path / str(number)
        directory.mkdir(mode=0o700)
        (directory / DATABASE).write_bytes(damaged)
        outcomes.add(opens(directory))
    assert outcomes == {True, False}


def test_truncated_file(tmp_path: Path, sound: bytes) -> None:
    """Wherever it ends: it is never taken for a whole one."""
    random = seeded(11)
    for number in range(60):
        directory = tmp_path / str(number)
        directory.mkdir(mode=0o700)
        (directory / DATABASE).write_bytes(sound[: random.randrange(1, len(sound))])
        assert not opens(directory)


@pytest.mark.parametrize(
    "statement, told",
    [
        ("DELETE FROM changesets", "changeset"),
        ("DELETE FROM bodies", "body "),
        (
            "INSERT INTO bodies (digest, size, packed, data) SELECT digest, size, packed, data FROM bodies",
            "there twice",
        ),
        ("UPDATE fragments SET fragment_id = 'same'", "there twice"),
        ("DELETE FROM store", "table store"),
        ("DELETE FROM plans", "table leases"),
        ("DELETE FROM leases", "processing_means_leased"),
        ("UPDATE actions SET name = 'No Name'", "No Name"),
        ("UPDATE bodies SET packed_bytes = x'00'", "table bodies"),
        ("UPDATE bodies SET size = 'x'", "bod"),
        ("UPDATE replies SET frame = 5", "table replies"),
        ("UPDATE replies SET request_id = 'x'", "table replies"),
        ("UPDATE sessions SET projects = '[1]'", "table sessions"),
        ("UPDATE fragments SET tier = 'tepid'", "table fragments"),
        ("UPDATE fragments SET metadata = x'ff'", "table fragments"),
        ("UPDATE store SET epoch = CAST(x'ff' AS TEXT)", "table store"),
        ("UPDATE entries SET before_digest = 'text'", "body "),
        ("UPDATE budget SET value = -1", "table budget"),
        ("DROP TABLE contexts", "table contexts"),
    ],
)
def test_what_nobody_wrote_is_said(tmp_path: Path, sound: bytes, statement: str, told: str) -> None:
    """With the table or the thing that is wrong; and the directory is left as it is."""
    (tmp_path / DATABASE).write_bytes(sound)
    tamper(tmp_path, statement)
    before = files(tmp_path)
    with pytest.raises(StoreDamaged, match=told), durable_state(tmp_path):
        pass
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", ["with space", "a?b#c%20d", "ünï", "quo'te", "/double"])
def test_any_path_will_do(tmp_path: Path, name: str) -> None:
    """A path is no URI: what has a meaning there has none here. Two slashes before it are one."""
    directory = Path(f"/{tmp_path}{name}") if name.startswith("/") else tmp_path / name
    with durable_state(directory) as made:
        fill(made)
    with durable_state(directory) as made:
        assert made.owner.stored is not None


def test_looking_changes_nothing(tmp_path: Path) -> None:
    """Not even the log that a killed manager has left."""
    with durable_state(tmp_path) as made:
        fill(made)
        before = files(tmp_path)
        assert f"{DATABASE}-wal" in before
        kept(tmp_path)
        assert files(tmp_path) == before


def test_loaded_fragments_share_what_they_have_in_common(tmp_path: Path) -> None:
    """As in the manager that has stored them: a value of many rows is one object, and a digest is one everywhere."""
    with durable_state(tmp_path) as made:
        for name in ("first", "second"):
            made.do(StoreFragment("project", name, name.encode(), 1, source="some/file"))
        made.commit()
    with durable_state(tmp_path) as made:
        first, second = (entry.row for entry in made.owner._state.fragments.entries.values())
        assert (first.fragment_id, second.fragment_id) == ("first", "second")
        for field in ("project", "source", "kind", "placed_at_ms", "created_at_ms", "metadata"):
            assert getattr(first, field) is getattr(second, field), field
        for table in (made.owner.bodies.handles, made.owner._state.bodies.counts, made.store._numbers):
            assert {id(digest) for digest in table} == {id(first.digest), id(second.digest)}
