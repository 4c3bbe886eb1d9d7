"""The doctor: examines a data directory without changing a byte of it.

A manager that starts checks what it needs and stops at the first problem. The doctor checks everything, bodies byte by
byte, and reports all problems that it finds. Findings (the directory is damaged) are kept apart from notes (the next
manager puts this right by itself, or it is worth knowing).

The checks run in the order of `Check`, inside one read transaction, so that they see one revision even while a manager
writes. A later check uses what the earlier ones could read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field

from stepwell import limits
from stepwell.boot import boot_id
from stepwell.domain import invariants
from stepwell.domain.events import AnyEvent
from stepwell.domain.machine import note_packed_bytes
from stepwell.domain.state import State
from stepwell.domain.tiers.model import Tier
from stepwell.domain.tiers.tier_index import Usage
from stepwell.errors import ProtocolError, StoreDamaged
from stepwell.manager.check.body_check import BodyCheck
from stepwell.protocol.codec import decode_from_manager, decode_results
from stepwell.protocol.framing import HEADER
from stepwell.storage import log_view, rows
from stepwell.storage.database import UNREADABLE
from stepwell.storage.files.mark import Mark
from stepwell.storage.load import TABLES, StoreContents, read_all, vanished
from stepwell.storage.loss import find_mark, loss
from stepwell.storage.readonly import find_database, inspect, number_of, schema_of
from stepwell.storage.schema import VERSION
from stepwell.storage.table import CheckedTable, Value
from stepwell.text import plural

TokenCounters = Callable[[str], Callable[[bytes], int] | None]
"""Returns the token counter for the name of an encoding, or None if the encoding is not available."""

_events: Final = msgspec.json.Decoder(AnyEvent)


class Check(StrEnum):
    """The checks, in the order in which they run."""

    FILE = "file"
    SCHEMA = "schema"
    COMMITS = "commits"
    ROWS = "rows"
    INVARIANTS = "invariants"
    BODIES = "bodies"
    TOKENS = "tokens"
    SESSIONS = "sessions"
    EVENTS = "events"


class CheckFindings(Struct):
    """The problems of one check. All are counted, and the first `limits.PROBLEMS_LISTED_MAX` are listed."""

    listed: list[str] = field(default_factory=list[str])
    count: int = 0

    def add(self, problem: str) -> None:
        """Count a problem, and list it if there is room."""
        self.count += 1
        if len(self.listed) < limits.PROBLEMS_LISTED_MAX:
            self.listed.append(problem)


class CheckReport(Struct):
    """The result of an examination. A check that is missing in `checks` could not be made."""

    directory: str
    schema: int | None = None
    epoch: str | None = None
    revision: int | None = None
    counts: dict[str, int] = field(default_factory=dict[str, int])
    checks: dict[Check, CheckFindings] = field(default_factory=dict[Check, CheckFindings])
    notes: list[str] = field(default_factory=list[str])

    @property
    def is_healthy(self) -> bool:
        """True if no check found a problem."""
        return not any(findings.count for findings in self.checks.values())

    @property
    def problems(self) -> list[str]:
        """The listed problems, each as `check: text`.

        Problems of invariants begin with the name of the invariant instead.
        """
        found: list[str] = []
        for check, findings in self.checks.items():
            prefix = "" if check is Check.INVARIANTS else f"{check}: "
            found += [f"{prefix}{each}" for each in findings.listed]
            if findings.count > len(findings.listed):
                found.append(f"{check}: and {findings.count - len(findings.listed)} more")
        return found


def examine(directory: Path, counting: TokenCounters) -> CheckReport:
    """Examine a data directory and return the report. Raise `InvalidArgument` if it is no data directory.

    The mark is read before the database, because a manager may go on to write both.
    """

    def examine_database(db: sqlite3.Connection) -> CheckReport:
        return _Examination(db, CheckReport(str(directory)), counting, mark).examine()

    try:
        database = find_database(directory)
        mark = find_mark(directory)
        return inspect(database, examine_database)
    except StoreDamaged as error:
        return CheckReport(str(directory), checks={Check.FILE: CheckFindings([error.message], 1)})


@contextmanager
def _check(report: CheckReport, check: Check) -> Generator[CheckFindings]:
    """Run a check. An error of SQLite in it becomes one more finding."""
    findings = report.checks.setdefault(check, CheckFindings())
    try:
        yield findings
    except UNREADABLE as error:
        findings.add(f"cannot be read to the end: {error}")


class _Examination:
    """One examination of one database. `examine` runs the checks and fills the report."""

    def __init__(
        self,
        db: sqlite3.Connection,
        report: CheckReport,
        counting: TokenCounters,
        mark: Mark | StoreDamaged | None,
    ) -> None:
        self._db = db
        self._db.text_factory = _text  # of a damaged text the row is named, and the next one is read
        self._report = report
        self._counting = counting
        self._mark = mark

    def examine(self) -> CheckReport:
        """Run all checks in one read transaction, so that commits of a manager in the meantime are not seen.

        A file that is no database ends the examination, and so does another version of the tables: nothing further
        could be read. All other problems are listed, and the next check runs on what was readable.
        """
        report = self._report
        with self._check(Check.FILE) as findings:
            self._db.execute("BEGIN")
            report.schema = schema_of(self._db)
            for (line,) in self._db.execute("PRAGMA integrity_check"):
                if line != "ok":
                    findings.add(str(line))
        if findings.count and report.schema is None:
            return report
        with self._check(Check.SCHEMA) as findings:
            self._check_schema(findings)
        if report.schema is None or report.schema <= VERSION:
            self._check_commits()
        if report.schema != VERSION:
            return report
        with self._check(Check.ROWS) as findings:
            self._apply_log(findings)
            contents = read_all(self._db, findings.add)
        with self._check(Check.ROWS):
            report.counts = {table: number_of(self._db, f"SELECT count(*) FROM {table}") for table in TABLES}  # noqa: S608
        if contents.store is not None:
            report.epoch, report.revision = contents.store.epoch, contents.store.revision
            counts = [report.counts.get(table.name) for table in rows.COUNTED]
            if None not in counts and (problem := vanished(contents.store, sum(filter(None, counts)))):
                report.checks[Check.ROWS].add(problem)
        state = self._check_state(contents)
        self._check_bodies(contents, state)
        with self._check(Check.SESSIONS) as findings:
            self._check_sessions(contents, state, findings)
        with self._check(Check.EVENTS) as findings:
            if contents.store is not None:
                self._check_events(contents.store, findings)
        return report

    def _check(self, check: Check) -> AbstractContextManager[CheckFindings]:
        return _check(self._report, check)

    def _check_schema(self, findings: CheckFindings) -> None:
        """Check the version of the tables. Rows of another version are not examined, because their columns differ.

        An older version is no damage: the next manager migrates it. A later one is a finding, since this version cannot
        serve it.
        """
        schema = self._report.schema
        if schema is None:
            self._report.notes.append("there is nothing in it yet: the next manager begins there")
        elif schema > VERSION:
            findings.add(f"version {schema} is of a later stepwell, this one knows {VERSION}: install that one")
        elif schema <= 0:
            findings.add(f"there is no version {schema}: stepwell never wrote it")
        elif schema < VERSION:
            self._report.notes.append(f"schema {schema} is an older one, which the next manager brings up to date")
        if schema != VERSION:
            self._report.notes.append("rows and bodies were not looked at")

    def _check_commits(self) -> None:
        """Compare the database with its mark. A store that cannot be read is reported with the rows."""
        with self._check(Check.COMMITS) as findings:
            try:
                problem = loss(Path(self._report.directory), self._db, self._mark, boot_id())
            except StoreDamaged as error:
                problem = f"cannot be compared with the mark: {error.message}"
            if problem:
                findings.add(problem)

    def _apply_log(self, findings: CheckFindings) -> None:
        """Let the connection see the tables with the redo log applied, up to the first damaged record."""
        try:
            log_view.apply_log(self._db)
        except StoreDamaged as error:
            findings.add(error.message)
        except UNREADABLE as error:
            findings.add(f"table redo_log cannot be read: {error}")

    def _check_state(self, contents: StoreContents) -> State:
        """Restore a state from the rows, as a manager would, and check its invariants.

        Return an empty state if the rows do not make one. Each invariant is checked by itself, because one may rely on
        another: an invariant that raises is reported as unchecked, and the remaining ones still run.
        """
        state, store = State(), contents.store
        with self._check(Check.INVARIANTS) as findings:
            try:
                if store is not None:
                    state.restore(store.revision, contents.rows, contents.fragments, store.next_serial, store.tick)
            except Exception as error:  # noqa: BLE001 - unchecked rows may cause any error
                findings.add(f"rows: they do not make a state: {error!r}")
                return State()
            for body in contents.bodies:
                if body.takes is not None:
                    note_packed_bytes(state.bodies, body.digest, body.takes)
            for name in invariants.INVARIANTS:
                try:
                    for problem in invariants.check(state, only=(name,)):
                        findings.add(problem)
                except Exception as error:  # noqa: BLE001 - an invariant may rely on another one that is violated
                    findings.add(f"{name}: it could not be checked: {error!r}")
            for entry in contents.fragments:
                if store is not None and state.fragments.find(*entry.row.key) is not entry:
                    findings.add(f"fragment {entry.row.key} is there twice")
                if store is not None and entry.row.revision > store.revision:
                    findings.add(f"revisions: fragment {entry.row.key} is of {entry.row.revision}, from the future")
        return state

    def _check_bodies(self, contents: StoreContents, state: State) -> None:
        """Check the bodies' bytes, and compare the stored token counts with those of the encoding.

        A difference of token counts is a note and no finding, because a client may count for itself.
        """
        count = self._counting(contents.store.encoding) if contents.store is not None else None
        body_check = BodyCheck(self._db, state, count)
        with self._check(Check.BODIES) as findings:
            body_check.examine(contents.bodies, findings.add)
            self._report.notes += body_check.orphans(contents.bodies)
        with self._check(Check.TOKENS) as findings:
            self._check_tokens(contents, state, findings)
        if contents.store is None:
            return
        if count is None:
            self._report.notes.append(
                f"tokens were not counted: encoding {contents.store.encoding!r} is not available here"
            )
        elif body_check.differing:
            self._report.notes.append(
                f"{body_check.differing:,} of {plural(body_check.counted, 'fragment')} with another number of tokens "
                f"than {contents.store.encoding} gives: the clients that stored them counted"
            )

    def _check_tokens(self, contents: StoreContents, state: State, findings: CheckFindings) -> None:
        """Compare the totals of each tier with the sums that SQLite computes from the table.

        The two differ if rows could not be read, or if a row is in a tier that does not exist.
        """
        for entry in contents.fragments:
            if entry.row.tokens < 1:
                findings.add(f"fragment {entry.row.key} has {entry.row.tokens}")
        query = "SELECT keep, tier, count(*), sum(tokens), sum(size) FROM fragments GROUP BY keep, tier"
        sums = {(keep, tier): Usage(*values) for keep, tier, *values in self._db.execute(query)}
        kept = state.fragments.kept_usage()
        for keep, tier in product((0, 1), Tier):
            by_rows = kept.get(tier, Usage()) if keep else state.fragments.usage(tier)
            by_table = sums.pop((keep, tier), Usage())
            if by_rows != by_table:
                name = f"{tier} (keep)" if keep else f"{tier}"
                findings.add(f"{name} has {by_rows} by its rows, and {by_table} in the table")
        for (_, tier), by_table in sums.items():
            findings.add(f"there is no tier {tier!r}, and it has {plural(by_table.entries, 'fragment')}")

    def _check_sessions(self, contents: StoreContents, state: State, findings: CheckFindings) -> None:
        """Check that leases have a plan and replies a session, and that replies can be decoded.

        A lease without a session is a note: the manager expires it. A reply that cannot be decoded is a finding,
        because it would be sent as it is to a client that repeats its request.
        """
        sessionless = 0
        for plan_id, lease in contents.leases.items():
            if state.plans.get(plan_id) is None:
                findings.add(f"lease {lease.token} is of plan {plan_id!r}, and there is no such plan")
            sessionless += lease.session_id not in contents.sessions
        if sessionless:
            self._report.notes.append(
                f"{plural(sessionless, 'lease')} of sessions that are gone: such a lease ends when its time is over"
            )
        for found in self._db.execute(rows.REPLIES.select):
            session_id, request_id, frame, _ = found
            where = f"reply to request {request_id!r} of session {session_id!r}"
            _check_checksum(rows.REPLIES, found, findings)
            if session_id not in contents.sessions:
                findings.add(f"{where}: there is no such session")
            try:
                decode_from_manager(frame[HEADER.size :] if isinstance(frame, bytes) else b"")
            except ProtocolError as error:
                findings.add(f"{where}: {error}")
        for found in self._db.execute(rows.REPLY_PARTS.select):
            session_id, request_id, ordinal, results, _ = found
            _check_checksum(rows.REPLY_PARTS, found, findings)
            where = f"part {ordinal!r} of the reply to request {request_id!r} of session {session_id!r}"
            if session_id not in contents.sessions:
                findings.add(f"{where}: there is no such session")
            try:
                decode_results(results if isinstance(results, bytes) else b"")
            except ProtocolError as error:
                findings.add(f"{where}: {error}")

    def _check_events(self, store: rows.StoreRow, findings: CheckFindings) -> None:
        """Check that events can be decoded, agree with their columns, and are in order.

        A watcher that resumes from the store relies on it: within a revision the ordinals have no gaps, times do not go
        back, and no event lies at or before the revision that the store declares as trimmed.
        """
        if store.events_after > store.revision:
            findings.add(f"the oldest is behind revision {store.events_after}, and the store is at {store.revision}")
        earlier = (store.events_after, 0, 0)
        for found in self._db.execute(rows.EVENTS.select):
            revision, ordinal, at_ms, kind, text, _ = found
            where = f"event {ordinal} of revision {revision}"
            _check_checksum(rows.EVENTS, found, findings)
            try:
                event = _events.decode(text)
            except (msgspec.MsgspecError, TypeError, ValueError) as error:
                findings.add(f"{where}: {error}")
            else:
                if (event.revision, event.at_ms, type(event).__name__) != (revision, at_ms, kind):
                    findings.add(f"{where} says that it is a {type(event).__name__} of revision {event.revision}")
            if revision > store.revision:
                findings.add(f"{where} is beyond the store's revision, {store.revision}")
            expected = earlier[1] + 1 if revision == earlier[0] else 0
            if revision <= store.events_after or ordinal != expected or at_ms < earlier[2]:
                findings.add(f"{where}, at {at_ms} ms, is out of order")
            earlier = (revision, ordinal, at_ms)


def _check_checksum(table: CheckedTable, found: Sequence[Value], findings: CheckFindings) -> None:
    """Report a row whose checksum is wrong."""
    try:
        table.opened(found)
    except StoreDamaged as error:
        findings.add(error.message)


def _text(raw: bytes) -> str:
    """Return a text of the database. Bytes that are no UTF-8 are kept in a form that no checksum accepts."""
    return str(raw, "utf-8", "surrogateescape")
