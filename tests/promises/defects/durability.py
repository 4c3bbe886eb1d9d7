"""Defects that break the promises of durability and recovery."""

from __future__ import annotations

from tests.promises.model import Defect

SURVIVES = "an acknowledged write survives `kill -9` of every process and, at `disk`, a loss of power"
FLUSH = "it never acknowledges first, and never goes on"
PREFIX = "the state is a prefix of the order that contains every acknowledged write"
INVARIANTS = "Invariants are checked before the first request is served."
DAMAGE = "Damage is reported, with what and where, and nothing is overwritten."
LOST = "A log that has lost acknowledged writes is damage, too."
HISTORY = "A client that has seen more than the manager has gets `HistoryLost`."

FAULTS = "tests/faults/test_durability.py"
POWER = f"{FAULTS}::TestLossOfPower::test_nothing_is_acknowledged_before_it_is_on_the_disk"
CAUSES = "tests/faults/test_causes.py"
KILLS = "tests/crossprocess/test_kills.py::test_killed_under_load"
FOUND_AGAIN = "features/durability.feature: The manager is killed, and everything is there"
STORAGE = "tests/property/test_storage.py::TestStorage"
LOG = "tests/faults/test_damaged_log.py"
LOSS = "tests/unit/storage/test_loss.py"
ROWS = "tests/unit/storage/test_damage.py::test_flipped_bit_is_harmless_or_found"

DEFECTS = (
    Defect(
        7,
        SURVIVES,
        "At `disk`, commits are flushed at checkpoints only.",
        "storage/database.py",
        'Durability.DISK: "FULL"',
        'Durability.DISK: "NORMAL"',
        (POWER,),
    ),
    Defect(
        7,
        SURVIVES,
        "Only fragments are written to the database, and nothing of plans.",
        "manager/journal.py",
        "                    batch.rows.setdefault(type(row), {})[row.key] = change.after\n",
        "                    continue\n",
        (FOUND_AGAIN, STORAGE),
    ),
    Defect(
        7,
        SURVIVES,
        "A write that replaces a fragment is not written to the database.",
        "manager/journal.py",
        "            batch.fragments[row.key] = None\n            batch.events += events_of(run.changes(row)",
        "            if row.revision not in run.replaced:\n"
        "                batch.fragments[row.key] = None\n"
        "            batch.events += events_of(run.changes(row)",
        (KILLS,),
    ),
    Defect(
        7,
        FLUSH,
        "The manager replies before it commits.",
        "manager/loop.py",
        "        self._journal.commit()\n"
        "        self._index.publish(self._requests.clock.latest_ms, is_active=bool(busy))\n"
        "        self._reply(busy)\n",
        "        self._reply(busy)\n"
        "        self._journal.commit()\n"
        "        self._index.publish(self._requests.clock.latest_ms, is_active=bool(busy))\n",
        (POWER, f"{FAULTS}::TestDiskThatTakesNoMore"),
    ),
    Defect(
        7,
        FLUSH,
        "A commit that fails is taken for a success, and the manager goes on.",
        "storage/sqlite.py",
        "            self._files.write_mark(self._latest())\n"
        "        except (sqlite3.Error, OSError, StoreDamaged) as error:\n"
        "            raise self._failed(error) from error\n",
        "            self._files.write_mark(self._latest())\n"
        "        except (sqlite3.Error, OSError, StoreDamaged):\n"
        "            return\n",
        (f"{FAULTS}::TestDiskThatTakesNoMore", f"{CAUSES}::test_full_disk_is_named_by_every_error"),
    ),
    Defect(
        8,
        PREFIX,
        "A fragment that was deleted is there again after a restart.",
        "storage/changes.py",
        "[(serial,) for serial in batch.removed]",
        "[(serial,) for serial in batch.removed if serial < 0]",
        ("tests/unit/storage/test_redo_log.py::test_deletion_of_what_was_not_moved_yet",),
    ),
    Defect(
        8,
        PREFIX,
        "The stored revision is that of the commit before, so that revisions are given out twice.",
        "storage/sqlite.py",
        "            revision=batch.revision,\n",
        "            revision=self._row.revision,\n",
        (STORAGE,),
    ),
    Defect(
        8,
        INVARIANTS,
        "The invariants of the recovered state are not checked.",
        "manager/recovery.py",
        ", *check(state, but=(BUDGET,))]:",
        ", *check(State(), but=(BUDGET,))]:",
        ("tests/unit/manager/test_recovery.py::test_invariant_that_does_not_hold_is_said",),
    ),
    Defect(
        8,
        DAMAGE,
        "The checksum of a row is not compared.",
        "storage/table.py",
        "        if not is_right:\n",
        "        if is_right is None:\n",
        (ROWS,),
    ),
    Defect(
        8,
        DAMAGE,
        "A start changes the database before the state is checked.",
        "storage/sqlite.py",
        "            stored = None if is_new else load_from(db)\n",
        '            db.execute("COMMIT")\n'
        '            db.execute("BEGIN IMMEDIATE")\n'
        "            stored = None if is_new else load_from(db)\n",
        ("tests/unit/storage/test_load.py::test_flipped_bytes",),
    ),
    Defect(
        8,
        DAMAGE,
        "A restarted manager makes a new data directory in place of one that has vanished.",
        "manager/process.py",
        "    directory = DataDirectory(settings.data_dir, settings.address, must_exist=settings.must_exist)",
        "    directory = DataDirectory(settings.data_dir, settings.address, must_exist=False)",
        ("tests/faults/test_restarts.py::test_directory_that_is_gone_is_not_made_again",),
    ),
    Defect(
        8,
        DAMAGE,
        "The error about lost writes does not name the mark.",
        "storage/loss.py",
        "acknowledged writes are lost: {here}, and {marked}; the log",
        "acknowledged writes are lost: {here}; the log",
        (f"{LOG}::test_refusal_says_what_and_where",),
    ),
    Defect(
        8,
        LOST,
        "A manager starts without a look at the mark of the last commit.",
        "storage/sqlite.py",
        "                require_no_loss(files, self._guard)\n",
        "                assert require_no_loss\n",
        (f"{LOG}::test_damaged_log_is_harmless_or_refused", f"{LOSS}::test_behind_the_mark"),
    ),
    Defect(
        8,
        HISTORY,
        "A client does not compare the manager's revision with the one that it has seen.",
        "client/session/session_rules.py",
        "            if known is not None and welcome.revision < connection.seen_before:",
        "            if known is not None and welcome.revision < 0:",
        (
            "tests/crossprocess/test_lost_history.py::test_client_is_told_and_stays_told",
            "tests/crossprocess/test_lost_history.py::test_asynchronous_client_is_told",
        ),
    ),
)
