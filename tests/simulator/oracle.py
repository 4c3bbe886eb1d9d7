"""The judge of a run: checks after each turn of the manager, and a sequential model at the end.

The clients report what they asked and what they were told. The committed events give the order. The model applies the
reported commands in that order, one at a time, and must come to the state that the manager has. It knows nothing of
tiers, leases or tables: a fragment is a digest, a plan is the token of its last lease.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from stepwell.domain import events, invariants
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.model import Tier
from stepwell.errors import HistoryLost, ManagerFault, OutcomeUnknown, ProtocolError, SessionExpired, StepwellError
from tests.simulator.log_judge import LogJudge
from tests.simulator.pool_judge import PoolJudge
from tests.simulator.queue_judge import QueueJudge
from tests.simulator.settings import GRACE_SECONDS, FaultKind
from tests.simulator.team_judge import TeamJudge
from tests.simulator.violation import Violation

if TYPE_CHECKING:
    from stepwell.aio.client import Client
    from stepwell.domain.plans.model import Plan
    from stepwell.domain.state import State
    from tests.simulator.machine import Machine

Key = tuple[str, str]
ALWAYS_NS = 2**62
"""A time for a client to report its reads that never comes, so that it looks at its index."""
STEPS_MAX = 500_000
"""A run with more steps does not come to an end: the longest one without a bug has a tenth of them."""
OVERDUE_SECONDS_MAX = 2.0
"""The time after which an expired lease, or one of a dead process, must have been taken back."""
INVARIANT_TURNS = 1_000
"""After so many turns all invariants are checked; after every turn only those that cost nothing."""


class Write(msgspec.Struct):
    """A store or a deletion (no digest) that a client asked for. `revision` is known once it was acknowledged."""

    key: Key
    digest: bytes | None
    revision: int | None = None
    is_refused: bool = False
    transaction: int | None = None
    partner: Key | None = None  # the other key of the transaction


class Oracle:
    """Collects what the clients report, and checks it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._revision = 0  # the latest that the manager has reached
        self._acknowledged = 0  # the latest that a client was told
        self.writes: list[Write] = []
        self._values: dict[tuple[Key, bytes], Write] = {}
        self._deletions: dict[Key, list[Write]] = defaultdict(list)
        self.floors: dict[Key, int] = defaultdict(int)  # the latest acknowledged write of each key
        self.leases: dict[str, list[tuple[int, int]]] = defaultdict(list)  # by plan: token, version of the plan
        self.committed: list[events.AnyEvent] = []
        self.outcomes = hashlib.sha256()
        self.plan_ids: list[str] = []
        self.parents: list[str] = []
        self._finished: dict[str, list[tuple[int, int]]] = defaultdict(list)  # by plan: token, version afterwards
        self.versions: dict[str, int] = defaultdict(int)  # by plan: the latest version that a client saw
        self._positions: dict[tuple[str, int], object] = {}  # by plan and version: phase and state
        self._steps: dict[tuple[Key, int], int] = {}  # of counters: the revision of each value
        self._changes: dict[str, dict[str, int | None]] = defaultdict(dict)  # by changeset: path, its number
        self._watched: list[list[events.AnyEvent]] = []
        self._ended_tasks: set[str] = set()
        self.logs = LogJudge()
        self.holders: dict[str, str] = {}  # by task: the worker that has it, or had it last
        self.pools = PoolJudge()
        self.briefs: dict[Key, int] = {}  # acknowledged fragments that nobody changes: when they expire
        self._facts: dict[bytes, str] = {}  # bodies that are stored once: the id of each
        self._overdue: dict[tuple[str, object], float] = {}  # leases that are to be taken back: since when
        self.teams = TeamJudge()
        self.queues = QueueJudge()

    # Reports of clients.

    def told(self, revision: int, *facts: object) -> None:
        """Note a revision that a client was told, and what with it."""
        self._acknowledged = max(self._acknowledged, revision)
        self.outcomes.update(repr((revision, *facts)).encode())

    def ask(self, write: Write) -> Write:
        """Note a write that is about to be sent. No two stores of a key have the same body."""
        self.writes.append(write)
        if write.digest is None:
            self._deletions[write.key].append(write)
        else:
            self._values[write.key, write.digest] = write
        return write

    def acknowledge(self, write: Write, revision: int) -> None:
        """Note that a write was acknowledged."""
        write.revision = revision
        self.floors[write.key] = max(self.floors[write.key], revision)
        self.told(revision, write.key)
        self._check_indexes(write.key)

    def note_deleted(self, key: Key, floor: int) -> None:
        """Note that a deletion was acknowledged: what was acknowledged before it was asked for is gone."""
        self.floors[key] = max(self.floors[key], floor + 1)
        self._check_indexes(key)

    def _check_indexes(self, key: Key) -> None:
        """Check that no client reads a fragment in shared memory as it was before an acknowledged change."""
        for client in self._machine.clients:
            found = client.index.find(key, ALWAYS_NS)
            if found is not None and found.row.revision < self.floors[key]:
                raise Violation(
                    f"stale read of {key} in the index of reads: revision {found.row.revision}, but "
                    f"{self.floors[key]} is acknowledged"
                )

    def is_new(self, key: Key, body: bytes) -> bool:
        """Return True if no write of a key has this body."""
        return bool(body) and (key, digest_of(body)) not in self._values

    def partner(self, key: Key, digest: bytes) -> Key | None:
        """Return the key of the other store of the transaction that stored a body under a key, if there was one."""
        written = self._values.get((key, digest))
        return written.partner if written else None

    def note_error(self, name: str, error: StepwellError) -> None:
        """Check that a client may get an error: nothing here is broken, and no client is away for long."""
        self.told(0, name, error.kind)
        if isinstance(error, HistoryLost | ManagerFault | ProtocolError):
            raise Violation(f"{name} failed with {error.kind}: {error.message}")
        if isinstance(error, OutcomeUnknown) and "its reply is forgotten" in error.message:
            raise Violation(f"the reply to a pending request is forgotten: {error.message}")
        has_grace = self._machine.settings.grace_s == GRACE_SECONDS
        was_away = FaultKind.FREEZE_PIPE in self._machine.faults.happened
        if isinstance(error, SessionExpired) and has_grace and not was_away:
            raise Violation(f"the manager has forgotten the session of a client that lives: {error.message}")

    def check_read(self, key: Key, floor: int, revision: int, digest: bytes) -> None:
        """Check a value that was read: it is a value that was written, and not older than one known before."""
        self.told(revision, key, digest)
        if revision < floor:
            raise Violation(f"stale read of {key}: revision {revision}, but {floor} was acknowledged before the read")
        written = self._values.get((key, digest))
        if written is None or written.is_refused:
            raise Violation(f"{key} was read with a body that no client has stored")

    def check_absent(self, key: Key, floor: int) -> None:
        """Check that a fragment could be absent: it was never stored, or a deletion may have come later."""
        if floor and not any(
            not each.is_refused and (each.revision is None or each.revision >= floor) for each in self._deletions[key]
        ):
            raise Violation(f"{key} is absent, but was acknowledged at revision {floor} and never deleted")

    def note_lease(self, plan_id: str, token: int, version: int) -> None:
        """Check that no other caller got the same lease. `version` is that of the plan with this lease."""
        if any(other == token for other, _ in self.leases[plan_id]):
            raise Violation(f"two callers have the lease {token} of plan {plan_id}")
        self.leases[plan_id].append((token, version))

    def note_plan(self, plan: Plan, floor: int) -> None:
        """Check a plan that was read: it has the version known before the read, or a later one, and one meaning."""
        if plan.version < floor:
            raise Violation(f"plan {plan.plan_id} was at version {floor} before the read, and is at {plan.version}")
        position = self._positions.setdefault((plan.plan_id, plan.version), plan.position)
        if position != plan.position:
            raise Violation(f"version {plan.version} of plan {plan.plan_id} is {position} and {plan.position}")
        self.versions[plan.plan_id] = max(self.versions[plan.plan_id], plan.version)

    def note_finished(self, plan: Plan, token: int) -> None:
        """Check that the holder of the latest lease finished a phase, and that it did so once."""
        for other, _ in self._finished[plan.plan_id]:
            if other == token:
                raise Violation(f"the lease {token} of plan {plan.plan_id} has finished twice")
        for other, version in self.leases[plan.plan_id]:
            if other > token and version < plan.version:
                raise Violation(f"the lease {token} of plan {plan.plan_id} has finished after {other} was given")
        self._finished[plan.plan_id].append((token, plan.version))

    def note_moved(self, plan: Plan, expected: int) -> None:
        """Check that a plan was at the version that the caller expected."""
        if plan.version != expected + 1:
            raise Violation(f"plan {plan.plan_id} was moved to version {plan.version}, and {expected} was expected")

    def note_step(self, key: Key, value: int, revision: int) -> None:
        """Check that a value of a counter was reached once."""
        if (key, value) in self._steps:
            raise Violation(f"{key} was raised to {value} twice, at {self._steps[key, value]} and {revision}")
        self._steps[key, value] = revision

    def note_fact(self, digest: bytes, fragment_id: str) -> None:
        """Check that all clients that stored equal bodies with `unique` were told one id."""
        if self._facts.setdefault(digest, fragment_id) != fragment_id:
            raise Violation(f"equal bodies were stored as {self._facts[digest]} and as {fragment_id}")

    def note_brief(self, key: Key, expires_at_ms: int) -> None:
        """Note a fragment that expires, and is neither replaced nor deleted before."""
        self.briefs[key] = expires_at_ms

    def check_brief(self, key: Key, before_ms: int, after_ms: int, *, is_found: bool) -> None:
        """Check a read of a fragment that expires: it was found if that was before its time, and not if behind it."""
        self.told(0, key, is_found)
        expires_at_ms = self.briefs[key]
        if FaultKind.JUMP_CLOCK in self._machine.faults.happened:
            return  # the manager's time may be ahead of that of the machine
        if is_found and before_ms >= expires_at_ms:
            raise Violation(f"{key} was read {before_ms - expires_at_ms} ms after it had expired")
        if not is_found and after_ms < expires_at_ms:
            raise Violation(f"{key} is absent {expires_at_ms - after_ms} ms before it expires")

    def note_change(self, changeset_id: str, path: str, seq: int | None) -> None:
        """Note a change that was recorded; without a number if the outcome is unknown."""
        self._changes[changeset_id][path] = seq

    def new_watch(self) -> list[events.AnyEvent]:
        """Return the list in which a watch collects its events."""
        self._watched.append([])
        return self._watched[-1]

    def note_outcome(self, task_id: str) -> None:
        """Check that a task has ended once."""
        if task_id in self._ended_tasks:
            raise Violation(f"{task_id} has ended twice")
        self._ended_tasks.add(task_id)

    # The manager.

    @property
    def _state(self) -> State:
        return self._machine.manager.owner._state

    def check_turn(self) -> None:
        """Check what costs nothing: revisions grow, and hot is within its budget."""
        manager = self._machine.manager
        state = self._state
        if state.revision < self._revision:
            raise Violation(f"the revision went back from {self._revision} to {state.revision}")
        self._revision = state.revision
        hot = state.fragments.usage(Tier.HOT)
        if hot.tokens > state.budget.hot_tokens:
            raise Violation(f"hot has {hot.tokens} tokens of {state.budget.hot_tokens}")
        warm = state.fragments.usage(Tier.WARM)
        if warm.entries > state.budget.warm_entries:
            raise Violation(f"warm has {warm.entries} entries of {state.budget.warm_entries}")
        for leased in (state.tasks.by_worker, state.tasks.prefetched):
            if leased:
                self.holders.update({task.task_id: worker_id for worker_id, task in leased.items()})
        if self._overdue or state.plans.by_session or state.tickets.by_session:
            self._check_leases()
        assert manager.loop is not None
        if state.pools.rows:
            self.pools.check(state, manager.loop._sessions._by_id)
        if manager.loop._evicted and FaultKind.FREEZE_PIPE not in self._machine.faults.happened:
            raise Violation("the manager has evicted a client that reads and sends")
        if manager.turns % INVARIANT_TURNS == 0:
            self.check_invariants()
        if self._machine.steps > STEPS_MAX:
            raise Violation("it does not come to an end")

    def _check_leases(self) -> None:
        """Every lease and ticket belongs to a session whose process lives, and has not expired, but for a moment."""
        plans, tickets, manager = self._state.plans, self._state.tickets, self._machine.manager
        if not plans.by_session and not tickets.by_session:
            self._overdue.clear()
            return
        assert manager.loop is not None
        assert manager.requests is not None
        now_s, overdue = self._machine.clock.now_s, dict[tuple[str, object], float]()
        for session_id in (*plans.by_session, *tickets.by_session):
            session = manager.loop._sessions._by_id.get(session_id)
            if session is None:
                raise Violation(f"the session {session_id} has ended, and holds leases or tickets")
            if not self._machine.processes.is_alive(session.pid):
                overdue["the process has died", session_id] = now_s
        for expires_at_ms, plan_id in plans.by_expiry.irange(None, (manager.requests.clock.now_ms(), "")):
            overdue["it has expired", (plan_id, expires_at_ms)] = now_s
        for until_ms, ticket_id in tickets.by_turn.irange(None, (manager.requests.clock.now_ms(), "")):
            overdue["its turn is over", (ticket_id, until_ms)] = now_s
        for (why, what), since_s in self._overdue.items() if overdue else ():
            if (why, what) in overdue and now_s - since_s > OVERDUE_SECONDS_MAX:
                raise Violation(f"a lease is kept although {why}: {what}")
        self._overdue = {place: self._overdue.get(place, now_s) for place in overdue}

    def check_invariants(self) -> None:
        if found := invariants.check(self._state):
            raise Violation("; ".join(found))

    def check_start(self) -> None:
        """Check a manager that has recovered: every acknowledged write is there, and all invariants hold."""
        if self._machine.manager.starts > 1:
            if self._state.revision < self._acknowledged:
                raise Violation(
                    f"acknowledged writes are lost: revision {self._acknowledged} was acknowledged, and the manager "
                    f"has recovered {self._state.revision}"
                )
            self.check_invariants()
        self._revision = self._state.revision

    def note_end(self, _cause: BaseException) -> None:
        """Note the death of the manager: what it had not committed does not count, and no client may have read it."""
        for client in self._machine.clients:
            index = client.index._index
            for key in [] if index is None else [*index.known]:
                if (found := client.index.find(key, ALWAYS_NS)) is not None:
                    self.told(found.row.revision, key)
        self._revision = 0
        self._overdue.clear()

    # The end of a run.

    async def finish(self, client: Client, committed: list[events.AnyEvent]) -> str:
        """Compare the run with a sequential one, and return a digest of all that was seen."""
        self.committed = committed
        self.check_invariants()
        self._check_order()
        self._check_writes()
        self._check_state()
        self._check_counters()
        self._check_watches()
        self.pools.finish(self._state)
        self.teams.finish(self._state)
        self.queues.finish(committed)
        await self._check_bodies(client)
        await self._check_changes(client)
        await self.logs.finish(client, committed)
        for event in committed:
            self.outcomes.update(msgspec.json.encode(event))
        return self.outcomes.hexdigest()

    def _check_order(self) -> None:
        """Events have growing revisions and growing times."""
        last = None
        for event in self.committed:
            if last is not None and (event.revision < last.revision or event.at_ms < last.at_ms):
                raise Violation(f"event {event} is behind {last}")
            last = event

    def _check_writes(self) -> None:
        """Every acknowledged write is one event, every refused one none, and every event a write that was asked for."""
        stored: dict[tuple[Key, bytes], list[int]] = defaultdict(list)
        for event in self.committed:
            if isinstance(event, events.FragmentStored):
                stored[(event.project, event.fragment_id), event.digest].append(event.revision)
        wanted: dict[tuple[Key, bytes], list[Write]] = defaultdict(list)
        for write in self.writes:
            if write.digest is not None:
                wanted[write.key, write.digest].append(write)
        for place, revisions in stored.items():
            if len(revisions) > len([each for each in wanted[place] if not each.is_refused]):
                raise Violation(f"{place[0]} was stored at {revisions}, more often than asked for")
        for place, writes in wanted.items():
            for write in writes:
                if write.revision is not None and write.revision not in stored[place]:
                    raise Violation(f"{place[0]}: revision {write.revision} was acknowledged, and no event has it")
        self._check_transactions(stored)

    def _check_transactions(self, stored: dict[tuple[Key, bytes], list[int]]) -> None:
        """All writes of a transaction have one revision, or none has any."""
        groups: dict[int, list[Write]] = defaultdict(list)
        for write in self.writes:
            if write.transaction is not None:
                groups[write.transaction].append(write)
        for number, writes in groups.items():
            places = [(write.key, write.digest) for write in writes if write.digest is not None]
            if len({tuple(stored.get(place, ())) for place in places}) > 1:
                raise Violation(f"transaction {number} took effect in part: {[stored.get(each) for each in places]}")

    def _check_state(self) -> None:
        """The events, applied one after the other, give the fragments that the manager has."""
        model: dict[Key, tuple[Tier, bytes, int]] = {}
        for event in self.committed:
            match event:
                case events.FragmentStored():
                    model[event.project, event.fragment_id] = event.tier, event.digest, event.tokens
                case events.FragmentPromoted() | events.FragmentDemoted():
                    _, digest, tokens = model[event.project, event.fragment_id]
                    model[event.project, event.fragment_id] = event.target, digest, tokens
                case events.FragmentDeleted():
                    del model[event.project, event.fragment_id]
                case _:
                    pass
        found = {
            key: (entry.row.tier, entry.row.digest, entry.row.tokens)
            for key, entry in self._state.fragments.entries.items()
        }
        if model != found:
            different = [key for key in model.keys() | found.keys() if model.get(key) != found.get(key)]
            raise Violation(f"the state is not that of the events: {sorted(different)[:3]}")

    def _check_counters(self) -> None:
        """A counter has as many stores as its value says: each step counted once."""
        counts: dict[Key, int] = defaultdict(int)
        values: dict[tuple[Key, int], int] = {}
        for event in self.committed:
            if isinstance(event, events.FragmentStored):
                key = event.project, event.fragment_id
                counts[key] += 1
                values[key, event.revision] = counts[key]
        for (key, value), revision in self._steps.items():
            if values.get((key, revision)) != value:
                steps = values.get((key, revision))
                raise Violation(f"{key} had the value {value} at revision {revision}, after {steps} steps")

    def _check_watches(self) -> None:
        """Each watch saw a part of the committed events without a gap."""
        first: dict[object, int] = {}
        for place, event in enumerate(self.committed):
            first.setdefault((event.revision, type(event), getattr(event, "fragment_id", "")), place)
        for watched in self._watched:
            if not watched:
                continue
            begin = watched[0]
            start = first.get((begin.revision, type(begin), getattr(begin, "fragment_id", "")))
            if start is None or self.committed[start : start + len(watched)] != watched:
                raise Violation(f"a watch saw {watched[0]} and {len(watched) - 1} more, which were not committed so")

    async def _check_bodies(self, client: Client) -> None:
        """Every fragment can be read, and has the bytes that were stored."""
        entries = self._state.fragments.entries
        for project, fragment_id in sorted(key for key, each in entries.items() if each.expires_at_ms is None):
            found = await client.tiers.get(fragment_id, project=project)
            if digest_of(bytes(found.body)) != found.row.digest:
                raise Violation(f"the body of {fragment_id} is not the one that was stored")

    async def _check_changes(self, client: Client) -> None:
        """Every acknowledged change is in its changeset under its number, and no other is."""
        state = self._state
        for changeset_id, wanted in self._changes.items():
            changeset = state.changesets.get(changeset_id)
            if changeset is None:
                raise Violation(f"changeset {changeset_id} is gone")
            listing = await client.execution(changeset.plan_id).page(changeset_id)
            found = {entry.path: entry.seq for entry in listing}
            for path, seq in wanted.items():
                if seq is not None and found.get(path) != seq:
                    raise Violation(f"{path} was recorded as {seq} in {changeset_id}, and is {found.get(path)} there")
            if found.keys() - wanted.keys():
                raise Violation(f"{changeset_id} has changes of others: {sorted(found.keys() - wanted.keys())}")
