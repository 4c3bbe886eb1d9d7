"""The journal: the changes of one turn, and the one place where they are committed.

During a turn the state changes in memory, and the journal collects what the store needs to know about it in a
`CommitBatch`. `commit` writes the batch in one transaction and publishes its events afterwards. Before `commit` has
returned, no reply and no event of the turn leaves the manager.

Fragments are collected by key and resolved at the commit, so that a fragment that changed ten times in a turn is
written once. Other rows are collected with their latest value. Access times of fragments that were only read are not
part of the turn: they are written at intervals, a bounded number at a time, and a crash loses the latest of them.

Without a durable store the journal only passes the changes on to the event feed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepwell import limits
from stepwell.domain import machine
from stepwell.domain.event_builder import events_of
from stepwell.domain.machine import Outcome
from stepwell.domain.state import State
from stepwell.domain.tiers.fast_path import StoreRun
from stepwell.domain.tiers.model import FragmentRow, TierBudget
from stepwell.errors import BodyGone
from stepwell.manager.event_feed import EventFeed
from stepwell.storage.store import BodyRow, CommitBatch, Durability, ReplyPart, SessionRow, Store


class Journal:
    """Collects the changes of a turn for a store, and implements `DurableBodies` for the body store.

    The state owner creates it and the loop commits it; both belong to the same thread. If `Store.commit` fails, the
    manager stops, since the state in memory is then ahead of the disk.
    """

    def __init__(self, store: Store, state: State) -> None:
        self.store = store
        self._state = state
        self.is_durable = store.durability is not Durability.NONE
        self.feed = EventFeed(self._projects_of, floor=state.revision, archive=store if self.is_durable else None)
        self._batch = CommitBatch()
        self._is_changed = False
        self._answered: dict[str, int] = {}  # by session, as the store has it
        self._write_uses_at_s = self._follow_at_s = 0.0
        self._revision_at_tidy = -1  # the revision at the last `tidy`
        if self.is_durable:
            machine.track_reads(state)

    @property
    def revision(self) -> int:
        """The revision of the state, committed or not."""
        return self._state.revision

    def record_initial_budget(self, budget: TierBudget) -> None:
        """Write the budget into a new store, which has no rows yet."""
        self._batch.rows[TierBudget] = {budget.key: budget}
        self._is_changed = True

    def record(self, outcomes: Sequence[Outcome], now_ms: int) -> None:
        """Collect the outcomes of one revision.

        Events are built here and not at the commit, because they need the rows as they are at this revision: a plan
        that is deleted later in the turn would take its projects, and so the scope of its events, with it.
        """
        if not self.is_durable:
            self.feed.record(outcomes, now_ms)  # without a commit nothing can fail before the events are published
            return
        batch = self._batch
        for outcome in outcomes:
            for change in outcome.changes:
                row = change.after or change.before
                assert row is not None
                if isinstance(row, FragmentRow):
                    batch.fragments[row.key] = None  # `commit` fills in the entry
                    if change.after is None:
                        batch.removed.append(row.serial)
                else:
                    batch.rows.setdefault(type(row), {})[row.key] = change.after
            batch.events += events_of(outcome.changes, outcome.revision, now_ms, self._projects_of)
        batch.now_ms = now_ms
        self._is_changed = True

    def record_stores(self, run: StoreRun) -> None:
        """Collect stores of fragments, each with a revision of its own.

        This is the fast path of `record`.
        """
        if not self.is_durable:
            self.feed.record_stores(run)
            return
        batch = self._batch
        for row in run.rows:
            for before, _ in run.demotions.get(row.revision, ()):
                batch.fragments[before.key] = None
            batch.fragments[row.key] = None
            batch.events += events_of(run.changes(row), row.revision, row.placed_at_ms, self._projects_of)
        batch.now_ms = run.rows[-1].placed_at_ms
        self._is_changed = True

    def record_reply(self, session_id: str, request_id: int, frame: bytes) -> None:
        """Store the reply of a request that took effect, so that a later manager gives the same reply."""
        if self.is_durable:
            self._batch.replies.append((session_id, request_id, frame))
            self._is_changed = True

    def record_reply_part(self, part: ReplyPart) -> None:
        """Store the results of a part of a batch with the changes of this turn, so that a later manager continues."""
        if self.is_durable:
            self._batch.reply_parts.append(part)
            self._is_changed = True

    def record_completion(self, session_id: str, request_id: int) -> None:
        """Delete the parts of a reply that is complete: `record_reply` has all of it."""
        if self.is_durable:
            self._batch.completed.append((session_id, request_id))
            self._is_changed = True

    def record_session(self, session: SessionRow) -> None:
        """Store a new session, so that its client finds it after a restart."""
        if self.is_durable:
            self._batch.sessions[session.session_id] = session
            self._is_changed = True

    def record_session_end(self, session_id: str) -> None:
        """Delete a session, and the replies of this turn that were remembered for it.

        The replies have to go from the batch, because the store deletes those of the session before it inserts new
        ones.
        """
        if self.is_durable:
            self._batch.sessions[session_id] = None
            self._batch.replies = [each for each in self._batch.replies if each[0] != session_id]
            self._batch.reply_parts = [each for each in self._batch.reply_parts if each.session_id != session_id]
            self._is_changed = True

    def tidy(self, answered: dict[str, int], now_s: float) -> None:
        """Delete what is not needed any more, and write access times when they are due.

        `answered` has, by session, the number below which all requests have reached their caller. This also checks that
        the database is still at its path: a manager whose files were removed must not acknowledge more writes. And it
        flushes the mark, by which the next manager notices a loss of commits.
        """
        if not self.is_durable:
            return
        self.store.check_present()
        self.store.sync_mark()
        advanced = {
            session_id: number for session_id, number in answered.items() if self._answered.get(session_id, 0) < number
        }
        self._answered = answered
        self._follow_log(now_s)
        if advanced or self.store.has_garbage:
            self._batch.answered = advanced
            self._is_changed = True
        if now_s >= self._write_uses_at_s and not self.write_uses():
            self._write_uses_at_s = now_s + limits.RECENCY_SECONDS

    def _follow_log(self, now_s: float) -> None:
        """Let the tables of the store follow its log: at once when nothing was written lately, otherwise at intervals.

        Under load each slice would delay replies, and later records make some of the earlier ones superfluous.
        """
        if now_s >= self._follow_at_s or self._revision_at_tidy == self._state.revision:
            self._follow_at_s = now_s + limits.REDO_SECONDS
            self.store.follow()
        self._revision_at_tidy = self._state.revision

    def work(self) -> bool:
        """Let the tables of the store follow its log by a slice. Return True if there is more to do."""
        return self.store.work()

    def finish(self) -> None:
        """Commit what is left, and let the tables of the store have everything. For the end of the manager."""
        while self.write_uses():
            self.commit()
        self.commit()
        self.store.follow()
        while self.store.work():
            pass

    def write_uses(self) -> bool:
        """Collect a bounded number of access times of fragments that were only read. Return True if there are more.

        They decide the LRU order after a restart. No reply depends on them, so they are written at intervals.
        """
        table = self._state.fragments
        if not table.has_read_entries:
            return False
        for entry in machine.drain_reads(self._state, limits.RECENCY_ROWS_PER_TURN):
            if entry.row.key not in self._batch.fragments:
                self._batch.touched.append(entry)
                self._batch.now_ms = max(self._batch.now_ms, entry.touched_at_ms)
        self._is_changed = True
        return table.has_read_entries

    def commit(self) -> None:
        """Write the batch in one transaction, and publish its events. Raise `StoreFailed` if it cannot be written.

        A turn without changes commits nothing. The batch is exchanged first, so that a failed one is never written
        again. The counters (revision, serial, tick, rows) are read here, because they belong to the end of the turn.
        """
        if not self._is_changed:
            return
        batch, self._batch, self._is_changed = self._batch, CommitBatch(), False
        table = self._state.fragments
        for key in batch.fragments:
            batch.fragments[key] = table.find(*key)
        batch.revision = self._state.revision
        batch.next_serial, batch.tick = table.next_serial, table.tick
        batch.row_count = self._state.row_count
        self.store.commit(batch)
        self.feed.publish(batch.events)

    # The methods of `DurableBodies`, which the body store calls. What they write becomes durable with the batch.

    def put(self, digest: bytes, size: int, data: bytes, *, packed: bool) -> None:
        self._put(BodyRow(digest, size, packed, data))

    def begin_upload(self) -> int:
        return self.store.next_upload()

    def add_part(self, number: int, part: int, data: bytes) -> None:
        self._batch.parts.append((number, part, data))
        self._is_changed = True

    def finish_upload(self, number: int, digest: bytes, size: int, *, packed: bool) -> None:
        self._put(BodyRow(digest, size, packed, None, number))

    def abandon_upload(self, number: int) -> None:
        self._batch.abandoned.append(number)
        self._is_changed = True

    def drop(self, digest: bytes) -> None:
        self._abandon_earlier_upload(digest)
        self._batch.bodies[digest] = None
        self._is_changed = True

    def note_packed(self, digest: bytes, size: int) -> None:
        self._batch.packed_bytes[digest] = size
        self._is_changed = True

    def is_committed(self, digest: bytes) -> bool:
        return digest not in self._batch.bodies

    def body_number(self, digest: bytes) -> int:
        return self.store.body_number(digest)

    def read(self, digest: bytes) -> tuple[bool, Iterator[bytes]]:
        found = self.store.read(digest)
        if found is None:
            raise BodyGone(f"the body {digest.hex()} is not in the store: see `stepwell doctor`")
        return found

    def _put(self, body: BodyRow) -> None:
        """Collect a body that is written as a whole, or whose parts are complete."""
        self._abandon_earlier_upload(body.digest)
        self._batch.bodies[body.digest] = body
        self._is_changed = True

    def _abandon_earlier_upload(self, digest: bytes) -> None:
        """Abandon the parts of a body that arrived in this turn and is replaced or dropped before its end."""
        earlier = self._batch.bodies.get(digest)
        if earlier is not None and earlier.upload is not None:
            self._batch.abandoned.append(earlier.upload)

    def _projects_of(self, plan_id: str) -> tuple[str, ...]:
        """Return the projects of a plan, for the scope of its events."""
        plan = self._state.plans.get(plan_id)
        return plan.projects if plan else ()
