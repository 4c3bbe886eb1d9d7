"""The actors of the storm test: their operations, and the state that each expects afterwards.

Each actor is the only writer of its own fragments, so that it knows exactly what each has to hold. Beside that it does
random operations on the fragments, actions and tiers of all actors.
"""

import faulthandler
import random
import threading
from pathlib import Path

import msgspec
from msgspec import Struct

import stepwell as sw
from stepwell.domain.tiers.body_refs import digest_of
from tests.support.programs import recording_client
from tests.support.programs.history import Operation

BUDGET = sw.TierBudget(hot_tokens=5_000, warm_entries=1_000)
PROJECTS = tuple(f"p{number}" for number in range(4))
WALK = "walk"
SHARED = tuple(f"shared-{number}" for number in range(20))
RACES = 60
THREADS = 4


class Expected(Struct, array_like=True):
    """A fragment as its only writer left it."""

    project: str
    digest: bytes
    tokens: int


class Report(Struct):
    """The report of a process at its end."""

    commands: int = 0
    fragments: dict[str, Expected] = msgspec.field(default_factory=dict[str, Expected])
    wins: list[str] = msgspec.field(default_factory=list[str])
    losses: int = 0
    changesets: dict[str, list[tuple[str, bytes]]] = msgspec.field(default_factory=dict[str, list[tuple[str, bytes]]])
    plans: list[str] = msgspec.field(default_factory=list[str])
    history: list[Operation] = msgspec.field(default_factory=list[Operation])

    def merge(self, other: "Report") -> None:
        assert not self.fragments.keys() & other.fragments.keys()
        self.commands += other.commands
        self.fragments |= other.fragments
        self.wins += other.wins
        self.losses += other.losses
        self.changesets |= other.changesets
        self.plans += other.plans
        self.history += other.history


class Actor:
    """One thread's worth of work."""

    def __init__(self, client: sw.Client, name: str, seed: str) -> None:
        self._client = client
        self._tiers = client.tiers
        self._name = name
        self._random = random.Random(seed)
        self._project = self._random.choice(PROJECTS)
        self._bodies: dict[str, bytes] = {}
        self._tokens: dict[str, int] = {}
        self._serial = 0
        self.report = Report()

    def run(self, commands: int) -> None:
        """Do at least that many commands, of all kinds."""
        deeds = {
            self._store: 14,
            self._read: 14,
            self._move: 10,
            self._delete: 3,
            self._evict: 3,
            self._look: 2,
            self._meddle: 5,
            self._race: 2,
            self._batch: 12,
            self._transaction: 5,
            self._many: 3,
            self._walk: 1,
        }
        while self.report.commands < commands:
            (deed,) = self._random.choices([*deeds], [*deeds.values()])
            deed()
        self.report.fragments = {
            each: Expected(self._project, digest_of(body), self._tokens[each]) for each, body in self._bodies.items()
        }

    def _count(self, commands: int = 1) -> None:
        self.report.commands += commands

    def _fragment(self) -> sw.Fragment:
        """A new fragment of ours, or a new body for an old one; noted at once, because no other actor writes it."""
        self._serial += 1
        is_new = not self._bodies or self._random.random() < 0.5
        fragment_id = f"{self._name}-{self._serial}" if is_new else self._random.choice([*self._bodies])
        body = f"{fragment_id} {self._serial} ".encode() * self._random.randrange(1, 40)
        tokens = BUDGET.hot_tokens + 1 if self._random.random() < 0.01 else self._random.randrange(1, 50)
        self._bodies[fragment_id], self._tokens[fragment_id] = body, tokens
        return sw.Fragment(fragment_id=fragment_id, project=self._project, body=body, tokens=tokens)

    def _own(self) -> str | None:
        return self._random.choice([*self._bodies]) if self._bodies else None

    def _check(self, fragment_id: str, found: sw.StoredFragment) -> None:
        assert found.body == self._bodies[fragment_id], fragment_id
        assert found.tokens == self._tokens[fragment_id], fragment_id

    def _store(self) -> None:
        placed = self._tiers.store(self._fragment(), tier=self._random.choice([*sw.Tier]))
        assert placed.project == self._project
        self._count()

    def _read(self) -> None:
        if own := self._own():
            self._check(own, self._tiers.get(own, project=self._project))
            self._count()

    def _move(self) -> None:
        if own := self._own():
            move = self._random.choice([self._tiers.promote, self._tiers.demote])
            assert move(own, project=self._project).tokens == self._tokens[own]
            self._count()

    def _delete(self) -> None:
        if own := self._own():
            self._tiers.delete(own, project=self._project)
            del self._bodies[own], self._tokens[own]
            self._count()

    def _evict(self) -> None:
        """From hot and warm only: from cold it would delete what others count on."""
        moved = self._tiers.evict_lru(self._random.choice([sw.Tier.HOT, sw.Tier.WARM]), self._random.randrange(1, 4))
        assert all(move.target is not None for move in moved.moves)
        self._count()

    def _look(self) -> None:
        metrics = self._tiers.metrics()
        assert metrics.hot.tokens <= BUDGET.hot_tokens
        assert metrics.warm.entries <= BUDGET.warm_entries
        rows = self._tiers.list(project=self._random.choice(PROJECTS), limit=50).rows
        assert len({row.fragment_id for row in rows}) == len(rows)
        self._count(2)

    def _meddle(self) -> None:
        """Operate on shared fragments, which other actors may delete at any moment."""
        shared = self._random.choice(SHARED)
        deed = self._random.randrange(4)
        try:
            if deed == 0:
                self._tiers.delete(shared, project=PROJECTS[0])
            elif deed == 1:
                self._tiers.promote(shared, project=PROJECTS[0])
            elif deed == 2:
                assert self._tiers.get(shared, project=PROJECTS[0]).text == shared
        except sw.NotFound:
            pass
        if deed == 3:
            self._tiers.store(sw.Fragment(fragment_id=shared, project=PROJECTS[0], body=shared, tokens=7))
        self._count()

    def _race(self) -> None:
        name = f"race-{self._random.randrange(RACES)}"
        try:
            self._create(name)
            self.report.wins.append(name)
        except sw.AlreadyExists:
            self.report.losses += 1
        self._count()

    def _create(self, name: str) -> None:
        create_action(self._client, name, description=self._name)

    def _batch(self) -> None:
        checks: list[tuple[bytes, sw.types.Pending[sw.StoredFragment]]] = []
        others: list[sw.types.Pending[sw.types.FragmentPlaced]] = []
        with self._client.batch() as batch:
            for _ in range(self._random.randrange(20, 60)):
                own = self._own()
                if own is None or self._random.random() < 0.5:
                    others.append(batch.tiers.store(self._fragment()))
                elif self._random.random() < 0.5:
                    checks.append((self._bodies[own], batch.tiers.get(own, project=self._project)))
                else:
                    others.append(batch.tiers.demote(own, project=self._project))
        for other in others:
            assert other.result().project == self._project
        for body, pending in checks:
            assert pending.result().body == body
        self._count(len(batch))

    def _transaction(self) -> None:
        with self._client.transaction() as transaction:
            pending = [transaction.tiers.store(self._fragment()) for _ in range(5)]
        assert len({each.revision for each in pending}) == 1
        self._count(5)

    def _many(self) -> None:
        fragments = [self._fragment() for _ in range(25)]
        self._tiers.store_many(fragments)
        ids = {fragment.fragment_id for fragment in fragments}
        found = self._tiers.get_many(ids, project=self._project)
        assert found.keys() == ids
        for fragment_id, stored in found.items():
            self._check(fragment_id, stored)
        self._count(len(fragments) + len(ids))

    def _walk(self) -> None:
        """A plan from its beginning to the end of its execution, with two contexts that take turns."""
        plans = self._client.plans
        plan_id = plans.use_action(WALK, projects=[self._project]).plan_id
        plans.start_strategize(plan_id)
        plans.complete_strategize(plan_id)
        plans.execute_plan(plan_id)
        plans.start_execute(plan_id)
        contexts = [self._client.execution(plan_id) for _ in range(2)]
        changesets = [context.start_changeset() for context in contexts]
        for number in range(3):
            for context, changeset_id in zip(contexts, changesets, strict=True):
                body = f"{changeset_id} {number}".encode()
                path = f"{self._name}/{number}.txt"
                entry = context.record_change(sw.Change(path=path, before=None, after=body))
                assert entry.changeset_id == changeset_id
                self.report.changesets.setdefault(changeset_id, []).append((path, digest_of(body)))
        for context, changeset_id in zip(contexts, changesets, strict=True):
            context.close_changeset(changeset_id)
        plans.complete_execute(plan_id)
        self.report.plans.append(plan_id)
        self._count(16)


def create_action(client: sw.Client, name: str, description: str = "") -> None:
    """An action of which only the name matters."""
    client.plans.create_action(
        name, description=description, definition_of_done="", strategy_actor="planner", execution_actor="coder"
    )


def work(address: str, number: int, commands: int, seed: int, directory: str) -> None:
    """A process: one client, shared by its threads. What it knows goes into a file."""
    faulthandler.enable()
    recording_client.record()
    report = Report()
    failures: list[BaseException] = []
    with sw.connect(address) as client:
        actors = [Actor(client, f"{number}-{thread}", f"{seed}-{number}-{thread}") for thread in range(THREADS)]

        def act(actor: Actor) -> None:
            try:
                actor.run(commands)
            except BaseException as error:
                failures.append(error)
                raise

        running = [threading.Thread(target=act, args=(actor,)) for actor in actors]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    if failures:
        raise failures[0]
    for actor in actors:
        report.merge(actor.report)
    report.history = recording_client.history
    (Path(directory) / f"{number}.report").write_bytes(msgspec.msgpack.encode(report))
