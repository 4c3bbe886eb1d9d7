"""The queue of a tree: turns by priority and age, and no caller that is gone in the way of the others."""

from __future__ import annotations

import pytest

from stepwell import limits
from stepwell.domain.applies.commands import GetApplyQueue, JoinApplyQueue, LeaveApplyQueue
from stepwell.domain.event_builder import events_of
from stepwell.domain.events import ApplyPlaceChanged
from stepwell.domain.machine import apply as apply_command
from stepwell.domain.plans.commands import (
    AdvancePlan,
    CancelPlan,
    CompleteApply,
    ConstrainApply,
    EndSession,
    ExpireLeases,
    FailPhase,
    KeepLeases,
    RetryPlan,
    RevertPlan,
    StartPhase,
)
from stepwell.domain.plans.model import Phase
from stepwell.domain.replies import ApplyQueued
from stepwell.errors import AlreadyExists, Busy, NotFound, PlanNotReady, TreeQueued
from tests.support.domain.world import World

TREE, OTHER = "/live/shop", "/live/docs"


@pytest.fixture
def world() -> World:
    """Plans that are ready to be applied."""
    world = World()
    for plan_id in "abcd":
        world.use(plan_id)
        world.finish(plan_id)
        world.do(AdvancePlan(plan_id, Phase.APPLY))
    return world


def join(world: World, plan_id: str, priority: int = 0, *, tree: str = TREE, ticket: str = "") -> ApplyQueued:
    """By a session of its own; the ticket has the plan's name, in capitals."""
    command = JoinApplyQueue(ticket or plan_id.upper(), plan_id, tree, priority)
    return world.do(command, session=f"session-{plan_id}")


def start(world: World, plan_id: str, tree: str = TREE) -> int:
    world.do(StartPhase(plan_id, Phase.APPLY, tree=tree), session=f"session-{plan_id}")
    return world.lease(plan_id)


def finish(world: World, plan_id: str) -> None:
    world.do(CompleteApply(plan_id, world.lease(plan_id), {}), session=f"session-{plan_id}")


def queue(world: World, tree: str = TREE) -> list[tuple[int, str]]:
    return [(each.place, each.plan_id) for each in world.do(GetApplyQueue(tree)).tickets]


class TestOrder:
    def test_by_age(self, world: World) -> None:
        """Each is told its place, and how many there are."""
        found = [join(world, plan_id) for plan_id in "bac"]
        assert [(each.place, each.plans, each.applying) for each in found] == [(1, 1, None), (2, 2, None), (3, 3, None)]
        assert queue(world) == [(1, "b"), (2, "a"), (3, "c")]

    def test_by_priority(self, world: World) -> None:
        """Then by age; whoever comes later with a higher one goes before those that wait."""
        for plan_id, priority in (("a", 0), ("b", 5), ("c", -1), ("d", 5)):
            join(world, plan_id, priority)
        assert queue(world) == [(1, "b"), (2, "d"), (3, "a"), (4, "c")]

    def test_what_is_being_applied_stays_first(self, world: World) -> None:
        """Whatever comes; and the others are told which plan it is."""
        join(world, "a")
        start(world, "a")
        found = join(world, "b", 100)
        assert (found.place, found.plans, found.applying) == (2, 2, "a")
        finish(world, "a")
        assert queue(world) == [(1, "b")]

    def test_trees_have_queues_of_their_own(self, world: World) -> None:
        join(world, "a")
        assert join(world, "b", tree=OTHER).place == 1
        assert (queue(world), queue(world, OTHER)) == ([(1, "a")], [(1, "b")])

    def test_two_callers_of_one_plan(self, world: World) -> None:
        """They have one place; with its better priority. Both end with the plan."""
        join(world, "b")
        join(world, "a")
        assert world.do(JoinApplyQueue("A2", "a", TREE, 1), session="other").place == 1
        assert queue(world) == [(1, "a"), (1, "a"), (2, "b")]
        start(world, "a")
        assert queue(world) == [(1, "a"), (1, "a"), (2, "b")]
        finish(world, "a")
        assert queue(world) == [(1, "b")]

    def test_asked_again(self, world: World) -> None:
        """The place stays, and a turn that has come gets more time."""
        join(world, "a")
        join(world, "b")
        world.now_ms += 1_000
        assert join(world, "b").ticket.turn_until_ms is None
        assert join(world, "a").ticket.turn_until_ms == world.now_ms + limits.APPLY_TURN_MS
        assert queue(world) == [(1, "a"), (2, "b")]


class TestOvertaking:
    """A plan that names the tree does not start before those that wait for it."""

    def test_refused(self, world: World) -> None:
        join(world, "a")
        join(world, "b")
        error = world.refuse(StartPhase("c", Phase.APPLY, tree=TREE), TreeQueued, "would be number 3: join the queue")
        assert error.details == {"tree": TREE, "place": 3, "plans": 2, "first_plan_id": "a"}
        error = world.refuse(StartPhase("b", Phase.APPLY, tree=TREE), TreeQueued, "would be number 2")
        assert isinstance(error, Busy)

    def test_out_of_sight(self, world: World) -> None:
        """A plan of another project is counted, and not named."""
        world.use("q", project="q")
        world.finish("q")
        world.do(AdvancePlan("q", Phase.APPLY))
        join(world, "q")
        command = StartPhase("a", Phase.APPLY, tree=TREE)
        error = world.refuse(command, TreeQueued, "1 plan is in the queue", projects={"p"})
        assert (error.details["first_plan_id"], error.details["place"]) == (None, 2)
        found = world.do(GetApplyQueue(TREE), projects={"p"})
        assert (found.tickets, found.plans, found.at_work) == ((), 1, 0)
        start(world, "q")
        assert world.do(JoinApplyQueue("A", "a", TREE), projects={"p"}).applying is None
        assert world.do(LeaveApplyQueue("Q"), projects={"p"}).ticket is None

    def test_without_a_queue(self, world: World) -> None:
        """It starts, and others that come see what they wait for."""
        start(world, "a")
        assert (join(world, "b").applying, queue(world)) == ("a", [(1, "a"), (2, "b")])
        found = world.do(GetApplyQueue(TREE))
        assert (found.plans, found.at_work) == (2, 1)

    def test_beside_one_that_is_being_applied(self, world: World) -> None:
        """The caller has the tree's lock, so that the other one is not at work any more: its lease may last."""
        start(world, "a")
        start(world, "b")
        assert queue(world) == [(1, "a"), (2, "b")]
        finish(world, "a")
        assert queue(world) == [(1, "b")]

    def test_tree_that_is_not_named(self, world: World) -> None:
        """Nothing is compared, as for other trees; the plan waits nowhere any more."""
        for plan_id in "ab":
            join(world, plan_id)
        world.do(StartPhase("b", Phase.APPLY))
        start(world, "c", OTHER)
        assert (queue(world), queue(world, OTHER)) == ([(1, "a")], [(1, "c")])

    def test_at_another_tree(self, world: World) -> None:
        """A plan is applied to one tree: its ticket at the other one ends."""
        join(world, "a")
        join(world, "b")
        join(world, "a", tree=OTHER, ticket="A2")
        start(world, "a", OTHER)
        assert (queue(world), queue(world, OTHER)) == ([(1, "b")], [(1, "a")])


class TestEnds:
    """A ticket ends in the step that takes its reason away."""

    @pytest.fixture
    def world(self, world: World) -> World:
        """The first applies, and the others wait."""
        for plan_id in "abc":
            join(world, plan_id)
        start(world, "a")
        return world

    def test_applied(self, world: World) -> None:
        finish(world, "a")
        assert queue(world) == [(1, "b"), (2, "c")]

    def test_constrained(self, world: World) -> None:
        world.do(ConstrainApply("a", world.lease("a"), "no"))
        assert queue(world) == [(1, "b"), (2, "c")]

    def test_failed_and_retried(self, world: World) -> None:
        """It comes back behind the others."""
        world.do(FailPhase("a", Phase.APPLY, world.lease("a"), "no"))
        assert queue(world) == [(1, "b"), (2, "c")]
        world.do(RetryPlan("a"))
        join(world, "a")
        assert queue(world) == [(1, "b"), (2, "c"), (3, "a")]

    def test_cancelled_while_it_waits(self, world: World) -> None:
        world.do(CancelPlan("b"))
        assert queue(world) == [(1, "a"), (2, "c")]

    def test_reverted_while_it_waits(self, world: World) -> None:
        world.do(RevertPlan("c", "again"))
        assert queue(world) == [(1, "a"), (2, "b")]

    @pytest.mark.parametrize("session, left", [("a", "bc"), ("b", "ac"), ("c", "ab")])
    def test_session_ends(self, world: World, session: str, left: str) -> None:
        world.do(EndSession(f"session-{session}"))
        assert queue(world) == [(1, left[0]), (2, left[1])]

    def test_lease_expires(self, world: World) -> None:
        """The session that did not renew it has lost its place; another caller of the plan has not."""
        world.do(JoinApplyQueue("B2", "b", TREE, 3), session="other")
        finish(world, "a")
        start(world, "b")
        world.now_ms += limits.LEASE_MS
        world.do(ExpireLeases())
        assert queue(world) == [(1, "b"), (2, "c")]
        assert [each.ticket_id for each in world.state.tickets.of_plan("b")] == ["B2"]
        assert world.state.tickets.rows["B2"].turn_until_ms == world.now_ms + limits.APPLY_TURN_MS

    def test_turn_is_not_used(self, world: World) -> None:
        """A caller that is stopped when its turn comes loses it; a caller that waits need not do anything."""
        finish(world, "a")
        assert world.state.next_expiry_ms == world.now_ms + limits.APPLY_TURN_MS
        world.now_ms += limits.APPLY_TURN_MS - 1
        world.do(ExpireLeases())
        assert queue(world) == [(1, "b"), (2, "c")]
        world.now_ms += 1
        world.do(ExpireLeases())
        assert queue(world) == [(1, "c")]
        assert join(world, "b").place == 2, "it comes back behind the others"

    def test_turn_after_a_restart(self, world: World) -> None:
        """While no manager ran, no caller could begin."""
        finish(world, "a")
        until_ms = world.now_ms + 10 * limits.APPLY_TURN_MS
        world.do(KeepLeases(world.now_ms, until_ms), session="manager")
        assert world.state.tickets.next_expiry_ms == until_ms
        world.now_ms = until_ms
        world.do(ExpireLeases())
        assert queue(world) == [(1, "c")]

    def test_caller_leaves(self, world: World) -> None:
        """Once; leaving again is no error."""
        left = world.do(LeaveApplyQueue("B")).ticket
        assert left is not None
        assert (left.plan_id, queue(world)) == ("b", [(1, "a"), (2, "c")])
        assert world.do(LeaveApplyQueue("B")).ticket is None

    def test_no_tickets_are_left(self, world: World) -> None:
        for plan_id in "abc":
            world.do(EndSession(f"session-{plan_id}"))
        table = world.state.tickets
        assert (table.rows, table.by_tree, table.by_plan, table.by_session, [*table.by_turn]) == ({}, {}, {}, {}, [])

    def test_undone(self, world: World) -> None:
        """A transaction that ends a ticket and then fails has ended none."""
        world.abort([CancelPlan("b"), LeaveApplyQueue("C"), CancelPlan("nobody")])
        assert queue(world) == [(1, "a"), (2, "b"), (3, "c")]


class TestRefusals:
    @pytest.mark.parametrize("phase", [Phase.STRATEGIZE, Phase.EXECUTE])
    def test_plan_that_is_not_ready(self, world: World, phase: Phase) -> None:
        world.use("early")
        if phase is Phase.EXECUTE:
            world.finish("early")
        world.refuse(
            JoinApplyQueue("E", "early", TREE), PlanNotReady, "a plan waits for its turn while it is apply/queu"
        )

    def test_plan_that_is_being_applied(self, world: World) -> None:
        """By another process: the caller waits for the end of that."""
        start(world, "a")
        world.refuse(JoinApplyQueue("A", "a", TREE), PlanNotReady, "apply/processing")

    def test_unknown(self, world: World) -> None:
        world.refuse(JoinApplyQueue("E", "nobody", TREE), NotFound, "no plan 'nobody'")
        world.refuse(JoinApplyQueue("A", "a", TREE), NotFound, "no plan 'a'", projects={"q"})

    def test_ticket_of_another(self, world: World) -> None:
        join(world, "a")
        world.refuse(JoinApplyQueue("A", "a", OTHER), AlreadyExists, "ticket 'A' exists")
        world.refuse(JoinApplyQueue("A", "a", TREE), AlreadyExists, "ticket 'A' exists", session="other")

    @pytest.mark.parametrize(
        "limit, advice",
        [
            ("APPLY_QUEUE_MAX", "1 callers wait for '/live/shop' already"),
            ("APPLY_TICKETS_PER_SESSION_MAX", "1 applies of this session wait already"),
            ("APPLY_TICKETS_MAX", "1 applies wait already"),
        ],
    )
    def test_bounds(self, world: World, monkeypatch: pytest.MonkeyPatch, limit: str, advice: str) -> None:
        monkeypatch.setattr(limits, limit, 1)
        join(world, "a")
        world.refuse(JoinApplyQueue("B", "b", TREE), Busy, advice, session="session-a")
        assert join(world, "a").place == 1


def test_events(world: World) -> None:
    """Each caller is told its place, and when it changes, in the scope of its plan; others are told nothing."""
    for plan_id in "ab":
        join(world, plan_id)
    start(world, "a")
    outcome = apply_command(world.state, CompleteApply("a", world.lease("a"), {}), world.origin("session-a"))
    events = events_of(outcome.changes, outcome.revision, world.now_ms, lambda _: ("p",))
    assert [each for each in events if isinstance(each, ApplyPlaceChanged)] == [
        ApplyPlaceChanged(outcome.revision, world.now_ms, "a", ("p",), "A", TREE, 0, None),
        ApplyPlaceChanged(outcome.revision, world.now_ms, "b", ("p",), "B", TREE, 0, 1),
    ]
