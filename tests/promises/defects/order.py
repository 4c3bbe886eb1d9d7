"""Defects that break the promises of order and atomicity."""

from __future__ import annotations

from tests.promises.model import Defect

ONE_ORDER = "in one total order, numbered by `revision`"
REAL_TIME = "If A's reply arrived before B was sent, A comes first."
READS = "a read that needs no request returns what was committed at some moment during the call"
ACCESSES = "It counts as an access with the next request of its session"
ENTIRELY = "take effect entirely or not at all"
REFUSED = "A refused one changes nothing"

STORM = "tests/crossprocess/test_storm.py::test_storm_loses_nothing_and_keeps_one_order"
PROVE = "tests/crossprocess/test_prove.py::test_killed"
INDEX = "tests/crossprocess/test_read_index.py"
DOUBLES = "tests/doubles/test_index_reader.py"
REPORTS = "tests/unit/client/session/test_indexed_reads.py::TestReports"
MACHINE = "tests/unit/domain/test_machine.py"
BATCH = "tests/unit/client/api/test_batch.py"

DEFECTS = (
    Defect(
        1,
        ONE_ORDER,
        "The first store of a frame gets the revision of the write before it.",
        "domain/tiers/fast_path.py",
        "        revision += 1\n        serial,",
        "        revision += bool(run.rows)\n        serial,",
        ("features/order.feature: At once there is still an order",),
    ),
    Defect(
        1,
        ONE_ORDER,
        "A store that replaces a fragment gets the revision of the write before it.",
        "domain/tiers/fast_path.py",
        "        revision += 1\n        serial,",
        "        revision += not before\n        serial,",
        (STORM, "tests/property/test_simulator.py::test_regression_passes"),
    ),
    Defect(
        1,
        ONE_ORDER,
        "A change that is recorded gets no revision of its own.",
        "domain/machine.py",
        "        state.revision += not isinstance(command, _EPHEMERAL)\n",
        '        state.revision += not isinstance(command, _EPHEMERAL) and type(command).__name__ != "RecordChange"\n',
        (STORM,),
    ),
    Defect(
        1,
        REAL_TIME,
        "The manager shows a commit to readers in shared memory only after its replies.",
        "manager/loop.py",
        "        self._index.publish(self._requests.clock.latest_ms, is_active=bool(busy))\n"
        "        self._reply(busy)\n",
        "        self._reply(busy)\n"
        "        self._index.publish(self._requests.clock.latest_ms, is_active=bool(busy))\n",
        (STORM, PROVE, "features/order.feature: Reads are part of it"),
    ),
    Defect(
        1,
        REAL_TIME,
        "A restarted manager serves while clients may still read what its predecessor has published.",
        "manager/process.py",
        "    if left_ns > 0:\n",
        "    if left_ns > 1e15:\n",
        (f"{INDEX}::test_restarted_manager", "tests/unit/manager/test_read_reports.py::TestWaiting::test_next_manager"),
    ),
    Defect(
        1,
        READS,
        "The manager shows changes to readers in shared memory before they are committed.",
        "manager/loop.py",
        "        self._journal.commit()\n"
        "        self._index.publish(self._requests.clock.latest_ms, is_active=bool(busy))\n",
        "        self._index.publish(self._requests.clock.latest_ms, is_active=bool(busy))\n"
        "        self._journal.commit()\n",
        ("tests/unit/manager/test_loop.py::test_commit_that_fails_is_shown_to_no_reader",),
    ),
    Defect(
        1,
        READS,
        "A reader looks into the index while the manager changes it.",
        "memory/reader/index_reader.py",
        "        if sequence & 1:\n            continue\n",
        "",
        (f"{DOUBLES}::test_sequence",),
    ),
    Defect(
        1,
        READS,
        "A reader uses an index whose validity is over.",
        "memory/reader/index_reader.py",
        "        return found if now_ns < until_ns and now_ns < words[VALID_UNTIL] else None",
        "        return found if now_ns < until_ns else None",
        (f"{INDEX}::test_killed_manager_is_not_read_for_ever", f"{DOUBLES}::test_validity"),
    ),
    Defect(
        1,
        ACCESSES,
        "Reads in shared memory are never reported.",
        "client/session/indexed_reads.py",
        "        counts = Counter(drained)\n",
        "        drained.clear()\n        counts = Counter(drained)\n",
        (f"{REPORTS}::test_ahead_of_the_next_request", f"{REPORTS}::test_after_a_number_of_reads"),
    ),
    Defect(
        1,
        "at most 65,536 reads or 100 ms of reading later",
        "A client that only reads sends no request for an hour.",
        "client/session/indexed_reads.py",
        "time.CLOCK_BOOTTIME) + _REPORT_NS",
        "time.CLOCK_BOOTTIME) + 36_000 * _REPORT_NS",
        (f"{REPORTS}::test_after_a_time",),
    ),
    Defect(
        2,
        ENTIRELY,
        "The commands before the refused one of a transaction are not undone.",
        "domain/machine.py",
        "    except Refused as error:\n        _undo(state, verdicts)\n",
        "    except Refused as error:\n",
        (
            "features/atomicity.feature: A transaction that is refused half-way leaves nothing",
            f"{MACHINE}::test_transaction_that_fails_anywhere_leaves_no_trace",
            f"{BATCH}::test_transaction_is_all_or_nothing",
        ),
    ),
    Defect(
        2,
        ENTIRELY,
        "The commands of a batch behind a refused one have no effect.",
        "manager/request_handler.py",
        "                results.append(result := self._execute_one(commands[at], origin))\n",
        "                results.append(result := self._execute_one(commands[at], origin))\n"
        "                if isinstance(result, Refusal):\n"
        "                    results += [result] * (len(commands) - len(results))\n",
        (f"{BATCH}::test_batch_has_one_outcome_each",),
    ),
    Defect(
        2,
        ENTIRELY,
        "A run of stores decides about a fragment by the row that it has just replaced itself.",
        "domain/tiers/fast_path.py",
        "            or (name := command.fragment_id) in changed\n",
        "            or not (name := command.fragment_id)\n",
        ("tests/property/test_batches.py::test_one_by_one",),
    ),
    Defect(
        2,
        REFUSED,
        "A refused deletion counts as an access, and so changes the order of eviction.",
        "domain/tiers/rules.py",
        "    row = _find_entry(state, command.project, command.fragment_id, origin).row\n"
        "    _require_revision(row.key, row, command.expected_revision)\n",
        "    entry = _find_entry(state, command.project, command.fragment_id, origin)\n"
        "    row = entry.row\n"
        "    state.fragments.touch(entry, origin.now_ms)\n"
        "    _require_revision(row.key, row, command.expected_revision)\n",
        ("tests/property/test_tiers.py::TestTiers",),
    ),
)
