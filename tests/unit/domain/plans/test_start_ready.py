"""Children by their turn: whoever asks gets the first that is ready, and nobody gets what another has."""

from __future__ import annotations

import pytest

from stepwell import limits
from stepwell.domain.plans.commands import (
    AdvancePlan,
    CancelPlan,
    DeclareSubplans,
    EndSession,
    ExpireLeases,
    FailPhase,
    ProceedPlan,
    RetryPlan,
    RevertPlan,
    StartReady,
    SubplanSpec,
)
from stepwell.domain.plans.model import Phase, PlanState, Position, ProjectLink, SubplanMode
from stepwell.domain.replies import ReadyStarted
from stepwell.errors import Busy, LeaseLost, NotFound, PlanNotReady
from tests.support.domain.world import NOON_MS, World

EXECUTING = Position(Phase.EXECUTE, PlanState.PROCESSING)


@pytest.fixture
def world() -> World:
    """A plan that executes."""
    world = World()
    world.use()
    world.execute()
    return world


def ask(world: World, *, straight: bool = True, session: str = "alice") -> ReadyStarted:
    return world.do(StartReady("plan", straight=straight), session=session)


def given(world: World, *, straight: bool = True) -> str | None:
    reply = ask(world, straight=straight)
    return reply.plan.plan_id if reply.plan else None


class TestStartReady:
    """Found and started in one step."""

    def test_each_once(self, world: World) -> None:
        """In declared order, up to max_parallel; then it is worth waiting."""
        world.declare("b", "a", "c", max_parallel=2)
        assert [given(world), given(world), given(world)] == ["b", "a", None]
        assert ask(world) == ReadyStarted(None, is_over=False)
        world.complete("a")
        assert given(world) == "c"
        for child in ("b", "c"):
            world.complete(child)
        assert ask(world) == ReadyStarted(None, is_over=True)

    def test_lease(self, world: World) -> None:
        """It is the caller's, for as long as asked."""
        world.declare("a")
        plan = world.do(StartReady("plan", 777), session="bob").plan
        assert plan is not None
        assert plan.position == Position(Phase.STRATEGIZE, PlanState.PROCESSING)
        assert plan.lease is not None
        assert (plan.lease.session_id, plan.lease.expires_at_ms) == ("bob", NOON_MS + 777)
        assert plan == world.plan("a")

    def test_straight_to_execute(self, world: World) -> None:
        """Through every position of the table, under the last of its leases."""
        world.declare("a")
        plan = ask(world, straight=True).plan
        assert plan is not None
        assert (plan.position, plan.version, plan.attempt) == (EXECUTING, 5, 1)
        assert plan.lease is not None
        assert plan.lease.token == plan.fence
        assert {*plan.times} == {"strategize", "execute"}

    def test_present_phase(self, world: World) -> None:
        """What was lost or left while it executed goes on from there."""
        world.declare("a", "b")
        ask(world)
        world.start("b")
        world.complete("b")  # and whoever did it is gone before anybody queued the next phase
        world.do(EndSession("alice"))
        world.start()
        assert world.plan("a").position == Position(Phase.EXECUTE, PlanState.QUEUED)
        assert [given(world, straight=False) for _ in range(3)] == ["a", "b", None]
        assert (world.plan("a").position, world.plan("b").position) == (EXECUTING, EXECUTING)

    def test_sequential(self, world: World) -> None:
        """One after the other; one that failed is in the way of all behind it."""
        world.declare("a", "b", "c", mode=SubplanMode.SEQUENTIAL)
        assert [given(world), given(world)] == ["a", None]
        world.complete("a")
        assert given(world) == "b"
        world.fail("b")
        assert ask(world) == ReadyStarted(None, is_over=True, errored=("b",))
        world.do(RetryPlan("b"))
        assert given(world) == "b"

    def test_dependency_ordered(self, world: World) -> None:
        """What it depends on first; without that it is never ready, and whoever waits for it is told so."""
        needs: dict[str, tuple[str, ...]] = {"a": ("b",), "c": ("a",)}
        world.declare("a", "b", "c", mode=SubplanMode.DEPENDENCY_ORDERED, needs=needs)
        assert [given(world), given(world)] == ["b", None]
        world.complete("b")
        assert [given(world), given(world)] == ["a", None]
        world.do(CancelPlan("a"))
        assert ask(world) == ReadyStarted(None, is_over=True)
        assert world.plan("c").state is PlanState.QUEUED

    def test_errored_are_named(self, world: World) -> None:
        """The others go on, and at the end somebody has to look."""
        world.declare("a", "b", max_parallel=1)
        ask(world)
        world.fail("a")
        reply = ask(world)
        assert (reply.plan and reply.plan.plan_id, reply.is_over, reply.errored) == ("b", False, ("a",))
        world.complete("b")
        assert ask(world) == ReadyStarted(None, is_over=True, errored=("a",))

    def test_retried_waits_for_a_place(self, world: World) -> None:
        """Never more at work than max_parallel, however many came back; and none waits for ever."""
        world.declare("a", "b", "c", max_parallel=1)
        for child in ("a", "b"):
            ask(world)
            world.fail(child)
        for child in ("a", "b"):
            world.do(RetryPlan(child))
        for child in ("a", "b", "c"):
            assert [given(world), given(world)] == [child, None]
            world.complete(child)

    def test_retry_is_for_another_agent(self, world: World) -> None:
        """While one is known that may take it, the session that failed it is passed over; others are not."""
        world.declare("a", "b", max_parallel=2, retries=9)
        assert (given(world), ask(world, session="bob").plan is not None) == ("a", True)
        world.fail("a")
        assert ask(world) == ReadyStarted(None, is_over=False)
        reply = ask(world, session="bob")
        assert reply.plan is not None
        assert (reply.plan.plan_id, reply.plan.attempt) == ("a", 2)
        world.do(FailPhase("a", Phase.EXECUTE, world.lease("a"), "no"), session="bob")
        assert world.plan("a").errors[-1].session_id == "bob"
        assert ask(world, session="bob") == ReadyStarted(None, is_over=False), "the last one counts"
        assert given(world) == "a"

    def test_retry_with_other_work_to_do(self, world: World) -> None:
        """The session that is passed over gets the next child."""
        world.declare("a", "b", "c", retries=1)
        assert given(world) == "a"
        assert ask(world, session="bob").plan is not None
        world.fail("a")
        assert [given(world), given(world)] == ["c", None]

    def test_retry_of_the_only_agent(self, world: World) -> None:
        """It is given at once."""
        world.declare("a", retries=1)
        assert given(world) == "a"
        world.fail("a")
        assert given(world) == "a"

    def test_retry_that_no_other_agent_takes(self, world: World) -> None:
        """After a while it is given to the same one, because the others may be gone; a lost lease is no other case."""
        world.declare("a", retries=1)
        assert given(world) == "a"
        assert ask(world, session="bob") == ReadyStarted(None, is_over=False)
        world.now_ms += limits.LEASE_MS
        world.do(ExpireLeases())
        world.now_ms += limits.RETRY_HEAD_START_MS - 1
        assert given(world) is None
        world.now_ms += 1
        assert given(world) == "a"

    def test_agents_that_are_remembered(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each once, the latest ones, and without an event or another version; none of a plan that is over."""
        monkeypatch.setattr(limits, "AGENTS_REMEMBERED_MAX", 2)
        world.declare("a", "b", max_parallel=1)
        version = world.plan().version
        for session in ("alice", "bob", "bob", "carol"):
            ask(world, session=session)
        plan = world.plan()
        assert plan.subplans is not None
        assert (plan.subplans.agents, plan.version) == (("bob", "carol"), version)
        world.do(CancelPlan("plan"))
        assert ask(world, session="dave").is_over
        assert world.plan().subplans == plan.subplans

    def test_not_declared_yet(self, world: World) -> None:
        """It is worth waiting, unless the plan is past it."""
        assert ask(world) == ReadyStarted(None, is_over=False)
        world.complete()
        assert ask(world) == ReadyStarted(None, is_over=True)

    @pytest.mark.parametrize("ending", ["cancel", "revert"])
    def test_parent_is_gone(self, world: World, ending: str) -> None:
        """Cancelled: go. Reverted: it may declare others."""
        world.declare("a")
        world.do(CancelPlan("plan") if ending == "cancel" else RevertPlan("plan", "again"))
        assert ask(world) == ReadyStarted(None, is_over=ending == "cancel")

    def test_parent_that_nobody_executes(self, world: World) -> None:
        """No child begins meanwhile, but one that has begun goes on; it is worth waiting."""
        world.declare("a", "b")
        ask(world)
        world.do(EndSession("alice"))
        assert [given(world), given(world)] == ["a", None]
        world.complete("a")
        assert ask(world) == ReadyStarted(None, is_over=False)
        world.start()
        assert given(world) == "b"

    def test_scope(self, world: World) -> None:
        """Nobody gets a child of which it may not see every project, and it is not over for the others."""
        specs = (SubplanSpec("q", "q", "act", project_links=(ProjectLink("q"),)), SubplanSpec("p", "p", "act"))
        world.do(DeclareSubplans("plan", world.lease(), specs))
        for expected in ("p", None):
            reply = world.do(StartReady("plan", straight=True), projects={"p"})
            assert (reply.plan and reply.plan.plan_id, reply.is_over) == (expected, False)
        world.refuse(StartReady("plan"), NotFound, "no plan 'plan'", projects={"q"})
        world.refuse(StartReady("nobody"), NotFound, "no plan 'nobody'")

    def test_bound(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """A session holds so many leases and no more."""
        world.declare("a")
        monkeypatch.setattr(limits, "LEASES_PER_SESSION_MAX", 1)
        world.refuse(StartReady("plan"), Busy, "this session holds 1 leases already")


class TestProceed:
    """From strategize to execute without a gap."""

    def test_proceed(self, world: World) -> None:
        """A new lease, of the caller's; the old one is over."""
        world.use("other")
        old = world.start("other")
        plan = world.do(ProceedPlan("other", old, 500)).plan
        assert plan.position == EXECUTING
        assert plan.lease is not None
        assert (plan.lease.token > old, plan.lease.expires_at_ms) == (True, NOON_MS + 500)
        world.refuse(ProceedPlan("other", old), LeaseLost, "is over")

    def test_only_from_strategize(self, world: World) -> None:
        """As the tables have it."""
        world.refuse(ProceedPlan("plan", world.lease()), PlanNotReady, "complete_strategize is not legal")
        world.use("other")
        world.refuse(ProceedPlan("other", None), PlanNotReady, "no session is working on it")


class TestRetries:
    """A child that fails is queued again, as often as was declared."""

    def test_retries(self, world: World) -> None:
        """Each as another attempt, with its error and without its open changesets; then it stays errored."""
        world.declare("a", retries=2)
        for left in (2, 1):
            ask(world)
            world.open("cs" * left, "ctx", "a")
            plan = world.fail("a", f"{left} left")
            assert plan.position == Position(Phase.EXECUTE, PlanState.QUEUED)
            assert (plan.attempt, plan.retries_left) == (4 - left, left - 1)
            assert plan.errors[-1].message == f"{left} left"
        ask(world)
        plan = world.fail("a")
        assert (plan.state, plan.attempt, len(plan.errors)) == (PlanState.ERRORED, 3, 3)
        assert world.do(RetryPlan("a")).plan.retries_left == 0

    def test_in_strategize(self, world: World) -> None:
        """The phase that failed is queued."""
        world.declare("a", retries=1)
        ask(world, straight=False)
        assert world.fail("a").position == Position(Phase.STRATEGIZE, PlanState.QUEUED)
        assert given(world) == "a"

    def test_fail_fast_comes_after(self, world: World) -> None:
        """Siblings go on until the retries are used up."""
        world.declare("a", "b", retries=1, fail_fast=True)
        for child in ("a", "b"):
            assert given(world) == child
        world.fail("a")
        assert world.plan("b").position == EXECUTING
        assert given(world) == "a"
        lease = world.lease("b")
        world.fail("a")
        assert world.plan("b").state is PlanState.CANCELLED
        world.refuse(FailPhase("b", Phase.EXECUTE, lease, "late"), LeaseLost, "is over")

    def test_lost_leases_are_no_failures(self, world: World) -> None:
        """They have a bound of their own."""
        world.declare("a", retries=1)
        ask(world)
        world.do(EndSession("alice"))
        assert (world.plan("a").attempt, world.plan("a").retries_left) == (2, 1)

    def test_attempts_are_bounded(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever was declared."""
        world.declare("a", retries=5)
        ask(world)
        monkeypatch.setattr(limits, "ATTEMPTS_MAX", 1)
        assert world.fail("a").state is PlanState.ERRORED

    def test_not_of_a_root(self, world: World) -> None:
        """Nobody declared any."""
        assert world.fail().state is PlanState.ERRORED


class TestCancel:
    """Down the tree, whatever is going on there."""

    def test_running_and_paused(self, world: World) -> None:
        """Who works, who is queued, and who stands still past its lease: all are cancelled, and no token is left."""
        world.declare("running", "paused", "queued", "between")
        running = world.execute("running")
        world.open("cs", "ctx", "running")
        world.start("paused", lease_ms=10)
        paused = world.lease("paused")
        world.start("between")
        world.complete("between")
        world.do(AdvancePlan("between", Phase.EXECUTE))
        world.now_ms += 20  # nobody has taken the lease back yet
        world.do(CancelPlan("plan", "enough"))
        for child in ("running", "paused", "queued", "between"):
            assert (world.plan(child).state, world.plan(child).lease) == (PlanState.CANCELLED, None)
        assert world.state.plans.next_expiry_ms is None
        world.refuse(FailPhase("running", Phase.EXECUTE, running, "late"), LeaseLost, "is over")
        world.refuse(FailPhase("paused", Phase.STRATEGIZE, paused, "late"), LeaseLost, "is over")
        world.now_ms += 10**9
        assert world.do(ExpireLeases()).plan_ids == ()
        assert ask(world) == ReadyStarted(None, is_over=True)
