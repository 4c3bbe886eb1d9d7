"""What every caller of the demonstration does, whatever it does it to."""

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

FRAGMENTS_EACH: Final = 50
CHANGES_EACH: Final = 10
NAMES: Final = 10
TOKENS: Final = 10
_TELL_EVERY_STEPS: Final = 20
HOT_TOKENS: Final = 1_000  # of a runtime of its own: room for 100 fragments, so that most have to go down


class Job(Struct, frozen=True, kw_only=True):
    """The work, which each caller can tell its part of by its number."""

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
        """The actions that everybody wants to create."""
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
        """The files that a caller changes, in order."""
        return [f"caller-{caller}/{number}.py" for number in range(CHANGES_EACH)]


class Findings(Struct, kw_only=True):
    """What one caller saw."""

    caller: int
    hot_highest: int = 0
    revisions: list[int] = field(default_factory=list[int])  # of its stores, at each of which it read the tiers
    wins: list[str] = field(default_factory=list[str])
    changeset_id: str | None = None
    broken: list[str] = field(default_factory=list[str])  # calls that ended in what no caller should ever see


class Tally:
    """Tells of steps now and then: to tell of each would be more work than the steps."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self._lock = Lock()
        self._untold = 0

    def step(self) -> None:
        with self._lock:
            self._untold += 1
            if self._untold == _TELL_EVERY_STEPS:
                self._tell(self._untold)
                self._untold = 0


def prepare(services: Services, job: Job) -> Plan:
    """A plan that is being executed, for all callers to record their changes in."""
    name = f"{job.project}/shared"
    create_action(services, name, "for everybody")
    plan_id = services.plans.use_action(name, projects=[job.project]).plan_id
    services.plans.start_strategize(plan_id)
    services.plans.complete_strategize(plan_id)
    services.plans.execute_plan(plan_id)
    return services.plans.start_execute(plan_id)


def call(services: Services, job: Job, plan: Plan, caller: int, done: Callable[[], None]) -> Findings:
    """One caller's part. `done` is called after each step."""
    findings = Findings(caller=caller)
    steps: list[Callable[[], None]] = [
        *(_creating(services, name, findings) for name in job.names),
        *(_storing(services, fragment, findings) for fragment in job.fragments(caller)),
        *_recording(execution(services, plan), job.paths(caller), findings),
    ]
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is being counted
            findings.broken.append(repr(error))
        done()
    return findings


def execution(services: Services, plan: Plan) -> PlanExecutionContext | UnsynchronisedContext:
    """A context for one caller; the lease goes along, because another process is another session."""
    if isinstance(services, Unsynchronised):
        return services.execution(plan.plan_id)
    assert plan.lease is not None
    return services.execution(plan.plan_id, lease=plan.lease.token)


def create_action(services: Services, name: str, description: str) -> None:
    services.plans.create_action(
        name,
        description=description,
        definition_of_done="the demonstration is over",
        strategy_actor="demo/planner",
        execution_actor="demo/coder",
    )


def _storing(services: Services, fragment: Fragment, findings: Findings) -> Callable[[], None]:
    def store() -> None:
        if isinstance(services, Unsynchronised):
            services.tiers.store(fragment)
            hot = services.tiers.metrics().hot.tokens
        else:
            # Nothing comes between the commands of a batch: this reads the very revision that the store made.
            with services.batch() as batch:
                placed, metrics = batch.tiers.store(fragment), batch.tiers.metrics()
            findings.revisions.append(placed.revision)
            if metrics.revision != placed.revision:
                findings.broken.append("a batch was interleaved")
            hot = metrics.result().hot.tokens
        findings.hot_highest = max(findings.hot_highest, hot)

    return store


def _creating(services: Services, name: str, findings: Findings) -> Callable[[], None]:
    def create() -> None:
        try:
            create_action(services, name, f"of caller {findings.caller}")
        except AlreadyExists:
            return
        findings.wins.append(name)

    return create


def _recording(
    context: PlanExecutionContext | UnsynchronisedContext, paths: list[str], findings: Findings
) -> list[Callable[[], None]]:
    def record(path: str) -> None:
        if findings.changeset_id is None:
            findings.changeset_id = context.start_changeset()
        context.record_change(Change(path=path, after=path.encode()))

    return [partial(record, path) for path in paths]
