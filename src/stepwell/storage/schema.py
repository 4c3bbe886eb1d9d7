"""The tables, and the migrations from older versions to the present one.

The version is a number in the file (`PRAGMA user_version`). A new version is a new member of MIGRATIONS, which turns
the tables of the version before into its own. A database of a later version is refused and left unchanged. Migrations
run inside the transaction of the manager's start, so that a failed start leaves the old version.

    store       one row: epoch, revision, clock, number of commits and other counters
    budget      one row per field of the budget
    fragments   rows of fragments with their access times, by serial
    bodies      one row per body, by number: its bytes, or the upload that has its parts
    body_parts  parts of large bodies
    actions, plans, leases, decisions, contexts, changesets, entries, receipts, logs, log_entries
                rows of the domain, nested fields as JSON
    pools       pools of tokens, with their leases as JSON
    apply_tickets  callers that wait to apply a plan to a tree
    sessions    clients that may come back, with the replies that they may ask for again in `replies`
    reply_parts results of batches that were not complete when they were committed
    events      the latest events as JSON, for watchers that come late
    redo_log    the changes of the latest commits, which the tables do not have yet (see `redo_log`)

Each table but `body_parts` has a checksum for each row (see `table`). A migration that changes the columns of rows
writes new checksums where the old ones are right: a damaged row stays one.

A published migration is never edited, except for comments in it: a database may have been made by it. Each version has
a database among the tests, which every later version has to read.
"""

from __future__ import annotations

from typing import Final

from stepwell.errors import StartFailed, StoreDamaged
from stepwell.identifiers import new_id
from stepwell.storage.redo_log import apply_all
from stepwell.storage.rows import LEASES, STORE
from stepwell.storage.sql import Database

APPLICATION_ID: Final = 0x57E99E11
"""The application id in the file's header, by which `file` and SQLite's tools recognise a database of stepwell."""

_FIRST: Final = """
CREATE TABLE store (  -- one row
    epoch TEXT NOT NULL,          -- revisions compare only within one
    encoding TEXT NOT NULL,       -- in which tokens are counted
    starts INTEGER NOT NULL,      -- managers there have been
    revision INTEGER NOT NULL,
    clock_ms INTEGER NOT NULL,    -- the latest moment that was given out: time does not go back
    next_serial INTEGER NOT NULL, -- of fragments
    tick INTEGER NOT NULL,        -- of their use
    events_after INTEGER NOT NULL -- the revision behind which no event is missing
);
CREATE TABLE budget (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE fragments (
    project TEXT NOT NULL, fragment_id TEXT NOT NULL, source TEXT NOT NULL, kind TEXT NOT NULL,
    detail_depth INTEGER NOT NULL, tokens INTEGER NOT NULL, size INTEGER NOT NULL, digest BLOB NOT NULL,
    tier TEXT NOT NULL, placed_at_ms INTEGER NOT NULL, created_at_ms INTEGER NOT NULL, revision INTEGER NOT NULL,
    serial INTEGER NOT NULL, metadata TEXT NOT NULL,
    tick INTEGER NOT NULL, touched_at_ms INTEGER NOT NULL, last_accessed_ms INTEGER NOT NULL,
    access_count INTEGER NOT NULL, accesses_since_move INTEGER NOT NULL,
    PRIMARY KEY (project, fragment_id)
) WITHOUT ROWID;
CREATE TABLE bodies (
    digest BLOB PRIMARY KEY,      -- SHA-256 of the body
    size INTEGER NOT NULL,
    packed INTEGER NOT NULL,      -- compressed, with zstd
    packed_bytes INTEGER,         -- what it takes then, if known
    data BLOB,                    -- none: in parts
    upload INTEGER                -- those of body_parts
);
CREATE TABLE body_parts (
    upload INTEGER NOT NULL, part INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (upload, part)
) WITHOUT ROWID;
CREATE TABLE actions (
    name TEXT PRIMARY KEY, description TEXT NOT NULL, definition_of_done TEXT NOT NULL, strategy_actor TEXT NOT NULL,
    execution_actor TEXT NOT NULL, estimation_actor TEXT, review_actor TEXT, apply_actor TEXT, invariant_actor TEXT,
    arguments TEXT NOT NULL, invariants TEXT NOT NULL, automation_profile TEXT, reusable INTEGER NOT NULL,
    read_only INTEGER NOT NULL, state TEXT NOT NULL, uses INTEGER NOT NULL, created_at_ms INTEGER NOT NULL,
    revision INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE plans (
    plan_id TEXT PRIMARY KEY, parent_plan_id TEXT, root_plan_id TEXT NOT NULL, depth INTEGER NOT NULL,
    action_name TEXT NOT NULL, description TEXT NOT NULL, definition_of_done TEXT NOT NULL, arguments TEXT NOT NULL,
    project_links TEXT NOT NULL, invariants TEXT NOT NULL, read_only INTEGER NOT NULL, created_at_ms INTEGER NOT NULL,
    phase TEXT NOT NULL, state TEXT NOT NULL, times TEXT NOT NULL, version INTEGER NOT NULL, attempt INTEGER NOT NULL,
    executed_attempt INTEGER, fence INTEGER NOT NULL, errors TEXT NOT NULL, changeset_ids TEXT NOT NULL,
    decision_ids TEXT NOT NULL, reversion_count INTEGER NOT NULL, last_checkpoint_id TEXT, subplans TEXT
) WITHOUT ROWID;
CREATE TABLE leases (
    plan_id TEXT PRIMARY KEY, token INTEGER NOT NULL, session_id TEXT NOT NULL, expires_at_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE decisions (
    plan_id TEXT NOT NULL, decision_id TEXT PRIMARY KEY, parent_id TEXT, question TEXT NOT NULL, choice TEXT NOT NULL,
    rationale TEXT NOT NULL, phase TEXT NOT NULL, attempt INTEGER NOT NULL, recorded_at_ms INTEGER NOT NULL,
    checkpoint INTEGER NOT NULL, superseded_at_ms INTEGER
) WITHOUT ROWID;
CREATE TABLE contexts (context_id TEXT PRIMARY KEY, plan_id TEXT NOT NULL, active TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE changesets (
    changeset_id TEXT PRIMARY KEY, plan_id TEXT NOT NULL, context_id TEXT NOT NULL, attempt INTEGER NOT NULL,
    state TEXT NOT NULL, entry_count INTEGER NOT NULL, started_at_ms INTEGER NOT NULL, ended_at_ms INTEGER
) WITHOUT ROWID;
CREATE TABLE entries (
    plan_id TEXT NOT NULL, changeset_id TEXT NOT NULL, seq INTEGER NOT NULL, operation TEXT NOT NULL,
    path TEXT NOT NULL, source_path TEXT,
    before_digest BLOB, before_size INTEGER, before_held INTEGER,
    after_digest BLOB, after_size INTEGER, after_held INTEGER,
    tool TEXT NOT NULL, recorded_at_ms INTEGER NOT NULL,
    PRIMARY KEY (changeset_id, seq)
) WITHOUT ROWID;
CREATE TABLE sessions (
    session_id TEXT PRIMARY KEY, projects TEXT, pid INTEGER NOT NULL, process TEXT NOT NULL, answered INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE replies (
    session_id TEXT NOT NULL, request_id INTEGER NOT NULL, frame BLOB NOT NULL, PRIMARY KEY (session_id, request_id)
) WITHOUT ROWID;
CREATE TABLE events (
    revision INTEGER NOT NULL, ordinal INTEGER NOT NULL, at_ms INTEGER NOT NULL, kind TEXT NOT NULL,
    event TEXT NOT NULL, PRIMARY KEY (revision, ordinal)
) WITHOUT ROWID;
"""

_SECOND: Final = """
ALTER TABLE sessions ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;
ALTER TABLE store ADD COLUMN boot TEXT NOT NULL DEFAULT '';
ALTER TABLE store ADD COLUMN durability TEXT NOT NULL DEFAULT 'disk'
"""

# Fragments and bodies are written most, and are appended in the order of their numbers. A table ordered by name, or an
# index of digests, would put each record of a turn on another page. No index is needed: the manager has them by name in
# memory, and a client gets the number of a body with its handle.
_THIRD: Final = """
CREATE TABLE ordered_fragments (
    project TEXT NOT NULL, fragment_id TEXT NOT NULL, source TEXT NOT NULL, kind TEXT NOT NULL,
    detail_depth INTEGER NOT NULL, tokens INTEGER NOT NULL, size INTEGER NOT NULL, digest BLOB NOT NULL,
    tier TEXT NOT NULL, placed_at_ms INTEGER NOT NULL, created_at_ms INTEGER NOT NULL, revision INTEGER NOT NULL,
    serial INTEGER PRIMARY KEY, metadata TEXT NOT NULL,
    tick INTEGER NOT NULL, touched_at_ms INTEGER NOT NULL, last_accessed_ms INTEGER NOT NULL,
    access_count INTEGER NOT NULL, accesses_since_move INTEGER NOT NULL
);
INSERT INTO ordered_fragments SELECT * FROM fragments ORDER BY serial;
DROP TABLE fragments;
ALTER TABLE ordered_fragments RENAME TO fragments;
CREATE TABLE numbered_bodies (
    number INTEGER PRIMARY KEY,
    digest BLOB NOT NULL,         -- SHA-256 of the body
    size INTEGER NOT NULL,
    packed INTEGER NOT NULL,      -- compressed, with zstd
    packed_bytes INTEGER,         -- what it takes then, if known
    data BLOB,                    -- none: in parts
    upload INTEGER                -- those of body_parts
);
INSERT INTO numbered_bodies (digest, size, packed, packed_bytes, data, upload)
    SELECT digest, size, packed, packed_bytes, data, upload FROM bodies;
DROP TABLE bodies;
ALTER TABLE numbered_bodies RENAME TO bodies
"""

_FOURTH: Final = """
CREATE TABLE receipts (
    receipt_id TEXT PRIMARY KEY, projects TEXT NOT NULL, title TEXT NOT NULL, size INTEGER NOT NULL,
    digest BLOB NOT NULL, created_at_ms INTEGER NOT NULL, revision INTEGER NOT NULL, serial INTEGER NOT NULL
) WITHOUT ROWID
"""

_FIFTH: Final = """
ALTER TABLE actions ADD COLUMN validations TEXT NOT NULL DEFAULT '[]';
ALTER TABLE plans ADD COLUMN validations TEXT NOT NULL DEFAULT '[]';
ALTER TABLE plans ADD COLUMN retries_left INTEGER NOT NULL DEFAULT 0;
ALTER TABLE plans ADD COLUMN merged TEXT;
ALTER TABLE plans ADD COLUMN conflicts TEXT NOT NULL DEFAULT '[]';
ALTER TABLE plans ADD COLUMN applied TEXT;
ALTER TABLE plans ADD COLUMN constrained TEXT;
ALTER TABLE plans ADD COLUMN rolled_back TEXT;
ALTER TABLE entries ADD COLUMN before_mode INTEGER;
ALTER TABLE entries ADD COLUMN after_mode INTEGER;
ALTER TABLE entries ADD COLUMN ordinal INTEGER NOT NULL DEFAULT 0
"""

# The checksum of a body comes before its bytes: behind them, SQLite would have to read them all to find it. So the
# table is written anew. A large batch is executed over several turns: `reply_parts` has its results so far, committed
# with the changes that they report, so that a later manager continues behind them.
_SIXTH: Final = """
ALTER TABLE store ADD COLUMN commits INTEGER NOT NULL DEFAULT 0;
ALTER TABLE store ADD COLUMN has_mark INTEGER NOT NULL DEFAULT 0;
ALTER TABLE store ADD COLUMN row_count INTEGER NOT NULL DEFAULT -1;
ALTER TABLE store ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE budget ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE fragments ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE actions ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE plans ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE leases ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE decisions ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE contexts ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE changesets ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE entries ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE receipts ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE replies ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
CREATE TABLE sealed_bodies (
    number INTEGER PRIMARY KEY,
    digest BLOB NOT NULL,         -- SHA-256 of the body
    size INTEGER NOT NULL,
    packed INTEGER NOT NULL,      -- compressed, with zstd
    packed_bytes INTEGER,         -- what it takes then, if known
    checksum INTEGER NOT NULL DEFAULT 0, -- of all columns but the data
    data BLOB,                    -- none: in parts
    upload INTEGER                -- those of body_parts
);
INSERT INTO sealed_bodies (number, digest, size, packed, packed_bytes, checksum, data, upload)
    SELECT number, digest, size, packed, packed_bytes,
        row_checksum(number, digest, size, packed, packed_bytes, upload), data, upload FROM bodies ORDER BY number;
DROP TABLE bodies;
ALTER TABLE sealed_bodies RENAME TO bodies;
UPDATE store SET checksum = row_checksum(epoch, encoding, starts, revision, clock_ms, next_serial, tick,
    events_after, boot, durability, commits, has_mark, row_count);
UPDATE budget SET checksum = row_checksum(name, value);
UPDATE fragments SET checksum = row_checksum(project, fragment_id, source, kind, detail_depth, tokens, size,
    digest, tier, placed_at_ms, created_at_ms, revision, serial, metadata, tick, touched_at_ms, last_accessed_ms,
    access_count, accesses_since_move);
UPDATE actions SET checksum = row_checksum(name, description, definition_of_done, strategy_actor,
    execution_actor, estimation_actor, review_actor, apply_actor, invariant_actor, arguments, invariants,
    automation_profile, reusable, read_only, state, uses, created_at_ms, revision, validations);
UPDATE plans SET checksum = row_checksum(plan_id, parent_plan_id, root_plan_id, depth, action_name, description,
    definition_of_done, arguments, project_links, invariants, read_only, created_at_ms, phase, state, times,
    version, attempt, executed_attempt, fence, errors, changeset_ids, decision_ids, reversion_count,
    last_checkpoint_id, subplans, validations, retries_left, merged, conflicts, applied, constrained, rolled_back);
UPDATE leases SET checksum = row_checksum(plan_id, token, session_id, expires_at_ms);
UPDATE decisions SET checksum = row_checksum(plan_id, decision_id, parent_id, question, choice, rationale,
    phase, attempt, recorded_at_ms, checkpoint, superseded_at_ms);
UPDATE contexts SET checksum = row_checksum(context_id, plan_id, active);
UPDATE changesets SET checksum = row_checksum(changeset_id, plan_id, context_id, attempt, state, entry_count,
    started_at_ms, ended_at_ms);
UPDATE entries SET checksum = row_checksum(plan_id, changeset_id, seq, operation, path, source_path,
    before_digest, before_size, before_held, after_digest, after_size, after_held, tool, recorded_at_ms,
    before_mode, after_mode, ordinal);
UPDATE receipts SET checksum = row_checksum(receipt_id, projects, title, size, digest, created_at_ms, revision,
    serial);
UPDATE sessions SET checksum = row_checksum(session_id, projects, pid, process, answered, generation);
UPDATE replies SET checksum = row_checksum(session_id, request_id, frame);
UPDATE events SET checksum = row_checksum(revision, ordinal, at_ms, kind, event);
CREATE TABLE reply_parts (
    session_id TEXT NOT NULL, request_id INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,     -- of the part, from 0
    results BLOB NOT NULL,        -- of the commands behind those of the part before
    checksum INTEGER NOT NULL,
    PRIMARY KEY (session_id, request_id, ordinal)
) WITHOUT ROWID
"""

_SEVENTH: Final = """
CREATE TABLE redo_log (
    number INTEGER PRIMARY KEY,   -- of the commit
    revision INTEGER NOT NULL,
    record BLOB NOT NULL,         -- its changes, as msgpack
    checksum INTEGER NOT NULL
)
"""

# A row whose checksum was wrong keeps it, so that it is found damaged as before.
_EIGHTH: Final = """
ALTER TABLE fragments ADD COLUMN writer TEXT;
ALTER TABLE fragments ADD COLUMN keep INTEGER NOT NULL DEFAULT 0;
ALTER TABLE fragments ADD COLUMN expires_at_ms INTEGER;
ALTER TABLE fragments ADD COLUMN expires_after_ms INTEGER;
UPDATE fragments SET checksum = row_checksum(project, fragment_id, source, kind, detail_depth, tokens, size,
    digest, tier, placed_at_ms, created_at_ms, revision, serial, metadata, tick, touched_at_ms, last_accessed_ms,
    access_count, accesses_since_move, writer, keep, expires_at_ms, expires_after_ms)
    WHERE checksum = row_checksum(project, fragment_id, source, kind, detail_depth, tokens, size,
    digest, tier, placed_at_ms, created_at_ms, revision, serial, metadata, tick, touched_at_ms, last_accessed_ms,
    access_count, accesses_since_move);
ALTER TABLE sessions ADD COLUMN label TEXT NOT NULL DEFAULT '';
UPDATE sessions SET checksum = row_checksum(session_id, projects, pid, process, answered, generation, label)
    WHERE checksum = row_checksum(session_id, projects, pid, process, answered, generation);
CREATE TABLE pools (
    name TEXT PRIMARY KEY, tokens INTEGER NOT NULL, period_ms INTEGER, soft_percent INTEGER NOT NULL,
    spent_parts INTEGER NOT NULL, at_ms INTEGER NOT NULL, leases TEXT NOT NULL, created_at_ms INTEGER NOT NULL,
    revision INTEGER NOT NULL, checksum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE logs (
    project TEXT NOT NULL, name TEXT NOT NULL,
    serial INTEGER NOT NULL,      -- by which its entries name it
    head INTEGER NOT NULL, first_position INTEGER NOT NULL, last_position INTEGER NOT NULL,
    next_position INTEGER NOT NULL, created_at_ms INTEGER NOT NULL, keep_entries INTEGER, keep_ms INTEGER,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (project, name)
) WITHOUT ROWID;
CREATE TABLE log_entries (
    log INTEGER NOT NULL,         -- the serial; 0: popped entries, which go after a time
    position INTEGER NOT NULL, digest BLOB NOT NULL, size INTEGER NOT NULL, at_ms INTEGER NOT NULL,
    revision INTEGER NOT NULL, kind TEXT NOT NULL, metadata TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (log, position)
) WITHOUT ROWID;
ALTER TABLE plans ADD COLUMN labels TEXT NOT NULL DEFAULT '[]';
UPDATE plans SET checksum = row_checksum(plan_id, parent_plan_id, root_plan_id, depth, action_name, description,
    definition_of_done, arguments, project_links, invariants, read_only, created_at_ms, phase, state, times,
    version, attempt, executed_attempt, fence, errors, changeset_ids, decision_ids, reversion_count,
    last_checkpoint_id, subplans, validations, retries_left, merged, conflicts, applied, constrained, rolled_back,
    labels) WHERE checksum = row_checksum(plan_id, parent_plan_id, root_plan_id, depth, action_name, description,
    definition_of_done, arguments, project_links, invariants, read_only, created_at_ms, phase, state, times,
    version, attempt, executed_attempt, fence, errors, changeset_ids, decision_ids, reversion_count,
    last_checkpoint_id, subplans, validations, retries_left, merged, conflicts, applied, constrained, rolled_back);
CREATE TABLE apply_tickets (
    ticket_id TEXT PRIMARY KEY, tree TEXT NOT NULL, plan_id TEXT NOT NULL, session_id TEXT NOT NULL,
    priority INTEGER NOT NULL, joined_at_ms INTEGER NOT NULL, revision INTEGER NOT NULL, place INTEGER NOT NULL,
    turn_until_ms INTEGER, checksum INTEGER NOT NULL
) WITHOUT ROWID
"""

MIGRATIONS: Final = (_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, _SIXTH, _SEVENTH, _EIGHTH)
VERSION: Final = len(MIGRATIONS)
LOGGED_SINCE: Final = 7
"""The first version with a redo log."""


def version_of(connection: Database) -> int:
    """Return the version of the tables in a file, or 0 for an empty one.

    Raise `StartFailed` for another program's file or a later version, and `StoreDamaged` for a version that never
    existed.
    """
    application, version = (_pragma(connection, name) for name in ("application_id", "user_version"))
    if application != APPLICATION_ID and (application or version or _has_tables(connection)):
        raise StartFailed("the data directory holds a database that is not stepwell's: give another directory")
    if application == APPLICATION_ID and version <= 0:
        raise StoreDamaged(f"the database says that its version is {version}, which stepwell never wrote")
    if version > VERSION:
        raise StartFailed(
            f"the data directory was written by a later stepwell (schema {version}, this one knows {VERSION}): "
            "install that one"
        )
    return version


def migrate(connection: Database) -> int:
    """Migrate the tables to the present version, inside the caller's transaction. Return the version that they had.

    The redo log is of the old version too, and is applied first. Raise `StoreDamaged` for a damaged record of it, and
    for a damaged row that would get a new checksum.
    """
    found = version_of(connection)
    if found >= LOGGED_SINCE:
        apply_all(connection)
    for script in MIGRATIONS[found:]:
        for statement in script.split(";\n"):
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    return found


def start_new_epoch(connection: Database) -> str:
    """Start a history of its own, inside the caller's transaction, and return its new epoch.

    The caller has applied the redo log and verified the checksums, because rows get new ones here.

    Clients of the old history must not mistake this one for it. Sessions, their replies and their tickets in queues of
    applies are deleted, so that no client continues a session. The mark, if there is one, is of the old history and
    counts no more. Leases end at the latest stored time, so that the first housekeeping of a manager releases them.
    """
    epoch = new_id()
    connection.execute("UPDATE store SET epoch = ?, has_mark = 0", (epoch,))
    connection.execute("DELETE FROM sessions")
    connection.execute("DELETE FROM replies")
    connection.execute("DELETE FROM reply_parts")
    connection.execute("DELETE FROM apply_tickets")
    connection.execute("UPDATE leases SET expires_at_ms = min(expires_at_ms, (SELECT clock_ms FROM store))")
    connection.execute(STORE.seal)
    connection.execute(LEASES.seal)
    return epoch


def _pragma(connection: Database, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    assert isinstance(value, int)
    return value


def _has_tables(connection: Database) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None
