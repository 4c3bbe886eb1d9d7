"""Lifecycles of plans and recorded changes from several processes at once: operations per second.

A lifecycle is nine calls, from `use_action` to `complete_apply`. Records go to a changeset of each client's own. The
peer is what a program would have without us: the same services on plain dicts, behind one lock, in a `BaseManager`. It
has no leases, scopes, limits or revisions, and loses everything when its process ends.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from typing import Final, Protocol, cast

from msgspec.structs import replace

import stepwell as sw
from benchmarks.client_processes import ClientProcesses, Open, Workload
from benchmarks.section import Section, Turn, in_rounds
from stepwell.domain.changesets.model import EntryRow
from stepwell.domain.plans.model import Phase, Plan, PlanState
from tests.doubles.unsynchronised import PlanExecutionContext, PlanLifecycleService

LIFECYCLES: Final = 10_000
RECORDS: Final = 100_000
CLIENTS: Final = 8

_MEMORY, _DURABLE, _LOCKED = "stepwell, in memory", "stepwell, durability process", "BaseManager, an RLock on dicts"
_LIVES, _RECORDS = "lifecycles", "records"
_ACTION: Final = "walk"
_PROJECT: Final = "p"
_STEPS: Final = (
    *("start_strategize", "complete_strategize", "execute_plan"),
    *("start_execute", "complete_execute", "apply_plan", "start_apply"),
)


class Plans(Protocol):
    """The calls on plans that both contenders have; `_STEPS` names the steps in between."""

    def use_action(self, name: str, *, projects: Sequence[str]) -> Plan: ...
    def complete_apply(self, plan_id: str, *, proof: Mapping[str, sw.Digest | None]) -> Plan: ...


class Execution(Protocol):
    """The calls that record changes, which both contenders have."""

    def start_changeset(self) -> str: ...
    def record_change(self, change: sw.Change) -> EntryRow: ...
    def close_changeset(self, changeset_id: str) -> object: ...


class Steps(PlanLifecycleService):
    """The steps from execute to the end of a plan."""

    def complete_execute(self, plan_id: str) -> Plan:
        return self._move("complete_execute", plan_id, Phase.EXECUTE, PlanState.PROCESSING, PlanState.COMPLETE)

    def apply_plan(self, plan_id: str) -> Plan:
        plan = self._move("apply_plan", plan_id, Phase.EXECUTE, PlanState.COMPLETE, PlanState.QUEUED)
        plan = self._plans[plan_id] = replace(plan, phase=Phase.APPLY)
        return plan

    def start_apply(self, plan_id: str) -> Plan:
        return self._move("start_apply", plan_id, Phase.APPLY, PlanState.QUEUED, PlanState.PROCESSING)

    def complete_apply(self, plan_id: str, *, proof: Mapping[str, sw.Digest | None]) -> Plan:
        """Complete the plan. Nothing was recorded, so the proof is empty."""
        assert not proof
        return self._move("complete_apply", plan_id, Phase.APPLY, PlanState.PROCESSING, PlanState.APPLIED)


class Locked:
    """The services of the peer behind one lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._plans = Steps()
        self._contexts: dict[str, PlanExecutionContext] = {}

    def plans(self, method: str, *given: object, **named: object) -> object:
        with self._lock:
            return getattr(self._plans, method)(*given, **named)

    def execution(self, plan_id: str, method: str, *given: object) -> object:
        with self._lock:
            context = self._contexts.get(plan_id)
            if context is None:
                context = self._contexts[plan_id] = PlanExecutionContext(plan_id)
            return getattr(context, method)(*given)


class Proxy:
    """Calls the methods of a remote object by name."""

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Callable[..., object]:
        return partial(self._call, name)


class _Manager(BaseManager):
    services: Callable[[], Locked]


_Manager.register("services", Locked)


class Client:
    """One client, of stepwell or of the peer."""

    def __init__(self, plans: Plans, execution: Callable[[str], Execution], number: int) -> None:
        self._plans = plans
        self._execution = execution
        self._number = number
        self._steps: list[Callable[[str], object]] = [getattr(plans, step) for step in _STEPS]

    def lifecycles(self, count: float) -> float:
        """Return the seconds for `count` lifecycles."""
        begun = time.perf_counter()
        for _ in range(int(count)):
            plan_id = self._plans.use_action(_ACTION, projects=[_PROJECT]).plan_id
            for step in self._steps:
                step(plan_id)
            assert self._plans.complete_apply(plan_id, proof={}).state is PlanState.APPLIED
        return time.perf_counter() - begun

    def records(self, count: float) -> float:
        """Return the seconds for `count` records, without the time for their plan."""
        plan_id = self._plans.use_action(_ACTION, projects=[_PROJECT]).plan_id
        *before, complete_execute = self._steps[: 1 + _STEPS.index("complete_execute")]
        for step in before:
            step(plan_id)
        context = self._execution(plan_id)
        changeset_id = context.start_changeset()
        versions = [f"{plan_id} {number}".encode() for number in range(int(count) + 1)]
        changes = [
            sw.Change(path=f"{self._number}.txt", before=before, after=after, tool="edit")
            for before, after in pairwise(versions)
        ]
        begun = time.perf_counter()
        for change in changes:
            assert context.record_change(change).changeset_id == changeset_id
        taken = time.perf_counter() - begun
        context.close_changeset(changeset_id)
        complete_execute(plan_id)
        return taken


def _ours(address: str, work: str, number: int) -> Workload:
    client = sw.connect(address, projects=[_PROJECT])
    execution = cast("Callable[[str], Execution]", client.execution)
    return _workload(Client(cast("Plans", client.plans), execution, number), work)


def _theirs(services: Locked, work: str, number: int) -> Workload:
    def execution(plan_id: str) -> Execution:
        return cast("Execution", Proxy(partial(services.execution, plan_id)))

    return _workload(Client(cast("Plans", Proxy(services.plans)), execution, number), work)


def _workload(client: Client, work: str) -> Workload:
    return client.lifecycles if work == _LIVES else client.records


@contextmanager
def places() -> Generator[dict[str, Callable[[str, int], Workload]]]:
    """Yield the contenders, each with an action to use."""
    found: dict[str, Callable[[str, int], Workload]] = {}
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="sw-bench-"))
        in_memory = stack.enter_context(sw.Runtime.start(workers=0))
        durable = stack.enter_context(sw.Runtime.start(workers=0, data_dir=directory, durability="process"))
        for name, runtime in ((_MEMORY, in_memory), (_DURABLE, durable)):
            with runtime.client() as client:
                _create_action(client.plans.create_action)
            found[name] = partial(_ours, runtime.address)
        services = stack.enter_context(_Manager(ctx=get_context("spawn"))).services()
        _create_action(partial(services.plans, "create_action"))
        found[_LOCKED] = partial(_theirs, services)
        yield found


def _create_action(create: Callable[..., object]) -> None:
    create(_ACTION, description="", definition_of_done="", strategy_actor="planner", execution_actor="coder")


def run(rounds: int, lifecycles: int = LIFECYCLES, records: int = RECORDS, clients: int = CLIENTS) -> list[Section]:
    """Return the operations per second of all clients together."""
    counts = {_LIVES: lifecycles, _RECORDS: records}
    with places() as found:
        opens: dict[str, Open] = {
            f"{name}, {work}": partial(opening, work) for name, opening in found.items() for work in counts
        }
        with closing(ClientProcesses(clients, opens)) as processes:
            turns: dict[tuple[str, str], Turn] = {
                (work, name): partial(_rate, processes, f"{name}, {work}", count // clients)
                for work, count in counts.items()
                for name in found
            }
            figures, absent = in_rounds(rounds, turns)
    return [
        Section(
            title=f"{title}, from {clients} processes",
            unit="/s",
            figures=tuple(each for each in figures if each.work == work),
            absent=absent,
        )
        for work, title in (
            (_LIVES, f"Plans: {lifecycles:,} lifecycles of {len(_STEPS) + 2} calls"),
            (_RECORDS, f"Changesets: {records:,} records"),
        )
    ]


def _rate(processes: ClientProcesses, name: str, count: int) -> float:
    seconds = processes.do(name, count)
    return count * len(seconds) / max(seconds)
