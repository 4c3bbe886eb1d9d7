"""Queues of applies against a list on paper: whose turn it is follows from who came when, with which priority."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from stepwell import limits
from stepwell.domain.applies.commands import JoinApplyQueue, LeaveApplyQueue
from stepwell.domain.commands import Command, Write
from stepwell.domain.plans.commands import (
    AdvancePlan,
    BeginPlan,
    CancelPlan,
    CompleteApply,
    CompletePhase,
    CreateAction,
    EndSession,
    ExpireLeases,
    FailPhase,
    RetryPlan,
    StartPhase,
)
from stepwell.domain.plans.model import Phase, ProjectLink
from stepwell.domain.replies import ApplyQueued, Reply
from stepwell.domain.state import State
from stepwell.domain.verdict import Origin
from tests.support.model_check import AgainstModel, Refusal

PLANS = ("a", "b", "c")
TREES = ("/t", "/u")
SESSIONS = ("alice", "bob", "carol")


@dataclass
class Line:
    """One caller that stands in line."""

    ticket: str
    tree: str
    plan: str
    session: str
    priority: int
    turn_until_ms: int | None = None


@dataclass
class Paper:
    """The callers in the order in which they came, and where each plan stands: queued, at work, errored or over."""

    lines: list[Line] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    leases: dict[str, tuple[int, str, int]] = field(default_factory=dict)

    def apply(self, command: Command[Reply], origin: Origin, revision: int) -> bool:
        before = self.view()
        self.do(command, origin, revision)
        for tree in TREES:
            self.set_turns(tree, origin)
        return self.view() != before

    def set_turns(self, tree: str, origin: Origin) -> None:
        first = self.places(tree)[:1]
        for line in self.lines:
            if line.tree != tree:
                continue
            if [line.plan] != first or self.states[line.plan] != "queued":
                line.turn_until_ms = None
            elif line.turn_until_ms is None:
                line.turn_until_ms = origin.now_ms + limits.APPLY_TURN_MS

    def places(self, tree: str) -> list[str]:
        """The plans of a tree: those at work, then by priority, then by age."""
        here = [line for line in self.lines if line.tree == tree]
        here.sort(key=lambda line: (self.states[line.plan] != "work", -line.priority))  # which keeps the age
        return list(dict.fromkeys(line.plan for line in here))

    def do(self, command: Command[Reply], origin: Origin, revision: int) -> None:
        match command:
            case JoinApplyQueue():
                self.join(command, origin)
            case LeaveApplyQueue(ticket):
                self.lines = [line for line in self.lines if line.ticket != ticket]
            case StartPhase():
                self.start(command, origin, revision)
            case CompleteApply(plan, token):
                if self.states[plan] != "over" or token != self.leases[plan][0]:
                    self.end(plan, token, origin, "over")
            case FailPhase(plan, _, token):
                self.end(plan, token, origin, "errored")
            case RetryPlan(plan):
                self.require(self.states[plan] == "errored")
                self.states[plan] = "queued"
            case CancelPlan(plan):
                self.require(self.states[plan] not in {"over", "cancelled"})
                self.states[plan] = "cancelled"
                self.drop(plan)
            case EndSession(session):
                self.lose([plan for plan in PLANS if self.is_held(plan) and self.leases[plan][1] == session])
                self.lines = [line for line in self.lines if line.session != session]
            case ExpireLeases():
                due = [line for line in self.lines if line.turn_until_ms and line.turn_until_ms <= origin.now_ms]
                self.lose([plan for plan in PLANS if self.is_held(plan) and self.leases[plan][2] <= origin.now_ms])
                self.lines = [line for line in self.lines if line not in due]
            case _:
                raise AssertionError(command)

    def join(self, command: JoinApplyQueue, origin: Origin) -> None:
        for line in self.lines:
            if line.ticket == command.ticket_id:
                if (line.tree, line.plan, line.session) != (command.tree, command.plan_id, origin.session_id):
                    raise Refusal("AlreadyExists")
                if line.turn_until_ms is not None:
                    line.turn_until_ms = origin.now_ms + limits.APPLY_TURN_MS
                return
        self.require(self.states[command.plan_id] == "queued")
        ticket = (command.ticket_id, command.tree, command.plan_id, origin.session_id, command.priority)
        self.lines.append(Line(*ticket))

    def start(self, command: StartPhase, origin: Origin, revision: int) -> None:
        plan, tree = command.plan_id, command.tree
        self.require(self.states[plan] == "queued")
        waiting = [each for each in self.places(tree) if self.states[each] == "queued"]
        if waiting and waiting[0] != plan:
            raise Refusal("TreeQueued")
        token = max(revision, self.leases.get(plan, (0, "", 0))[0] + 1)
        self.leases[plan] = (token, origin.session_id, origin.now_ms + command.lease_ms)
        self.states[plan] = "work"
        self.lines = [line for line in self.lines if line.plan != plan or line.tree == tree]
        if tree and all(line.plan != plan for line in self.lines):
            self.lines.append(Line(plan, tree, plan, origin.session_id, 0))

    def end(self, plan: str, token: int | None, origin: Origin, state: str) -> None:
        if token is None and not self.is_held(plan):
            raise Refusal("PlanNotReady")
        if not self.is_held(plan) or token != self.leases[plan][0] or self.leases[plan][2] <= origin.now_ms:
            raise Refusal("LeaseLost")
        self.states[plan] = state
        self.drop(plan)

    def is_held(self, plan: str) -> bool:
        return self.states[plan] == "work"

    def lose(self, plans: list[str]) -> None:
        """They are queued again; the session that had the lease has lost its place."""
        for plan in plans:
            self.states[plan] = "queued"
            session = self.leases[plan][1]
            self.lines = [line for line in self.lines if (line.plan, line.session) != (plan, session)]

    def drop(self, plan: str) -> None:
        self.lines = [line for line in self.lines if line.plan != plan]

    def require(self, condition: bool) -> None:  # noqa: FBT001 - it reads as an assertion does
        if not condition:
            raise Refusal("PlanNotReady")

    def view(self) -> object:
        return {
            tree: sorted(
                (
                    self.places(tree).index(line.plan) + 1,
                    line.ticket,
                    line.plan,
                    line.session,
                    line.priority,
                    line.turn_until_ms or 0,
                )
                for line in self.lines
                if line.tree == tree
            )
            for tree in TREES
        }, dict(self.states)

    def seen_in(self, state: State) -> object:
        words = {"processing": "work", "applied": "over"}
        return {
            tree: sorted(
                (
                    each.place,
                    each.ticket_id,
                    each.plan_id,
                    each.session_id,
                    each.priority,
                    each.turn_until_ms or 0,
                )
                for each in state.tickets.queue(tree)
            )
            for tree in TREES
        }, {plan.plan_id: words.get(str(plan.state), str(plan.state)) for plan in state.plans}


class QueueMachine(AgainstModel):
    """Three sessions that apply three plans to two trees, with priorities, and that die, fail and lose their leases."""

    model: Paper

    @initialize()
    def start(self) -> None:
        self.begin(Paper())
        self.prepare(CreateAction("act", "", "", "planner", "coder"))
        for plan in PLANS:
            self.prepare(BeginPlan(plan, "act", (ProjectLink("p"),)))
            lease = self.state.plans.rows[plan].lease
            self.prepare(CompletePhase(plan, Phase.EXECUTE, lease.token if lease else None))
            self.prepare(AdvancePlan(plan, Phase.APPLY))
            self.model.states[plan] = "queued"
            self.model.leases[plan] = (self.state.plans.rows[plan].fence, "", 0)

    def prepare(self, command: Write[Reply]) -> None:
        """Do what the model knows nothing of."""
        model = self.model
        self.model = _Anything()
        self.both(command, self.origin())
        self.model = model

    def token(self, plan: str) -> int:
        return self.model.leases[plan][0]

    @rule(
        plan=st.sampled_from(PLANS),
        tree=st.sampled_from(TREES),
        session=st.sampled_from(SESSIONS),
        priority=st.integers(-1, 1),
        number=st.integers(0, 1),
    )
    def join(self, plan: str, tree: str, session: str, priority: int, number: int) -> None:
        """A ticket has the names of its plan and its session, and is used again."""
        ticket = f"{plan}-{session}-{number}"
        reply = self.both(JoinApplyQueue(ticket, plan, tree, priority), self.origin(session))
        if isinstance(reply, ApplyQueued):
            places = self.model.places(reply.ticket.tree)
            assert (reply.place, reply.plans) == (places.index(plan) + 1, len(places))
            assert reply.applying == next((each for each in places if self.model.is_held(each)), None)

    @rule(plan=st.sampled_from(PLANS), session=st.sampled_from(SESSIONS), number=st.integers(0, 1))
    def leave(self, plan: str, session: str, number: int) -> None:
        self.both(LeaveApplyQueue(f"{plan}-{session}-{number}"), self.origin(session))

    @rule(plan=st.sampled_from(PLANS), tree=st.sampled_from((*TREES, *TREES, "")), session=st.sampled_from(SESSIONS))
    def start_apply(self, plan: str, tree: str, session: str) -> None:
        self.both(StartPhase(plan, Phase.APPLY, 500, tree=tree), self.origin(session))

    @rule(tree=st.sampled_from(TREES), session=st.sampled_from(SESSIONS))
    def start_first(self, tree: str, session: str) -> None:
        """Whose turn it is."""
        for plan in self.model.places(tree)[:1]:
            self.both(StartPhase(plan, Phase.APPLY, 500, tree=tree), self.origin(session))

    @rule(plan=st.sampled_from(PLANS), fails=st.booleans())
    def finish(self, plan: str, *, fails: bool) -> None:
        token = self.token(plan)
        command = FailPhase(plan, Phase.APPLY, token, "x") if fails else CompleteApply(plan, token, {})
        if self.model.states[plan] != "over":
            self.both(command, self.origin())

    @rule(plan=st.sampled_from(PLANS))
    def retry(self, plan: str) -> None:
        self.both(RetryPlan(plan), self.origin())

    @rule(plan=st.sampled_from(PLANS[:1]))
    def cancel(self, plan: str) -> None:
        self.both(CancelPlan(plan), self.origin())

    @rule(session=st.sampled_from(SESSIONS))
    def session_ends(self, session: str) -> None:
        self.both(EndSession(session), self.origin("manager"))

    @rule(milliseconds=st.sampled_from([100, 500, limits.APPLY_TURN_MS]))
    def time_passes(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.both(ExpireLeases(), self.origin("manager"))

    @rule(plan=st.sampled_from(PLANS), tree=st.sampled_from(TREES))
    def abort(self, plan: str, tree: str) -> None:
        """A transaction that fails leaves every queue as it was."""
        self.both_at_once(
            [
                JoinApplyQueue(f"{plan}-new", plan, tree, 1),
                StartPhase(plan, Phase.APPLY, 500, tree=tree),
                JoinApplyQueue(f"{plan}-new", plan, "/elsewhere", 1),
            ],
            self.origin(),
        )


class _Anything(Paper):
    """A model that lets everything happen."""

    def apply(self, command: Command[Reply], origin: Origin, revision: int) -> bool:  # noqa: ARG002
        return True


TestApplyQueue = QueueMachine.TestCase
