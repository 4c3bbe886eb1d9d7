"""The owner of the state: one process, one thread, and a guard that says so to everybody else."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Container, Sequence
from typing import Final

from stepwell import limits
from stepwell.domain import invariants, machine
from stepwell.domain.changesets.model import EntryRow
from stepwell.domain.commands import Command, Write
from stepwell.domain.invariants import BUDGET
from stepwell.domain.machine import Outcome
from stepwell.domain.receipts.model import ReceiptRow
from stepwell.domain.replies import FragmentPlaced, FragmentsMoved, Reply
from stepwell.domain.state import State
from stepwell.domain.tasks.model import Task
from stepwell.domain.tasks.queue import TaskTable
from stepwell.domain.tiers import fast_path
from stepwell.domain.tiers.commands import EvictLru, GetFragment, RelieveArena, SetBudget, StoreFragment
from stepwell.domain.tiers.model import FragmentRow, TierBudget
from stepwell.domain.tiers.tier import HOT, Tier
from stepwell.domain.verdict import AnyChange, Origin, RowChanged
from stepwell.errors import Busy, NotOwner, StepTooLarge, StepwellError, TierFull
from stepwell.manager.journal import Journal
from stepwell.manager.recovery import recover, restore_bodies
from stepwell.memory.writer.arena import OutOfRoom
from stepwell.memory.writer.body_store import BodyStore
from stepwell.memory.writer.catalogue import Catalogues
from stepwell.memory.writer.upload import Upload
from stepwell.protocol.handles import CatalogueEnd, Handle
from stepwell.protocol.messages import CommandResult
from stepwell.storage.null_store import NullStore
from stepwell.storage.store import Store

MANAGER: Final = "manager"
"""The session id of commands that the manager issues itself."""

_Shortcut = Callable[[Sequence[object], Origin], list[CommandResult]]
"""Does what is asked, up to the first that is not simple: of that, and what comes behind it, nothing is done."""


class _CurrentProcess:
    """This process, without asking the kernel each time."""

    def __init__(self) -> None:
        self.refresh()
        os.register_at_fork(after_in_child=self.refresh)

    def refresh(self) -> None:
        self.process = os.getpid()


_current_process = _CurrentProcess()


class StateClock:
    """Wall-clock milliseconds that never go back, whatever happens to the machine's clock."""

    def __init__(self, latest_ms: int = 0) -> None:
        self._latest_ms = latest_ms

    def now_ms(self) -> int:
        self._latest_ms = max(self._latest_ms, time.time_ns() // 1_000_000)
        return self._latest_ms

    def now_s(self) -> float:
        """For how long something takes."""
        return time.monotonic()


class StateBroken(BaseException):
    """A defect while the state was changing: what is half changed must not be served, so that nobody may catch this."""


_NO_HANDLES: Final[dict[bytes, Handle]] = {}
_SEGMENTS_PER_START_BITS: Final = 32  # so many that no manager comes to the numbers of the next


def _full(error: OutOfRoom) -> TierFull:
    return TierFull(f"there is no shared memory left ({error}): delete some fragments, or raise arena_bytes")


class StateOwner:
    """Single-threaded by design, and enforced: any use outside the owning process and thread raises `NotOwner`.

    There is no lock in here because there is nobody to lock out. Whoever else wants something of the state sends a
    request to the manager, whose serial loop is the only caller.
    """

    def __init__(self, budget: TierBudget | None = None, store: Store | None = None) -> None:
        self._process = _current_process.process
        self._thread = threading.get_ident()
        store = store or NullStore()
        self.stored = store.load()  # what was there before; None, if nothing was
        self._state = State(budget) if self.stored is None else recover(self.stored)
        store.begin()
        self.journal = Journal(store, self._state)
        self._bodies = BodyStore(
            self._state.bodies,
            self._state.budget.arena_bytes,
            vault=self.journal if self.journal.is_durable else None,
            first_segment=(store.starts << _SEGMENTS_PER_START_BITS) + 1,
        )
        self._catalogues = Catalogues(self._state.fragments, self._bodies)
        self._retry_at_s = 0.0
        self._shortcuts: dict[type, _Shortcut] = {GetFragment: self._get, StoreFragment: self._store}
        self.task_changes: list[AnyChange] = []  # until whoever gives out tasks has seen them
        if self.stored is not None:
            restore_bodies(self.stored, self._state, self._bodies, self.journal)
        elif self.journal.is_durable:
            self.journal.record_initial_budget(self._state.budget)

    def enforce_budget(self, budget: TierBudget | None, origin: Origin) -> None:
        """Be within the budget before anything is served: it may be another than the one under which this was kept."""
        self._require_owner()
        wanted = budget or self._state.budget
        while wanted != self._state.budget or invariants.check(self._state, only=(BUDGET,)):
            try:
                self.execute(SetBudget(wanted), origin)
            except StepTooLarge:  # in parts, then
                for tier in (Tier.WARM, Tier.HOT):
                    self.execute(EvictLru(tier, limits.MOVES_PER_STEP_MAX), origin)

    def execute(self, command: Command[Reply], origin: Origin) -> CommandResult:
        """Apply one command, or raise its refusal."""
        self._require_owner()
        try:
            if lengths := command.inline:
                self._make_room(lengths, origin, is_modest=command.is_modest)
            revision = self._state.revision
            outcome = machine.apply(self._state, command, origin)
            if outcome.revision != revision:
                self._propagate((outcome,), origin.now_ms)
            elif outcome.changes:
                self._propagate_task_changes(outcome)
            wanted = outcome.reply.wants
            return CommandResult(
                outcome.revision, outcome.reply, self._bodies.locate(wanted) if wanted else _NO_HANDLES
            )
        except StepwellError:
            raise
        except Exception as error:
            raise StateBroken(repr(error)) from error

    def execute_simple(self, commands: Sequence[object], origin: Origin) -> list[CommandResult]:
        """Apply the commands at the beginning of which nothing else comes, all of one kind. There may be none.

        They come to what `execute` would make of them, in a third of the time.
        """
        self._require_owner()
        shortcut = self._shortcuts.get(type(commands[0]))
        if shortcut is None:
            return []
        try:
            return shortcut(commands, origin)
        except Exception as error:
            raise StateBroken(repr(error)) from error

    def _get(self, commands: Sequence[object], origin: Origin) -> list[CommandResult]:
        revision, handles = self._state.revision, self._bodies.handles
        answers: list[CommandResult] = []
        for found in fast_path.get(self._state, commands, origin):
            digest = found.row.digest
            answers.append(CommandResult(revision, found, {digest: handles[digest]}))
        return answers

    def _store(self, commands: Sequence[object], origin: Origin) -> list[CommandResult]:
        room = self._bodies.room(len(commands))
        rows, arrived = fast_path.store(self._state, commands, origin, room)
        answers: list[CommandResult] = []
        if rows:
            self.journal.record_new_fragments(rows)
            self._bodies.take_in_all(arrived)
            if self._catalogues:
                for row in rows:
                    self._catalogues.note((RowChanged(None, row),), row.revision)
            for row in rows:
                placed = FragmentPlaced(row.project, row.fragment_id, HOT, row.tokens, row.revision, row.digest)
                answers.append(CommandResult(row.revision, placed, _NO_HANDLES))
        return answers

    def execute_all(self, commands: Sequence[Write[Reply]], origin: Origin) -> list[CommandResult]:
        """Apply all commands at one revision, or none and raise."""
        self._require_owner()
        try:
            if lengths := [length for command in commands for length in command.inline]:
                self._make_room(lengths, origin, is_modest=all(each.is_modest for each in commands if each.inline))
            outcomes = machine.apply_all(self._state, commands, origin)
            self._propagate(outcomes, origin.now_ms)
            return [CommandResult(outcome.revision, outcome.reply, _NO_HANDLES) for outcome in outcomes]
        except StepwellError:
            raise
        except Exception as error:
            raise StateBroken(repr(error)) from error

    def reserve(self, size: int, own: int, origin: Origin, *, is_modest: bool = False) -> Upload | None:
        """Room for an upload of somebody who has uploaded `own` bytes already; None while room is being made.

        Refuses when waiting cannot help, and a modest one at once: nothing goes down for it, and nobody waits.
        """
        self._require_owner()
        try:
            return self._bodies.reserve(size, own)
        except OutOfRoom as error:
            may_wait = size < self._bodies.arena.largest and not is_modest
            if may_wait and (self._bodies.uploading > own or self._reclaim(size, origin)):
                return None
            raise _full(error) from error

    def prepare(self, upload: Upload) -> bool:
        """Have a little more of an upload's memory; whether all of it is there. Refuses when there is none."""
        try:
            return upload.prepare()
        except OutOfRoom as error:
            raise _full(error) from error

    def open_view(self, projects: Sequence[str], origin: Origin, now_s: float) -> list[CatalogueEnd] | None:
        """How far the projects' catalogues go now; None while some are still being listed, or room is being made."""
        self._require_owner()
        try:
            ends = [self._catalogues.open(project, self._state.revision, now_s) for project in projects]
        except OutOfRoom as error:
            if self._reclaim(limits.CATALOGUE_SEGMENT_BYTES_MAX, origin):
                return None
            raise _full(error) from error
        found = [end for end in ends if end is not None]
        return found if len(found) == len(ends) else None

    def catalogue_ends(self, projects: Sequence[str], now_s: float) -> tuple[CatalogueEnd, ...]:
        """How far the projects' catalogues go; nothing, if one of them is not there, or not complete."""
        self._require_owner()
        ends = [self._catalogues.end(project, self._state.revision, now_s) for project in projects]
        found = tuple(end for end in ends if end is not None)
        return found if len(found) == len(ends) else ()

    def work(self) -> bool:
        """Do a slice of what the bytes still have to follow; whether there may be more."""
        self._require_owner()
        return self._catalogues.work() or self._bodies.labour.work()

    def housekeep(self, now_s: float) -> None:
        """What catalogues and bodies need every now and then."""
        self._require_owner()
        self._catalogues.housekeep(now_s)
        if now_s >= self._retry_at_s:
            self._retry_at_s = now_s + limits.TRY_AGAIN_SECONDS
            self._bodies.labour.try_again()

    @property
    def bodies(self) -> BodyStore:
        """Where the bytes are."""
        self._require_owner()
        return self._bodies

    @property
    def tasks(self) -> TaskTable:
        """To be looked at by whoever gives them out."""
        self._require_owner()
        return self._state.tasks

    @property
    def has_idle_workers(self) -> bool:
        """Whether somebody could do what lies with somebody else."""
        return len(self._state.workers) > len(self._state.tasks.by_worker)

    @property
    def catalogues(self) -> int:
        """How many projects somebody looks at."""
        return len(self._catalogues)

    @property
    def revision(self) -> int:
        self._require_owner()
        return self._state.revision

    @property
    def next_expiry_ms(self) -> int | None:
        """When the first lease ends."""
        self._require_owner()
        return self._state.plans.next_expiry_ms

    def close(self) -> None:
        """Let go of all memory."""
        self._bodies.close()

    def _make_room(self, lengths: Sequence[int], origin: Origin, *, is_modest: bool) -> None:
        """Have room for bodies before anything is decided: once the state has changed, keeping them cannot fail."""
        try:
            self._bodies.require_room(lengths)
        except OutOfRoom:
            self._catalogues.shed()
            if not is_modest:
                self._demote_for_room(sum(lengths), origin)
            has_more = self._bodies.labour.work(limits.WORK_SECONDS_MAX)
            try:
                self._bodies.require_room(lengths)
            except OutOfRoom as error:
                if has_more or self._bodies.uploading:
                    raise Busy("shared memory is full, and room is being made: try again in a moment") from error
                raise _full(error) from error

    def _reclaim(self, needed: int, origin: Origin) -> bool:
        """Make some room; whether it is worth asking again."""
        taken = self._bodies.arena.bytes
        gained = self._catalogues.shed() or self._demote_for_room(needed, origin) or self._bodies.labour.work()
        return gained or self._bodies.arena.bytes < taken

    def _demote_for_room(self, needed: int, origin: Origin) -> bool:
        """Let the least recently used go down; whether any did."""
        # The domain counts bodies alone.
        needed = min(needed + self._bodies.arena.overhead, self._state.budget.live_bytes)
        outcome = machine.apply(self._state, RelieveArena(needed), Origin(origin.session_id, origin.now_ms))
        if outcome.changes:
            self._propagate((outcome,), origin.now_ms)
        assert isinstance(outcome.reply, FragmentsMoved)
        return bool(outcome.reply.moves)

    def _propagate(self, outcomes: Sequence[Outcome], now_ms: int) -> None:
        """Let the journal, the bytes and the catalogues follow the rows."""
        self.journal.record(outcomes, now_ms)
        for outcome in outcomes:
            if outcome.bodies:
                self._bodies.keep(outcome.bodies)
        for outcome in outcomes:
            for change in outcome.changes:
                after = change.after
                if (
                    change.before is not None
                    or not isinstance(after, FragmentRow)
                    or after.digest not in outcome.bodies
                ):
                    self._recheck_bodies(change, outcome.bodies)
        if self._catalogues:
            for outcome in outcomes:
                self._catalogues.note(outcome.changes, outcome.revision)

    def _propagate_task_changes(self, outcome: Outcome) -> None:
        """What no revision counts is nobody's business but that of bodies, and of whoever gives out tasks."""
        for change in outcome.changes:
            for row in (change.before, change.after):
                if isinstance(row, Task):
                    for digest, _ in row.held:
                        self._bodies.follow(digest)
        self.task_changes += outcome.changes

    def _recheck_bodies(self, change: AnyChange, kept: Container[bytes]) -> None:
        before, after = change.before, change.after
        if isinstance(after, FragmentRow):
            if after.digest not in kept:
                self._bodies.follow(after.digest)
            if isinstance(before, FragmentRow) and before.digest != after.digest:
                self._bodies.follow(before.digest)
        elif isinstance(before, FragmentRow):
            self._bodies.follow(before.digest)
        elif isinstance(row := after or before, EntryRow | ReceiptRow):
            for digest, _ in row.held:
                self._bodies.follow(digest)
        elif isinstance(after, TierBudget):
            self._bodies.resize(after.arena_bytes)

    def _require_owner(self) -> None:
        if threading.get_ident() != self._thread or _current_process.process != self._process:
            raise NotOwner(
                f"the state belongs to process {self._process} and the thread that made it; this is process "
                f"{os.getpid()}, thread {threading.current_thread().name!r}. Nothing is shared with it: send requests "
                "instead, through stepwell.connect(address) or runtime.client()"
            )
