"""Clients of a manager that is killed again and again: each knows what was acknowledged to it, and writes that down.

A survivor is the only writer of its own fragments and of its own changesets. It numbers its operations, so that a
reader of the state can tell whether one is missing, or happened twice.
"""

import faulthandler
import mmap
import random
import struct
from collections.abc import Sequence
from pathlib import Path

import stepwell as sw
from stepwell.domain.state import State

SURVIVORS = 8
FRAGMENTS = 40
_COUNTS = struct.Struct("<QQ")  # requests acknowledged, changes acknowledged


class Progress:
    """The acknowledged operations of each survivor, in a file that the parent and all survivors map."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def note(self, number: int, requests: int, changes: int) -> None:
        _COUNTS.pack_into(self._map, number * _COUNTS.size, requests, changes)

    def of(self, number: int) -> tuple[int, int]:
        requests, changes = _COUNTS.unpack_from(self._map, number * _COUNTS.size)
        return requests, changes

    @property
    def requests(self) -> int:
        return sum(self.of(number)[0] for number in range(SURVIVORS))

    def close(self) -> None:
        self._map.close()


def project_of(number: int) -> str:
    return f"p{number}"


def survive(address: str, number: int, plan_id: str, progress_path: str, stop_path: str) -> None:
    """Do this and that until told to stop. Whatever happens to the manager, no call fails, and none is lost."""
    faulthandler.dump_traceback_later(600, exit=True)
    seed = random.randrange(2**32)
    print(f"survivor {number}: seed {seed}")
    progress, stop = Progress(Path(progress_path)), Path(stop_path)
    generator = random.Random(seed)
    with sw.connect(address, projects=[project_of(number), "shared"]) as client:
        _Survivor(client, number, plan_id, generator, progress).live(stop)
    progress.close()


class _Survivor:
    def __init__(
        self, client: sw.Client, number: int, plan_id: str, generator: random.Random, progress: Progress
    ) -> None:
        self._tiers = client.tiers
        self._client = client
        self._number = number
        self._random = generator
        self._progress = progress
        self._project = project_of(number)
        self._versions: dict[str, int] = {}
        self._requests = self._changes = self._receipts = 0
        client.plans.start_strategize(plan_id)
        client.plans.complete_strategize(plan_id)
        client.plans.execute_plan(plan_id)
        client.plans.start_execute(plan_id)
        self._context = client.execution(plan_id)
        self._context.start_changeset()

    def live(self, stop: Path) -> None:
        deeds = [
            *[self._store] * 3,
            self._check,
            self._move,
            self._record,
            self._transact,
            self._keep_receipt,
        ]
        while not stop.exists():
            for _ in range(20):
                self._random.choice(deeds)()
                self._requests += 1
                self._progress.note(self._number, self._requests, self._changes)
        for name in self._versions:
            self._check(name)

    def _fragment(self, name: str) -> sw.Fragment:
        self._versions[name] = self._versions.get(name, 0) + 1
        body = f"{self._number}/{name}/{self._versions[name]}/" + "x" * self._random.randrange(2_000)
        return sw.Fragment(fragment_id=name, project=self._project, body=body, tokens=7)

    def _name(self) -> str:
        return f"f{self._random.randrange(FRAGMENTS)}"

    def _store(self) -> None:
        """A writer that was taken for another, or done twice, would find a revision that it does not expect."""
        name = self._name()
        is_new = name not in self._versions
        expected = 0 if is_new else self._tiers.get(name, project=self._project).revision
        self._tiers.store(self._fragment(name), expected_revision=expected)

    def _transact(self) -> None:
        names = {self._name() for _ in range(3)}
        with self._client.transaction() as transaction:
            for name in names:
                transaction.tiers.store(self._fragment(name))

    def _check(self, name: str | None = None) -> None:
        name = name or self._name()
        if name in self._versions:
            found = self._tiers.get(name, project=self._project).text
            assert found.startswith(f"{self._number}/{name}/{self._versions[name]}/"), (name, found[:80])

    def _move(self) -> None:
        name = self._name()
        if name in self._versions:
            self._random.choice((self._tiers.promote, self._tiers.demote))(name, project=self._project)

    def _keep_receipt(self) -> None:
        """Store a receipt. Too few are stored to push it out before it is checked."""
        self._receipts += 1
        receipt_id, data = f"receipt-{self._number}-{self._receipts}", self._random.randbytes(500)
        self._client.receipts.store(receipt_id, [self._project], "a title", data)
        assert self._client.receipts.get(receipt_id) == data

    def _record(self) -> None:
        path = f"{self._number}/{self._changes}"
        self._context.record_change(sw.Change(path=path, before=None, after=path.encode()))
        self._changes += 1


def problems(state: State, plan_ids: Sequence[str], acknowledged: Sequence[tuple[int, int]]) -> list[str]:
    """What is missing in a state, or there twice, of what was acknowledged before it was looked at."""
    found: list[str] = []
    for number, plan_id in enumerate(plan_ids):
        plan = state.plans.get(plan_id)
        assert plan is not None
        recorded = [entry.path for each in plan.changeset_ids for entry in state.entries.of(each)]
        if recorded != [f"{number}/{each}" for each in range(len(recorded))]:
            found.append(f"survivor {number}: changes are missing, or there twice: {recorded[-5:]}")
        if len(recorded) < acknowledged[number][1]:
            found.append(f"survivor {number}: {len(recorded)} of {acknowledged[number][1]} changes are there")
    return found
