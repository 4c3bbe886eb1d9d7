"""The job of one caller: the same steps for the runtime and for the dicts.

Each caller creates actions that all callers compete for, stores its own fragments and records its own changes in a
changeset of a shared plan. It notes what it saw in `Findings`. `proof` compares these notes with the state afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Final

from msgspec import Struct, field

from stepwell.client.client import Client
from stepwell.client.execution import PlanExecutionContext
from stepwell.domain.changesets.model import Change
from stepwell.domain.plans.model import Plan
from stepwell.domain.tiers.model import Fragment
from stepwell.errors import AlreadyExists
from tests.doubles.unsynchronised import PlanExecutionContext as UnsynchronisedContext
from tests.doubles.unsynchronised import Unsynchronised

Services = Client | Unsynchronised
"""The two implementations that the job runs on."""

FRAGMENTS_EACH: Final = 50
CHANGES_EACH: Final = 10
NAMES: Final = 10
TOKENS: Final = 10
_REPORT_EVERY_STEPS: Final = 20
HOT_TOKENS: Final = 1_000  # of a runtime of its own: room for 100 fragments, so that most have to go down


class Job(Struct, frozen=True, kw_only=True):
    """The parameters of the job. The work of a caller follows from its number, so nothing has to be sent to it."""

    project: str
    processes: int
    threads: int

    @property
    def callers(self) -> int:
        return self.processes * self.threads

    @property
    def steps(self) -> int:
        return self.callers * (FRAGMENTS_EACH + NAMES + CHANGES_EACH)

    @property
    def names(self) -> list[str]:
        """The names of the actions that every caller tries to create. Exactly one caller may succeed for each."""
        return [f"{self.project}/contested-{number}" for number in range(NAMES)]

    def fragments(self, caller: int) -> list[Fragment]:
        return [
            Fragment(
                fragment_id=f"caller-{caller}/{number}",
                project=self.project,
                body=f"fragment {number} of caller {caller}\n" * 16,
                tokens=TOKENS,
            )
            for number in range(FRAGMENTS_EACH)
        ]

    def paths(self, caller: int) -> list[str]:
        """The paths that a caller changes, in order."""
        return [f"caller-{caller}/{number}.py" for number in range(CHANGES_EACH)]


class Findings(Struct, kw_only=True):
    """The observations of one caller.

    `revisions` are those of its stores; it read the tiers at each of them. `broken` has the errors of calls that must
    never fail.
    """

    caller: int
    hot_highest: int = 0
    revisions: list[int] = field(default_factory=list[int])
    wins: list[str] = field(default_factory=list[str])
    changeset_id: str | None = None
    broken: list[str] = field(default_factory=list[str])


class ProgressBatcher:
    """Counts steps and reports several at once, because a report of each step would cost more than the step.
    Thread-safe.
    """

    def __init__(self, report: Callable[[int], None]) -> None:
        self._report = report
        self._lock = Lock()
        self._pending = 0

    def step(self) -> None:
        with self._lock:
            self._pending += 1
            if self._pending == _REPORT_EVERY_STEPS:
                self._report(self._pending)
                self._pending = 0


def prepare(services: Services, job: Job) -> Plan:
    """Return a plan that is executing, in which all callers record their changes."""
    name = f"{job.project}/shared"
    create_action(services, name, "for all callers")
    plan_id = services.plans.use_action(name, projects=[job.project]).plan_id
    services.plans.start_strategize(plan_id)
    services.plans.complete_strategize(plan_id)
    services.plans.execute_plan(plan_id)
    return services.plans.start_execute(plan_id)


def call(services: Services, job: Job, plan: Plan, caller: int, done: Callable[[], None]) -> Findings:
    """Run one caller's steps and return what it saw. `done` is called after each step."""
    findings = Findings(caller=caller)
    steps: list[Callable[[], None]] = [
        *(_create_step(services, name, findings) for name in job.names),
        *(_store_step(services, fragment, findings) for fragment in job.fragments(caller)),
        *_record_steps(execution(services, plan), job.paths(caller), findings),
    ]
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is being counted
            findings.broken.append(repr(error))
        done()
    return findings


def execution(services: Services, plan: Plan) -> PlanExecutionContext | UnsynchronisedContext:
    """Return an execution context for one caller. The lease token is passed on, because another process is another
    session.
    """
    if isinstance(services, Unsynchronised):
        return services.execution(plan.plan_id)
    assert plan.lease is not None
    return services.execution(plan.plan_id, lease=plan.lease.token)


def create_action(services: Services, name: str, description: str) -> None:
    """Create an action with fixed actors."""
    services.plans.create_action(
        name,
        description=description,
        definition_of_done="the demonstration is over",
        strategy_actor="demo/planner",
        execution_actor="demo/coder",
    )


def _store_step(services: Services, fragment: Fragment, findings: Findings) -> Callable[[], None]:
    """Return the step that stores a fragment and reads the hot tier right after it."""

    def store() -> None:
        if isinstance(services, Unsynchronised):
            services.tiers.store(fragment)
            hot = services.tiers.metrics().hot.tokens
        else:
            # No other command is applied between those of a batch, so this reads the revision that the store made.
            with services.batch() as batch:
                placed, metrics = batch.tiers.store(fragment), batch.tiers.metrics()
            findings.revisions.append(placed.revision)
            if metrics.revision != placed.revision:
                findings.broken.append("a batch was interleaved")
            hot = metrics.result().hot.tokens
        findings.hot_highest = max(findings.hot_highest, hot)

    return store


def _create_step(services: Services, name: str, findings: Findings) -> Callable[[], None]:
    """Return the step that tries to create an action, and notes a success."""

    def create() -> None:
        try:
            create_action(services, name, f"of caller {findings.caller}")
        except AlreadyExists:
            return
        findings.wins.append(name)

    return create


def _record_steps(
    context: PlanExecutionContext | UnsynchronisedContext, paths: list[str], findings: Findings
) -> list[Callable[[], None]]:
    """Return the steps that record one change each. The first one also opens the caller's changeset."""

    def record(path: str) -> None:
        if findings.changeset_id is None:
            findings.changeset_id = context.start_changeset()
        context.record_change(Change(path=path, after=path.encode()))

    return [partial(record, path) for path in paths]
