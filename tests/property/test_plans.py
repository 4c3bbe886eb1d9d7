"""Plans against a table on paper: position, attempt, lease and children, whoever does what and when."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from stepwell import limits
from stepwell.domain.commands import Command, Write
from stepwell.domain.plans.commands import (
    AdvancePlan,
    BeginPlan,
    CancelPlan,
    CompleteApply,
    CompletePhase,
    ConstrainApply,
    CreateAction,
    DeclareSubplans,
    EndSession,
    ExpireLeases,
    FailPhase,
    ForgetPlans,
    ProceedPlan,
    RecordMerge,
    RenewLease,
    ResolveConflict,
    RetryPlan,
    RevertPlan,
    RollBackPlan,
    StartPhase,
    StartReady,
    SubplanSpec,
    UseAction,
)
from stepwell.domain.plans.conflicts import Resolution
from stepwell.domain.plans.model import Phase, Plan, ProjectLink, SubplanMode
from stepwell.domain.replies import PlansForgotten, ReadyStarted, Reply
from stepwell.domain.state import State
from stepwell.domain.verdict import Origin
from tests.support.model_check import AgainstModel, Refusal

STRATEGIZE, EXECUTE, APPLY = Phase
LINKS = (ProjectLink("p"),)
ACTORS = {"act": ("local/planner", "local/coder"), "look": ("local/planner", "local/reader")}  # by action

Able = tuple[frozenset[str] | None, frozenset[str] | None, bool | None, bool]
"""What an agent can do: actors, labels, read-only or not, and whether it goes straight to execute."""


def able(actors: Iterable[str] | None, labels: Iterable[str] | None, *, read_only: bool | None, straight: bool) -> Able:
    names, needs = (None if each is None else frozenset(each) for each in (actors, labels))
    return names, needs, read_only, straight


def able_of(command: StartReady) -> Able:
    actors = None if command.actors is None else [f"local/{each}" for each in command.actors]
    return able(actors, command.labels, read_only=command.read_only, straight=command.straight)


@dataclass
class Sheet:
    """One plan, on one sheet of paper."""

    parent: str | None = None
    phase: str = "strategize"
    state: str = "queued"
    version: int = 1
    attempt: int = 1
    reversions: int = 0
    errors: int = 0
    lease: tuple[int, str, int] | None = None
    fence: int = 0
    children: list[str] = field(default_factory=list)
    mode: str = ""
    places: int = 0
    fail_fast: bool = False
    retries: int = 0
    merged: list[str] | None = None
    undone: bool = False
    ended_at_ms: int | None = None
    action: str = "act"
    labels: frozenset[str] = frozenset()
    read_only: bool = False
    agents: list[tuple[str, Able | None]] = field(default_factory=list)  # without abilities: it can do everything
    failed_by: str | None = None
    queued_at_ms: int = 0

    @property
    def ended(self) -> bool:
        return self.state in {"cancelled", "applied"}

    @property
    def executing(self) -> bool:
        return (self.phase, self.state) == ("execute", "processing")

    @property
    def executed(self) -> bool:
        return (self.phase, self.state) == ("execute", "complete")

    @property
    def finished(self) -> bool:
        return self.ended or self.executed

    @property
    def running(self) -> bool:
        return (self.phase, self.state) != ("strategize", "queued") and not self.finished and self.state != "errored"

    def go(self, phase: str, state: str, *, again: bool = False, error: bool = False) -> None:
        if error:
            self.failed_by = self.lease[1] if self.lease else None
        self.phase, self.state, self.lease = phase, state, None
        self.version += 1
        self.attempt += again
        self.errors += error
        if again and phase != "apply":
            self.merged = None

    def grant(self, origin: Origin, lease_ms: int, revision: int) -> None:
        self.go(self.phase, "processing")
        self.fence = revision if revision > self.fence else self.fence + 1
        self.lease = (self.fence, origin.session_id, origin.now_ms + lease_ms)


@dataclass
class Sheets:
    """All plans."""

    plans: dict[str, Sheet] = field(default_factory=dict)

    def apply(self, command: Command[Reply], origin: Origin, revision: int) -> bool:
        versions = {plan_id: plan.version for plan_id, plan in self.plans.items()}
        changed = self.do(command, origin, revision)
        for plan_id, plan in self.plans.items():
            if plan.state == "queued" and plan.version != versions.get(plan_id):
                plan.queued_at_ms = origin.now_ms
            if plan.ended and plan.ended_at_ms is None:
                plan.ended_at_ms = origin.now_ms
        return changed

    def do(self, command: Command[Reply], origin: Origin, revision: int) -> bool:
        match command:
            case CreateAction():
                return True
            case EndSession(session_id):
                return self.lose([each for each in self.plans.values() if each.lease and each.lease[1] == session_id])
            case ExpireLeases():
                return self.lose(
                    [each for each in self.plans.values() if each.lease and each.lease[2] <= origin.now_ms]
                )
            case ForgetPlans(keep, before_ms):
                return self.forget(keep, before_ms)
            case UseAction(plan_id):
                if plan_id in self.plans:
                    raise Refusal("AlreadyExists")
                self.plans[plan_id] = Sheet()
                return True
            case BeginPlan(plan_id, lease_ms=lease_ms):
                if plan_id in self.plans:
                    raise Refusal("AlreadyExists")
                plan = self.plans[plan_id] = Sheet()
                plan.grant(origin, lease_ms, revision)
                self.proceed(plan, lease_ms, origin, revision)
                return True
            case _:
                self.step(command, origin, revision)
                return True

    def lose(self, plans: list[Sheet]) -> bool:
        for plan in plans:
            plan.go(plan.phase, "queued", again=True, error=True)
        return bool(plans)

    def forget(self, keep: int, before_ms: int) -> bool:
        """Nobody can be at work below a root that has ended: all of its tree goes."""
        roots = [name for name, plan in self.plans.items() if plan.ended and plan.parent is None]
        roots.sort(key=lambda name: (self.plans[name].ended_at_ms, name), reverse=True)
        old = {name for name in roots if (self.plans[name].ended_at_ms or 0) < before_ms}
        due = old | set(roots[keep:])
        gone = [name for name in self.plans if due.intersection([name, *self.above(name)])]
        for name in gone:
            del self.plans[name]
        return bool(gone)

    def above(self, plan_id: str) -> list[str]:
        parent = self.plans[plan_id].parent
        return [parent, *self.above(parent)] if parent else []

    def step(self, command: Command[Reply], origin: Origin, revision: int) -> None:
        match command:
            case StartPhase(plan_id, phase, lease_ms, version):
                plan = self.seen(plan_id, version)
                self.require((plan.phase, plan.state) == (phase, "queued"))
                self.require_turn(plan_id, plan)
                plan.grant(origin, lease_ms, revision)
            case CompletePhase(plan_id, phase, token, version):
                if phase is APPLY:
                    raise Refusal("InvalidArgument")
                plan = self.held(plan_id, token, version, origin)
                self.require(plan.phase == phase)
                self.require(phase is STRATEGIZE or all(self.plans[each].finished for each in plan.children))
                plan.go(phase, "complete")
            case FailPhase(plan_id, phase, token, _, version):
                plan = self.held(plan_id, token, version, origin)
                self.require(plan.phase == phase)
                self.fail(plan_id, plan)
            case RenewLease(plan_id, token, lease_ms):
                plan = self.held(plan_id, token, None, origin)
                assert plan.lease is not None
                plan.lease = (*plan.lease[:2], max(plan.lease[2], origin.now_ms + lease_ms))
            case DeclareSubplans():
                self.declare(command, origin)
            case StartReady():
                self.start_ready(command, origin, revision)
            case ProceedPlan(plan_id, token, lease_ms, version):
                plan = self.held(plan_id, token, version, origin)
                self.require(plan.phase == "strategize")
                self.proceed(plan, lease_ms, origin, revision)
            case CompleteApply() | ConstrainApply() | RollBackPlan():
                self.end(command, origin)
            case RecordMerge() | ResolveConflict():
                self.merge(command, origin)
            case _:
                self.steer(command)

    def fail(self, plan_id: str, plan: Sheet) -> None:
        plan.go(plan.phase, "errored", error=True)
        parent = self.plans[plan.parent] if plan.parent else None
        if plan.retries:
            plan.go(plan.phase, "queued", again=True)
            plan.retries -= 1
        elif parent and parent.fail_fast:
            self.cancel_unfinished([each for each in parent.children if each != plan_id])

    def proceed(self, plan: Sheet, lease_ms: int, origin: Origin, revision: int) -> None:
        plan.go("strategize", "complete")
        plan.go("execute", "queued")
        plan.grant(origin, lease_ms, revision)

    def ready(self, parent: Sheet) -> list[str]:
        return [each for each in parent.children if self.is_ready(each, self.plans[each])]

    def is_ready(self, plan_id: str, plan: Sheet) -> bool:
        if (plan.phase, plan.state) not in {
            ("strategize", "queued"),
            ("strategize", "complete"),
            ("execute", "queued"),
        }:
            return False
        begun = copy.copy(plan)
        begun.phase = "strategize" if (plan.phase, plan.state) == ("strategize", "queued") else "execute"
        try:
            self.require_turn(plan_id, begun)
        except Refusal:
            return False
        return True

    def start_ready(self, command: StartReady, origin: Origin, revision: int) -> None:
        parent, able = self.seen(command.plan_id, None), able_of(command)
        others = [other for session_id, other in parent.agents if session_id != origin.session_id]
        agent = (origin.session_id, None if able[:3] == (None, None, None) else able)
        is_known = agent in parent.agents or (origin.session_id, None) in parent.agents
        if parent.children and not self.is_over(parent) and not self.is_for_others(parent, able) and not is_known:
            parent.agents.append(agent)
        for plan_id in self.ready(parent):
            plan = self.plans[plan_id]
            is_recent = origin.now_ms < plan.queued_at_ms + limits.RETRY_HEAD_START_MS
            has_others = any(other is None or self.can(other, plan, later=True) for other in others)
            if not self.can(able, plan) or (has_others and is_recent and plan.failed_by == origin.session_id):
                continue
            if plan.state == "complete":
                plan.go("execute", "queued")
            first = plan.phase == "strategize"
            plan.grant(origin, command.lease_ms, revision)
            if command.straight and first:
                self.proceed(plan, command.lease_ms, origin, revision)
            return

    def can(self, able: Able, plan: Sheet, *, later: bool = False) -> bool:
        """Whether an agent can do what is due with a plan, or also what comes later."""
        actors, labels, read_only, straight = able
        strategy, execution = ACTORS[plan.action]
        has_strategy = straight or plan.phase != "strategize" or plan.state == "complete"
        due = {execution} if has_strategy else {strategy, execution} if later else {strategy}
        return (
            (actors is None or bool(due & actors))
            and (labels is None or plan.labels <= labels)
            and (read_only is None or read_only == plan.read_only)
        )

    def is_over(self, parent: Sheet) -> bool:
        is_at_work = any(self.plans[each].lease for each in parent.children)
        if parent.ended or parent.phase == "apply" or parent.executed:
            return True
        position = parent.phase, parent.state
        parent.phase, parent.state = "execute", "processing"  # as it may be again
        is_ready = bool(self.ready(parent))
        parent.phase, parent.state = position
        return bool(parent.children) and not (is_at_work or is_ready)

    def is_for_others(self, parent: Sheet, able: Able) -> bool:
        children = [self.plans[each] for each in parent.children]
        left = [each for each in children if not each.finished and each.state != "errored"]
        return bool(children) and not any(self.can(able, each, later=True) for each in left)

    def end(self, command: CompleteApply | ConstrainApply | RollBackPlan, origin: Origin) -> None:
        plan = self.seen(command.plan_id, None)
        if isinstance(command, RollBackPlan):
            if not plan.undone:
                self.seen(command.plan_id, command.expected_version)
                self.require(plan.state == "applied")
                plan.go("apply", "applied")
                plan.undone = True
            return
        ending = "applied" if isinstance(command, CompleteApply) else "constrained"
        if plan.state == ending and command.lease == plan.fence:
            return
        self.held(command.plan_id, command.lease, command.expected_version, origin)
        self.require(plan.phase == "apply")
        plan.go("apply", ending, error=ending == "constrained")

    def merge(self, command: RecordMerge | ResolveConflict, origin: Origin) -> None:
        """Nobody changes anything here, so that nothing is ever in conflict."""
        plan = self.held(command.plan_id, command.lease, None, origin)
        self.require(plan.phase == "execute")
        if plan.read_only:
            raise Refusal("PlanError")
        if isinstance(command, ResolveConflict):
            raise Refusal("NotFound")
        self.require(bool(plan.children))
        if plan.merged is not None:
            raise Refusal("AlreadyExists")
        self.require(all(self.plans[each].finished for each in plan.children))
        if [*command.children] != [each for each in plan.children if self.plans[each].executed]:
            raise Refusal("Conflict")
        plan.merged = [*command.children]

    def require_unmerged(self, plan_id: str, plan: Sheet) -> None:
        self.require(plan.parent is None or plan_id not in (self.plans[plan.parent].merged or []))

    def steer(self, command: Command[Reply]) -> None:
        match command:
            case AdvancePlan(plan_id, phase, version):
                plan = self.seen(plan_id, version)
                if phase is STRATEGIZE:
                    raise Refusal("InvalidArgument")
                self.require(phase is EXECUTE or plan.parent is None)
                before = "strategize" if phase is EXECUTE else "execute"
                self.require((plan.phase, plan.state) == (before, "complete"))
                plan.go(phase, "queued")
            case RetryPlan(plan_id, version):
                plan = self.seen(plan_id, version)
                self.require(plan.state == "errored")
                plan.go(plan.phase, "queued", again=True)
            case RevertPlan(plan_id, _, version):
                plan = self.seen(plan_id, version)
                self.require(plan.phase != "strategize" and not plan.ended and plan.reversions < 3)
                self.require(plan.parent is None or self.plans[plan.parent].executing)
                self.require_unmerged(plan_id, plan)
                plan.go("strategize", "queued", again=True, error=True)
                plan.reversions += 1
                self.cancel_unfinished(plan.children)
                plan.children, plan.mode, plan.fail_fast, plan.agents = [], "", False, []
            case CancelPlan(plan_id, _, version):
                plan = self.seen(plan_id, version)
                self.require(not plan.ended)
                self.require_unmerged(plan_id, plan)
                self.cancel(plan_id, error=False)
            case _:
                raise AssertionError(command)

    def seen(self, plan_id: str, version: int | None) -> Sheet:
        plan = self.plans.get(plan_id)
        if plan is None:
            raise Refusal("NotFound")
        if version not in {None, plan.version}:
            raise Refusal("Conflict")
        return plan

    def held(self, plan_id: str, token: int | None, version: int | None, origin: Origin) -> Sheet:
        plan = self.seen(plan_id, None)
        if token is None and plan.lease is None:
            raise Refusal("PlanNotReady")
        if plan.lease is None or plan.lease[0] != token or plan.lease[2] <= origin.now_ms:
            raise Refusal("LeaseLost")
        return self.seen(plan_id, version)

    def require(self, condition: bool) -> None:  # noqa: FBT001 - it reads as an assertion does
        if not condition:
            raise Refusal("PlanNotReady")

    def require_turn(self, plan_id: str, plan: Sheet) -> None:
        if plan.parent is None:
            return
        parent = self.plans[plan.parent]
        if plan.phase == "execute":
            at_work = sum(self.plans[each].lease is not None for each in parent.children)
            self.require(parent.mode in {"", "sequential"} or at_work < parent.places)
            return
        self.require(plan.phase != "apply" and plan_id in parent.children and parent.executing)
        siblings = [self.plans[each] for each in parent.children]
        elder = siblings[: parent.children.index(plan_id)]
        if parent.mode == "sequential":
            self.require(all(each.finished for each in elder))
        else:
            self.require(parent.mode == "parallel" or all(each.executed for each in elder[-1:]))
            self.require(sum(each.running for each in siblings) < parent.places)

    def declare(self, command: DeclareSubplans, origin: Origin) -> None:
        plan = self.held(command.plan_id, command.lease, None, origin)
        self.require(plan.phase == "execute")
        names = [child.plan_id for child in command.children]
        if plan.children:
            raise Refusal("AlreadyExists")
        self.require(len(self.above(command.plan_id)) < 8)
        if any(name in self.plans for name in names):
            raise Refusal("AlreadyExists")
        plan.children = names
        plan.mode, plan.places, plan.fail_fast = str(command.mode), command.max_parallel, command.fail_fast
        for child in command.children:
            self.plans[child.plan_id] = Sheet(
                parent=command.plan_id,
                retries=command.retries,
                action=child.action_name,
                labels=frozenset(child.labels),
                read_only=plan.read_only or child.action_name == "look",
            )

    def cancel(self, plan_id: str, *, error: bool) -> None:
        plan = self.plans[plan_id]
        if not plan.ended:
            plan.go(plan.phase, "cancelled", error=error)
        for child in plan.children:
            self.cancel(child, error=error)

    def cancel_unfinished(self, plan_ids: list[str]) -> None:
        for plan_id in plan_ids:
            if not self.plans[plan_id].finished:
                self.cancel(plan_id, error=True)

    def view(self) -> object:
        return {
            plan_id: (
                (each.parent, each.phase, each.state, each.version, each.attempt, each.reversions),
                (each.errors, each.lease, each.fence, each.children),
                (each.retries, each.merged, each.undone),
                (each.read_only, sorted(each.labels)),
                sorted(each.agents, key=repr) if each.children else [],
            )
            for plan_id, each in self.plans.items()
        }

    def seen_in(self, state: State) -> object:
        return {
            plan.plan_id: (
                (plan.parent_plan_id, plan.phase, plan.state, plan.version, plan.attempt, plan.reversion_count),
                (
                    len(plan.errors),
                    plan.lease and (plan.lease.token, plan.lease.session_id, plan.lease.expires_at_ms),
                    plan.fence,
                    [child.plan_id for child in plan.subplans.children] if plan.subplans else [],
                ),
                (
                    plan.retries_left,
                    [*plan.merged.children] if plan.merged else None,
                    plan.rolled_back is not None,
                ),
                (plan.read_only, list(plan.labels)),
                sorted(self.agents_of(plan), key=repr),
            )
            for plan in state.plans
        }

    def agents_of(self, plan: Plan) -> list[tuple[str, Able | None]]:
        if plan.subplans is None:
            return []
        found: list[tuple[str, Able | None]] = [(each, None) for each in plan.subplans.agents]
        for each in plan.subplans.limited:
            can = each.abilities
            found.append(
                (each.session_id, able(can.actors, can.labels, read_only=can.read_only, straight=each.straight))
            )
        return found


class PlanMachine(AgainstModel):
    """Two sessions at work on a few plans, with right and wrong leases and versions."""

    model: Sheets

    @initialize()
    def start(self) -> None:
        self.begin(Sheets())
        self.both(CreateAction("act", "", "", "planner", "coder"), self.origin())
        self.both(CreateAction("look", "", "", "planner", "reader", read_only=True), self.origin())
        self.both(UseAction("root", "act", LINKS), self.origin())
        self.births = 0

    def command(self, data: st.DataObject, plan_id: str) -> Write[Reply]:
        """Something to do to a plan; more often than not what is due."""
        plan = self.model.plans.get(plan_id, Sheet())
        token = data.draw(st.sampled_from([plan.lease[0] if plan.lease else None] * 4 + [None, 1]))
        version = data.draw(st.sampled_from([None] * 4 + [plan.version, max(1, plan.version - 1)]))
        phase = data.draw(st.sampled_from([Phase(plan.phase)] * 4 + list(Phase)))
        following = {"strategize": EXECUTE, "execute": APPLY, "apply": STRATEGIZE}[plan.phase]
        ahead = data.draw(st.sampled_from([following] * 3 + list(Phase)))
        due: dict[str, list[Write[Reply]]] = {
            "queued": [StartPhase(plan_id, phase, 1_000, version)] * 3,
            "processing": [
                CompletePhase(plan_id, phase, token, version),
                CompletePhase(plan_id, phase, token, version),
                CompleteApply(plan_id, token, {}, version),
                self.family(data, plan_id, token),
                ProceedPlan(plan_id, token, 1_000, version),
                self.merged(data, plan_id, token),
            ],
            "applied": [RollBackPlan(plan_id, "x", {}, version)],
            "complete": [AdvancePlan(plan_id, ahead, version)] * 3,
            "errored": [RetryPlan(plan_id, version)] * 2,
        }
        anything: list[Write[Reply]] = [
            StartPhase(plan_id, phase, 500, version),
            FailPhase(plan_id, phase, token, "x", version),
            RenewLease(plan_id, token, data.draw(st.sampled_from([10, 2_000]))),
            ConstrainApply(plan_id, token, "x", version),
            RetryPlan(plan_id, version),
            AdvancePlan(plan_id, ahead, version),
            RevertPlan(plan_id, "x", version),
            CancelPlan(plan_id, "", version),
            self.question(data, plan_id),
            ProceedPlan(plan_id, token, 700, version),
            RollBackPlan(plan_id, "x", {}, version),
            ResolveConflict(plan_id, token, "a", "0", "cs", Resolution.ACCEPT_OURS),
        ]
        return data.draw(st.sampled_from(due.get(plan.state, []) * 3 + anything))

    def question(self, data: st.DataObject, plan_id: str) -> StartReady:
        """For a child, by an agent that can do everything or only something."""
        straight = data.draw(st.booleans())
        if data.draw(st.booleans()):
            return StartReady(plan_id, 700, straight)
        return StartReady(
            plan_id,
            700,
            straight,
            data.draw(st.sampled_from([None, None, ("planner",), ("coder",), ("planner", "reader")])),
            data.draw(st.sampled_from([None, (), ("x",), ("y", "x")])),
            read_only=data.draw(st.sampled_from([None, None, True, False])),
        )

    def family(self, data: st.DataObject, plan_id: str, token: int | None) -> DeclareSubplans:
        self.births += 1
        size = data.draw(st.integers(1, 3))
        mode = data.draw(st.sampled_from(SubplanMode))
        chained = mode is SubplanMode.DEPENDENCY_ORDERED  # each on the one before it
        labels = st.sampled_from([(), (), ("x",), ("y", "x", "y")])
        return DeclareSubplans(
            plan_id,
            token,
            tuple(
                SubplanSpec(
                    f"c{n}",
                    f"kid-{self.births}-{n}",
                    data.draw(st.sampled_from(["act", "act", "look"])),
                    depends_on=(f"c{n - 1}",) if chained and n else (),
                    labels=data.draw(labels),
                )
                for n in range(size)
            ),
            mode,
            data.draw(st.integers(1, 2)),
            fail_fast=data.draw(st.booleans()),
            retries=data.draw(st.integers(0, 2)),
        )

    def merged(self, data: st.DataObject, plan_id: str, token: int | None) -> RecordMerge:
        """As it should be, more often than not."""
        plan = self.model.plans.get(plan_id, Sheet())
        executed = [each for each in plan.children if self.model.plans[each].executed]
        return RecordMerge(plan_id, token, tuple(data.draw(st.sampled_from([executed] * 3 + [plan.children[::-1]]))))

    def pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from([*self.model.plans, "root", "nobody"]))

    @rule(data=st.data(), session=st.sampled_from(["alice", "bob"]))
    def work(self, data: st.DataObject, session: str) -> None:
        self.both(self.command(data, self.pick(data)), self.origin(session))

    @rule(data=st.data())
    def work_on(self, data: st.DataObject) -> None:
        """Several steps with one plan, so that the far positions are reached."""
        plan_id = self.pick(data)
        for _ in range(4):
            self.both(self.command(data, plan_id), self.origin())

    @rule(data=st.data(), session=st.sampled_from(["alice", "bob"]))
    def work_on_what_is_ready(self, data: st.DataObject, session: str) -> None:
        """What a caller without luck is told is so: nothing happens until somebody steps in, or it is worth waiting."""
        plan_id = self.pick_parent(data)
        before = self.model.plans.get(plan_id, Sheet())
        had = [(each, self.model.plans[each].state) for each in before.children]
        question = self.question(data, plan_id)
        is_for_others = plan_id in self.model.plans and self.model.is_for_others(before, able_of(question))
        reply = self.both(question, self.origin(session))
        if not isinstance(reply, ReadyStarted):
            return
        assert [*reply.errored] == [each for each, state in had if state == "errored"]
        if reply.plan is not None:
            sheet = self.model.plans[reply.plan.plan_id]
            assert (sheet.lease, reply.plan.lease and reply.plan.lease.session_id) == (sheet.lease, session)
            assert dict(had)[reply.plan.plan_id] in {"queued", "complete"}
            assert question.labels is None or {*reply.plan.labels} <= {*question.labels}
            assert question.read_only in {None, reply.plan.read_only}
            return
        assert reply.is_for_others == (is_for_others and not reply.is_over)
        waits_for_others = bool(self.model.ready(self.model.plans[plan_id]))
        parent = self.model.plans[plan_id]
        at_work = any(state == "processing" for _, state in had)
        past = parent.ended or parent.phase == "apply" or parent.executed
        if past or (parent.executing and parent.children):
            assert reply.is_over == (past or not (at_work or waits_for_others))

    @rule(data=st.data())
    def bring_children_through(self, data: st.DataObject) -> None:
        """One after another as they become ready, some of them failing; then they are merged, and somebody meddles."""
        self.bring_through(data, self.pick_parent(data))

    def bring_through(self, data: st.DataObject, plan_id: str) -> None:
        for _ in range(6):
            reply = self.both(StartReady(plan_id, 1_000, straight=True), self.origin())
            if not isinstance(reply, ReadyStarted) or reply.plan is None:
                break
            child = reply.plan.plan_id
            if data.draw(st.sampled_from([False, True, True])):
                self.both(CompletePhase(child, EXECUTE, self.token(child)), self.origin())
            else:
                self.both(FailPhase(child, EXECUTE, self.token(child), "x"), self.origin())
                if data.draw(st.booleans()):
                    self.both(RetryPlan(child), self.origin())
        self.both(self.merged(data, plan_id, self.token(plan_id)), self.origin())
        for child in self.model.plans.get(plan_id, Sheet()).children[:1]:
            failed = FailPhase(plan_id, EXECUTE, self.token(plan_id), "x")
            meddling: list[Write[Reply]] = [failed, RevertPlan(child, "x"), CancelPlan(child)]
            self.both(data.draw(st.sampled_from(meddling)), self.origin())
            self.both(RetryPlan(plan_id), self.origin())

    @precondition(lambda self: len(self.model.plans) < 16)
    @rule(data=st.data())
    def raise_a_family(self, data: st.DataObject) -> None:
        """A root with children that nobody has begun, which chance seldom finds."""
        self.births += 1
        plan_id = f"plan-{self.births}"
        self.both(UseAction(plan_id, "act", LINKS), self.origin())
        self.both(StartPhase(plan_id, STRATEGIZE, 1_000), self.origin())
        self.both(ProceedPlan(plan_id, self.token(plan_id), 1_000), self.origin())
        self.both(self.family(data, plan_id, self.token(plan_id)), self.origin())
        if data.draw(st.booleans()):
            self.both(StartReady(plan_id, 1_000, straight=data.draw(st.booleans())), self.origin("bob"))
        if data.draw(st.booleans()):
            self.bring_through(data, plan_id)

    def pick_parent(self, data: st.DataObject) -> str:
        parents = [name for name, plan in self.model.plans.items() if plan.children]
        return data.draw(st.sampled_from(parents * 3 + ["root"]))

    def token(self, plan_id: str) -> int | None:
        lease = self.model.plans.get(plan_id, Sheet()).lease
        return lease[0] if lease else None

    @precondition(lambda self: len(self.model.plans) < 16)
    @rule(data=st.data())
    def bring_up(self, data: st.DataObject) -> None:
        """Straight to work, or a family, which chance seldom finds."""
        plan_id = self.pick(data)
        self.both(StartPhase(plan_id, STRATEGIZE, 1_000), self.origin())
        self.both(CompletePhase(plan_id, STRATEGIZE, self.token(plan_id)), self.origin())
        self.both(AdvancePlan(plan_id, EXECUTE), self.origin())
        self.both(StartPhase(plan_id, EXECUTE, 1_000), self.origin())
        if data.draw(st.booleans()):
            self.both(self.family(data, plan_id, self.token(plan_id)), self.origin())

    @rule(data=st.data())
    def bring_to_an_end(self, data: st.DataObject) -> None:
        """Straight from there to where nothing follows; a child goes half of the way."""
        plan_id = self.pick(data)
        self.both(CompletePhase(plan_id, EXECUTE, self.token(plan_id)), self.origin())
        self.both(AdvancePlan(plan_id, APPLY), self.origin())
        self.both(StartPhase(plan_id, APPLY, 1_000), self.origin())
        self.both(CompleteApply(plan_id, self.token(plan_id), {}), self.origin())
        if data.draw(st.booleans()):
            self.both(RollBackPlan(plan_id, "x", {}), self.origin("bob"))

    @rule(data=st.data(), size=st.integers(1, 4))
    def transact(self, data: st.DataObject, size: int) -> None:
        plan_id = self.pick(data)
        self.both_at_once([self.command(data, plan_id) for _ in range(size)], self.origin())

    @rule(data=st.data(), size=st.integers(1, 3))
    def abort(self, data: st.DataObject, size: int) -> None:
        commands = [self.command(data, self.pick(data)) for _ in range(size)]
        self.both_at_once([*commands, CancelPlan("nobody")], self.origin())

    @precondition(lambda self: len(self.model.plans) < 8)
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        self.births += 1
        plan_id = f"plan-{data.draw(st.integers(self.births - 1, self.births))}"  # now and then one that exists
        kind = data.draw(st.sampled_from([UseAction, BeginPlan]))
        self.both(kind(plan_id, "act", LINKS), self.origin())

    @rule(milliseconds=st.integers(1, 600))
    def time_passes(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.both(ExpireLeases(), self.origin("manager"))

    @rule(milliseconds=st.integers(1, 600))
    def time_passes_unseen(self, milliseconds: int) -> None:
        """A lease can be over before anybody takes it back."""
        self.now_ms += milliseconds

    @rule(keep=st.integers(0, 3), age_ms=st.integers(0, 2_000))
    def forget(self, keep: int, age_ms: int) -> None:
        before = list(self.model.plans)
        reply = self.both(ForgetPlans(keep, self.now_ms - age_ms), self.origin("manager"))
        assert isinstance(reply, PlansForgotten)
        assert (sorted(reply.plan_ids), reply.more) == (sorted(set(before) - self.model.plans.keys()), False)

    @rule(session=st.sampled_from(["alice", "bob"]))
    def session_ends(self, session: str) -> None:
        self.both(EndSession(session), self.origin("manager"))


TestPlans = PlanMachine.TestCase
