"""The owner of the state: one process and one thread, and a guard that refuses all others.

`domain.machine` decides what a command changes. This module is where the decision meets the rest of the manager: room
for bodies is reserved before a command is decided, and afterwards its changes are propagated to the journal (what has
to be committed), to the bodies (what may be freed or compressed), to the catalogues (what readers replay) and to the
task dispatcher. Propagation cannot fail, because everything that can fail happens before the state changes. If it fails
all the same, the state is half changed: `StateBroken` ends the manager, and the next one starts from the last commit.

There is no lock here, because a single thread uses the state. Other threads and processes send requests.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Container, Sequence
from itertools import chain
from typing import Final

from stepwell import limits
from stepwell.domain import invariants, machine
from stepwell.domain.changesets.model import EntryRow
from stepwell.domain.commands import Command, Write
from stepwell.domain.invariants import BUDGET
from stepwell.domain.logs.model import LogEntryRow
from stepwell.domain.machine import Outcome
from stepwell.domain.receipts.model import ReceiptRow
from stepwell.domain.replies import FragmentFound, FragmentPlaced, FragmentsMoved, Reply
from stepwell.domain.state import State
from stepwell.domain.tasks.model import Task
from stepwell.domain.tasks.queue import TaskTable
from stepwell.domain.tiers.commands import EvictLru, GetFragment, RelieveArena, SetBudget, StoreFragment
from stepwell.domain.tiers.model import HOT, FragmentRow, Tier, TierBudget
from stepwell.domain.verdict import AnyChange, Origin
from stepwell.errors import Busy, NotOwner, ResourceExhausted, StepTooLarge, StepwellError, TierFull
from stepwell.manager.journal import Journal
from stepwell.manager.recovery import recover, restore_bodies
from stepwell.memory.writer.arena import OutOfRoom, SystemShortage
from stepwell.memory.writer.body_store import BodyStore
from stepwell.memory.writer.catalogue import Catalogues
from stepwell.memory.writer.fragment_index import FragmentIndex
from stepwell.memory.writer.upload import Upload
from stepwell.protocol.handles import CatalogueEnd, Handle
from stepwell.protocol.messages import CommandResult
from stepwell.storage.null_store import NullStore
from stepwell.storage.store import Store

MANAGER: Final = "manager"
"""The session id of commands that the manager issues itself."""

_Shortcut = Callable[[Sequence[object], Origin], list[CommandResult]]
"""Applies the leading simple commands of a run. The first one that is not simple ends the run and is not applied."""


class _CurrentProcess:
    """The id of this process, cached because asking the kernel costs a system call per command."""

    def __init__(self) -> None:
        self.refresh()
        os.register_at_fork(after_in_child=self.refresh)

    def refresh(self) -> None:
        """Read the process id. A forked child does it at once, so that the guard refuses the child."""
        self.process = os.getpid()


_current_process = _CurrentProcess()


class StateBroken(BaseException):
    """A defect struck while the state was changing. The state is half changed and must not be served.

    It is a BaseException, so that no handler of ordinary errors in the loop can catch it by accident.
    """


_HAVE_BODIES: Final[frozenset[type]] = frozenset({FragmentRow, EntryRow, ReceiptRow, LogEntryRow, TierBudget})
"""The types of rows whose change concerns the body store."""
_NO_HANDLES: Final[dict[bytes, Handle]] = {}
# Segment numbers must not repeat within an epoch, because clients know segments by them. Each start of a manager gets a
# range of numbers so large that no manager uses it up.
_SEGMENTS_PER_START_BITS: Final = 32


def _no_memory_error(error: OutOfRoom) -> TierFull | ResourceExhausted:
    """Return the refusal for memory that cannot be had: because of the budget, or of the machine."""
    if isinstance(error, SystemShortage):
        return ResourceExhausted(f"there is no shared memory left: {error}")
    return TierFull(f"there is no shared memory left ({error}): delete some fragments, or raise arena_bytes")


class StateOwner:
    """The only holder of the state, its bodies, its catalogues and its journal.

    Single-threaded by design, and enforced: each use outside the owning process and thread raises `NotOwner`. The
    caller is the manager's loop, one command at a time. `stored` is the state that the store held at the start, until
    the manager has resumed from it; None for a new one.
    """

    def __init__(
        self, budget: TierBudget | None = None, store: Store | None = None, *, has_index: bool = False
    ) -> None:
        self._process = _current_process.process
        self._thread = threading.get_ident()
        store = store or NullStore()
        self.stored = store.load()
        self._state = State(budget) if self.stored is None else recover(self.stored)
        store.start_writing()
        self.journal = Journal(store, self._state)
        self._bodies = BodyStore(
            self._state.bodies,
            self._state.budget.arena_bytes,
            durable=self.journal if self.journal.is_durable else None,
            first_segment=(store.starts << _SEGMENTS_PER_START_BITS) + 1,
        )
        self._catalogues = Catalogues(self._state.fragments, self._bodies)
        self._index = FragmentIndex(self._state.fragments, self._bodies, on_valid=store.note_validity)
        self._index.is_disabled = not has_index
        self._retry_at_s = 0.0
        self._shortcuts: dict[type, _Shortcut] = {GetFragment: self._get, StoreFragment: self._store}
        # Changes of tasks and workers that the dispatcher has not processed yet. It empties the list in each turn.
        self.task_changes: list[AnyChange] = []
        if self.stored is not None:
            restore_bodies(self.stored, self._state, self._bodies, self.journal)
        elif self.journal.is_durable:
            self.journal.record_initial_budget(self._state.budget)

    def enforce_budget(self, budget: TierBudget | None, origin: Origin) -> None:
        """Set the budget, and demote fragments until the state is within it, before anything is served.

        The stored state may exceed the budget of this start, since each start may give another one. One step moves a
        bounded number of fragments, hence the loop. Without a given budget the stored one is kept.
        """
        self._require_owner()
        wanted = budget or self._state.budget
        while wanted != self._state.budget or invariants.check(self._state, only=(BUDGET,)):
            try:
                self.execute(SetBudget(wanted), origin)
            except StepTooLarge:  # demote in bounded steps first
                for tier in (Tier.WARM, Tier.HOT):
                    self.execute(EvictLru(tier, limits.MOVES_PER_STEP_MAX), origin)

    def execute(self, command: Command[Reply], origin: Origin) -> CommandResult:
        """Apply one command and return its result, or raise its refusal.

        The result has the handles of the bodies that the reply refers to, as they are at this moment.
        """
        self._require_owner()
        try:
            if lengths := command.inline:
                self._make_room(lengths, origin, no_eviction=command.no_eviction)
            revision = self._state.revision
            outcome = machine.apply(self._state, command, origin)
            if outcome.revision != revision:
                self._propagate((outcome,), origin.now_ms)
            elif outcome.changes:
                self._propagate_task_changes(outcome)
            wanted = outcome.reply.body_digests
            if isinstance(outcome.reply, FragmentFound) and outcome.reply.row.tier is HOT:
                row = outcome.reply.row
                self._index.note_read(row, self._bodies.handles[row.digest])
            return CommandResult(
                outcome.revision, outcome.reply, self._bodies.locate(wanted) if wanted else _NO_HANDLES
            )
        except StepwellError:
            raise
        except Exception as error:
            raise StateBroken(repr(error)) from error

    def execute_simple(self, commands: Sequence[object], origin: Origin) -> list[CommandResult]:
        """Apply the leading simple commands of a run, all of one kind, and return their results. There may be none.

        The results are those that `execute` would give, in a third of the time. The first command that is not simple
        ends the run without being applied: the caller passes it to `execute`.
        """
        shortcut = self._shortcuts.get(type(commands[0]))
        if shortcut is None:
            return []
        self._require_owner()
        try:
            return shortcut(commands, origin)
        except Exception as error:
            raise StateBroken(repr(error)) from error

    def _get(self, commands: Sequence[object], origin: Origin) -> list[CommandResult]:
        """Read hot fragments. Nothing changes but their use: access time, count and position in the LRU order."""
        revision, handles = self._state.revision, self._bodies.handles
        found = machine.apply_get_run(self._state, commands, origin)
        if found:
            last = found[-1].row
            self._index.note_read(last, handles[last.digest], len(found))
        answers: list[CommandResult] = []
        for each in found:
            digest = each.row.digest
            answers.append(CommandResult(revision, each, {digest: handles[digest]}))
        return answers

    def _store(self, commands: Sequence[object], origin: Origin) -> list[CommandResult]:
        """Store fragments whose bodies fit into the current segment, with the demotions that make room in hot."""
        room = self._bodies.room(len(commands))
        run = machine.apply_store_run(self._state, commands, origin, room)
        answers: list[CommandResult] = []
        if run.rows:
            self.journal.record_stores(run)
            self._bodies.add_all(run.bodies)
            if run.demotions:
                for demoted, _ in chain.from_iterable(run.demotions.values()):
                    self._bodies.recheck(demoted.digest)
            for released in run.released:
                self._bodies.recheck(released.digest)
            if self._index:
                self._index.note_stores(run)
            if self._catalogues:
                for row in run.rows:
                    self._catalogues.note(run.changes(row), row.revision)
            for row in run.rows:
                placed = FragmentPlaced(row.project, row.fragment_id, HOT, row.tokens, row.revision, row.digest)
                answers.append(CommandResult(row.revision, placed, _NO_HANDLES))
        return answers

    def execute_all(self, commands: Sequence[Write[Reply]], origin: Origin) -> list[CommandResult]:
        """Apply all commands at one revision and return their results, or apply none and raise the refusal."""
        self._require_owner()
        try:
            if lengths := [length for command in commands for length in command.inline]:
                self._make_room(lengths, origin, no_eviction=all(each.no_eviction for each in commands if each.inline))
            outcomes = machine.apply_all(self._state, commands, origin)
            self._propagate(outcomes, origin.now_ms)
            return [CommandResult(each.revision, each.reply, self._present(each.reply)) for each in outcomes]
        except StepwellError:
            raise
        except Exception as error:
            raise StateBroken(repr(error)) from error

    def _present(self, reply: Reply) -> dict[bytes, Handle]:
        """Return the handles of the bodies of a reply that are still there, behind the rest of its transaction."""
        found = self._bodies.handles
        return {digest: found[digest] for digest in reply.body_digests if digest in found}

    def reserve(self, size: int, own: int, origin: Origin, *, no_eviction: bool = False) -> Upload | None:
        """Reserve memory for an upload, or return None while room is being made.

        `own` is the number of bytes that the connection has uploaded already. Raise the refusal when waiting cannot
        help. With `no_eviction` no fragment is demoted, so waiting would not help and the upload is refused at once.
        """
        self._require_owner()
        try:
            return self._bodies.reserve(size, own)
        except OutOfRoom as error:
            may_wait = size < self._bodies.arena.largest and not no_eviction
            if may_wait and (self._bodies.uploading > own or self._reclaim(size, origin)):
                return None
            raise _no_memory_error(error) from error

    def prepare(self, upload: Upload) -> bool:
        """Allocate more of an upload's memory.

        Return True if all of it is allocated; raise `ResourceExhausted` if the system has none.
        """
        try:
            return upload.prepare()
        except OutOfRoom as error:
            raise _no_memory_error(error) from error

    def open_view(self, projects: Sequence[str], origin: Origin, now_s: float) -> list[CatalogueEnd] | None:
        """Return the ends of the projects' catalogues, or None while one is being listed or room is being made.

        Fragments that have expired go first: a view has none of them.
        """
        self._require_owner()
        expiry_ms = self.next_fragment_expiry_ms
        if expiry_ms is not None and expiry_ms <= origin.now_ms:
            return None
        try:
            ends = [self._catalogues.open(project, self._state.revision, now_s) for project in projects]
        except OutOfRoom as error:
            if self._reclaim(limits.CATALOGUE_SEGMENT_BYTES_MAX, origin):
                return None
            raise _no_memory_error(error) from error
        found = [end for end in ends if end is not None]
        return found if len(found) == len(ends) else None

    def catalogue_ends(self, projects: Sequence[str], now_s: float) -> tuple[CatalogueEnd, ...]:
        """Return the present ends of the projects' catalogues, or nothing if one of them is missing or incomplete.

        Unlike `open_view` this starts no listing: a task is given what there is, and its worker asks for a view
        otherwise.
        """
        self._require_owner()
        ends = [self._catalogues.end(project, self._state.revision, now_s) for project in projects]
        found = tuple(end for end in ends if end is not None)
        return found if len(found) == len(ends) else ()

    def work(self) -> bool:
        """Do one slice of background work. Return True if there may be more."""
        self._require_owner()
        return self._catalogues.work() or self._bodies.background.work() or self._index.work() or self.journal.work()

    def count_reads(self, reads: Sequence[tuple[str, str, int]], origin: Origin) -> None:
        """Count reads that a client made without a request."""
        self._require_owner()
        self._index.note_accesses(machine.count_reads(self._state, reads, origin))

    def housekeep(self, now_s: float) -> None:
        """Drop idle catalogues, and retry at intervals what found no room."""
        self._require_owner()
        self._catalogues.housekeep(now_s)
        if now_s >= self._retry_at_s:
            self._retry_at_s = now_s + limits.BLOCKED_RETRY_SECONDS
            self._bodies.background.retry_blocked()

    @property
    def bodies(self) -> BodyStore:
        """The store of the bodies' bytes."""
        self._require_owner()
        return self._bodies

    @property
    def index(self) -> FragmentIndex:
        """The index of hot fragments, which clients read without a request."""
        self._require_owner()
        return self._index

    @property
    def tasks(self) -> TaskTable:
        """The table of tasks, for the dispatcher to read."""
        self._require_owner()
        return self._state.tasks

    @property
    def has_idle_workers(self) -> bool:
        """True if a worker has no task, and could take one that is prefetched to a busy worker."""
        return len(self._state.workers) > len(self._state.tasks.by_worker)

    @property
    def catalogues(self) -> int:
        """The number of projects that have a catalogue."""
        return len(self._catalogues)

    @property
    def revision(self) -> int:
        """The revision of the state, committed or not."""
        self._require_owner()
        return self._state.revision

    @property
    def has_dead_entries(self) -> bool:
        """True if a row of a dead entry of a log is to be deleted."""
        return self._state.logs.has_dead

    @property
    def next_expiry_ms(self) -> int | None:
        """The time at which the first lease or turn expires, or None if there is none."""
        self._require_owner()
        return self._state.next_expiry_ms

    @property
    def sessions_with_tokens(self) -> Collection[str]:
        """The ids of the sessions that hold tokens of pools."""
        return self._state.pools.by_session.keys()

    @property
    def next_fragment_expiry_ms(self) -> int | None:
        """The time at which the first fragment expires, or None if none does."""
        return self._state.fragments.expiry.next_ms

    def close(self) -> None:
        """Release all shared memory and files. The state itself cannot be used afterwards."""
        self._index.close()
        self._bodies.close()

    def _make_room(self, lengths: Sequence[int], origin: Origin, *, no_eviction: bool) -> None:
        """Ensure room for inline bodies before their command is decided.

        Once the state has changed, storing its bodies must not fail. Where the arena is full, a catalogue is dropped,
        fragments are demoted (unless `no_eviction`) and some background work is done first. Raise `Busy` if
        room is on the way, and otherwise `TierFull` or `ResourceExhausted`.
        """
        try:
            self._bodies.require_room(lengths)
        except OutOfRoom:
            self._catalogues.drop_oldest()
            if not no_eviction:
                self._demote_for_room(sum(lengths), origin)
            has_more = self._bodies.background.work(limits.WORK_SECONDS_MAX)
            try:
                self._bodies.require_room(lengths)
            except OutOfRoom as error:
                if has_more or self._bodies.uploading:
                    raise Busy("shared memory is full, and room is being made: try again in a moment") from error
                raise _no_memory_error(error) from error

    def _reclaim(self, needed: int, origin: Origin) -> bool:
        """Make some room: drop a catalogue, demote fragments, or do background work.

        Return True if trying again is worthwhile.
        """
        taken = self._bodies.arena.bytes
        gained = (
            self._catalogues.drop_oldest() or self._demote_for_room(needed, origin) or self._bodies.background.work()
        )
        return gained or self._bodies.arena.bytes < taken

    def _demote_for_room(self, needed: int, origin: Origin) -> bool:
        """Demote the least recently used fragments so that `needed` bytes become free. Return True if any moved."""
        # The domain counts the bytes of bodies, the arena also those of their headers.
        needed = min(needed + self._bodies.arena.overhead, self._state.budget.live_bytes)
        outcome = machine.apply(self._state, RelieveArena(needed), Origin(origin.session_id, origin.now_ms))
        if outcome.changes:
            self._propagate((outcome,), origin.now_ms)
        assert isinstance(outcome.reply, FragmentsMoved)
        return bool(outcome.reply.moves)

    def _propagate(self, outcomes: Sequence[Outcome], now_ms: int) -> None:
        """Pass the changes of one revision on to the journal, the bodies and the catalogues, in this order.

        The journal comes first, so that a body that is written below already belongs to a batch. New bodies are stored
        before the rows are examined, and a row that was created together with its body needs no recheck.
        """
        self.journal.record(outcomes, now_ms)
        for outcome in outcomes:
            if outcome.bodies:
                self._bodies.add_referenced(outcome.bodies)
        for outcome in outcomes:
            for change in outcome.changes:
                after = change.after
                kind = type(change.before if after is None else after)
                if kind in _HAVE_BODIES and (
                    change.before is not None
                    or not isinstance(after, FragmentRow)
                    or after.digest not in outcome.bodies
                ):
                    self._recheck_bodies(change, outcome.bodies)
        if self._index:
            for outcome in outcomes:
                self._index.note_changes(outcome.changes)
        if self._catalogues:
            for outcome in outcomes:
                self._catalogues.note(outcome.changes, outcome.revision)

    def _propagate_task_changes(self, outcome: Outcome) -> None:
        """Pass on changes of tasks.

        Task changes are not journaled: they only update body references and queue work for the task dispatcher.
        """
        for change in outcome.changes:
            for row in (change.before, change.after):
                if isinstance(row, Task):
                    for digest, _ in row.held:
                        self._bodies.recheck(digest)
        self.task_changes += outcome.changes

    def _recheck_bodies(self, change: AnyChange, arrived: Container[bytes]) -> None:
        """Have the body store free or convert the bodies that a changed row refers to, or referred to before.

        Bodies in `arrived` came with the command and were stored a moment ago, so they need no check.
        """
        before, after = change.before, change.after
        if isinstance(after, FragmentRow):
            if after.digest not in arrived:
                self._bodies.recheck(after.digest)
            if isinstance(before, FragmentRow) and before.digest != after.digest:
                self._bodies.recheck(before.digest)
        elif isinstance(before, FragmentRow):
            self._bodies.recheck(before.digest)
        elif isinstance(row := after or before, (EntryRow, ReceiptRow, LogEntryRow)):
            for digest, _ in row.held:
                if digest not in arrived:
                    self._bodies.recheck(digest)
        elif isinstance(after, TierBudget):
            self._bodies.resize(after.arena_bytes)

    def _require_owner(self) -> None:
        """Raise `NotOwner` unless the caller is the owning thread of the owning process."""
        if threading.get_ident() != self._thread or _current_process.process != self._process:
            raise NotOwner(
                f"the state belongs to process {self._process} and the thread that made it; this is process "
                f"{os.getpid()}, thread {threading.current_thread().name!r}. Nothing is shared with it: send requests "
                "instead, through stepwell.connect(address) or runtime.client()"
            )
