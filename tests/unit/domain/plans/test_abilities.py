"""Children by ability: an agent is offered what it can do, told if there will be nothing, and no child is held back."""

from __future__ import annotations

import pytest

from stepwell import limits
from stepwell.domain.plans.abilities import Abilities, LimitedAgent, canonical_abilities
from stepwell.domain.plans.commands import (
    BeginPlan,
    CompletePhase,
    DeclareSubplans,
    EndSession,
    FailPhase,
    ListPlans,
    RetryPlan,
    StartReady,
    SubplanSpec,
    UseAction,
)
from stepwell.domain.plans.model import Phase, PlanState, ProjectLink, SubplanMode
from stepwell.domain.replies import ReadyStarted
from stepwell.errors import InvalidArgument
from tests.support.domain.world import LINKS, World

NOTHING_NOW = ReadyStarted(None, is_over=False)
FOR_OTHERS = ReadyStarted(None, is_over=False, is_for_others=True)


@pytest.fixture
def world() -> World:
    """A plan that executes."""
    world = World()
    world.use()
    world.execute()
    return world


def ask(
    world: World,
    session: str = "alice",
    *,
    straight: bool = True,
    actors: tuple[str, ...] | None = None,
    labels: tuple[str, ...] | None = None,
    read_only: bool | None = None,
) -> ReadyStarted:
    return world.do(StartReady("plan", limits.LEASE_MS, straight, actors, labels, read_only), session=session)


def given(
    world: World,
    session: str = "alice",
    *,
    straight: bool = True,
    actors: tuple[str, ...] | None = None,
    labels: tuple[str, ...] | None = None,
    read_only: bool | None = None,
) -> str | None:
    reply = ask(world, session, straight=straight, actors=actors, labels=labels, read_only=read_only)
    return reply.plan.plan_id if reply.plan else None


def fail(world: World, plan_id: str, session: str) -> None:
    world.do(FailPhase(plan_id, Phase.EXECUTE, world.lease(plan_id), "no"), session=session)


class TestLabels:
    """All labels of a child have to be among those of the agent."""

    def test_plan_keeps_a_set(self, world: World) -> None:
        """Each once and in order, whatever was given; the children have their own only."""
        world.do(UseAction("u", "act", LINKS, labels=("b", "a", "b")))
        world.do(BeginPlan("v", "act", LINKS, labels=("c",)))
        world.declare("child", plan_id="v")
        assert [world.plan(each).labels for each in ("u", "v", "child", "plan")] == [("a", "b"), ("c",), (), ()]

    @pytest.mark.parametrize(
        "labels, expected",
        [
            (None, ["both", "gpu", "none"]),
            (("gpu", "python", "other"), ["both", "gpu", "none"]),
            (("gpu",), ["gpu", "none"]),
            (("python",), ["none"]),
            ((), ["none"]),
        ],
    )
    def test_who_is_offered_what(self, world: World, labels: tuple[str, ...] | None, expected: list[str]) -> None:
        """In declared order; what the agent cannot do is left, and takes no place."""
        world.declare("both", "gpu", "none", max_parallel=3, labels={"both": ("python", "gpu"), "gpu": ("gpu",)})
        assert [given(world, labels=labels) for _ in expected] == expected
        assert given(world, "bob") == (None if len(expected) == 3 else "both")

    def test_started_by_its_id(self, world: World) -> None:
        """Labels are for those who ask for any child; a caller that names one knows what it does."""
        world.declare("a", labels={"a": ("gpu",)})
        world.start("a")
        assert world.plan("a").state is PlanState.PROCESSING

    def test_listed(self, world: World) -> None:
        """By one of their labels, with all of them."""
        world.declare("a", "b", labels={"a": ("gpu", "x"), "b": ("x",)})
        found = {label: world.do(ListPlans(label=label)).plans for label in ("gpu", "x", "none")}
        assert {label: [(each.plan_id, each.labels) for each in plans] for label, plans in found.items()} == {
            "gpu": [("a", ("gpu", "x"))],
            "x": [("a", ("gpu", "x")), ("b", ("x",))],
            "none": [],
        }


class TestActors:
    """The actor of the phase that would start."""

    @pytest.fixture
    def world(self) -> World:
        """Children of an action whose actors differ."""
        world = World()
        world.use()
        world.execute()
        world.action("other", actors=("thinker", "doer"))
        children = (SubplanSpec("a", "a", "act"), SubplanSpec("o", "o", "other"))
        world.do(DeclareSubplans("plan", world.lease(), children))
        return world

    def test_strategize(self, world: World) -> None:
        assert [given(world, straight=False, actors=("thinker",)) for _ in range(2)] == ["o", None]
        assert given(world, straight=False, actors=("local/planner", "thinker")) == "a"

    def test_straight(self, world: World) -> None:
        """A child that has no strategy of its own is executed, and so it is for the executing actor."""
        assert given(world, actors=("thinker",)) is None
        assert given(world, actors=("doer",)) == "o"

    def test_each_phase_by_its_actor(self, world: World) -> None:
        """One finds the strategy; another one, who was told to wait, executes it."""
        assert ask(world, "bob", straight=False, actors=("doer",)) == NOTHING_NOW
        assert given(world, straight=False, actors=("thinker",)) == "o"
        assert ask(world, "bob", straight=False, actors=("doer",)) == NOTHING_NOW
        world.do(CompletePhase("o", Phase.STRATEGIZE, world.lease("o")))
        assert ask(world, straight=False, actors=("thinker",)) == FOR_OTHERS, "its part is done"
        reply = ask(world, "bob", straight=False, actors=("doer",))
        assert reply.plan is not None
        assert (reply.plan.plan_id, str(reply.plan.position)) == ("o", "execute/processing")

    def test_names(self, world: World) -> None:
        """In any spelling; a malformed one is refused, and so is an empty set, which could do nothing."""
        world.refuse(StartReady("plan", actors=("No Body",)), InvalidArgument, "actor 'No Body' is not")
        assert canonical_abilities(("b", "local/a", "a"), ("y", "x", "y"), read_only=None) == Abilities(
            ("local/a", "local/b"), ("x", "y")
        )


class TestReadOnly:
    @pytest.mark.parametrize(
        "read_only, expected", [(None, ["r", "w"]), (True, ["r"]), (False, ["w"])], ids=["any", "reads", "writes"]
    )
    def test_who_is_offered_what(self, world: World, *, read_only: bool | None, expected: list[str]) -> None:
        """Whether by the action, by the projects or by the parent."""
        reading = SubplanSpec("r", "r", "act", project_links=(ProjectLink("p", read_only=True),))
        world.do(DeclareSubplans("plan", world.lease(), (reading, SubplanSpec("w", "w", "act"))))
        assert [given(world, read_only=read_only) for _ in expected] == expected
        left = ask(world, read_only=read_only)
        assert (left.plan, left.is_for_others) == (None, False), "what it works on may come back to it"


class TestNothingForMe:
    """An agent is told if it is of no use any more: then it need not wait."""

    def test_only_others_can(self, world: World) -> None:
        """Not over, and not worth waiting; somebody who comes later does it."""
        world.declare("a", labels={"a": ("gpu",)})
        assert ask(world, labels=()) == FOR_OTHERS
        assert given(world, "bob", labels=("gpu",)) == "a"
        assert ask(world, labels=()) == FOR_OTHERS
        world.do(CompletePhase("a", Phase.EXECUTE, world.lease("a")), session="bob")
        assert ask(world, labels=()) == ReadyStarted(None, is_over=True)

    def test_mine_is_in_other_hands(self, world: World) -> None:
        """It may come back, so it is worth waiting."""
        world.declare("mine", "theirs", labels={"theirs": ("gpu",)})
        assert given(world, "bob") == "mine"
        assert ask(world, labels=()) == NOTHING_NOW
        world.do(EndSession("bob"))
        assert given(world, labels=()) == "mine"

    def test_mine_comes_behind_theirs(self, world: World) -> None:
        """However long nobody can do what is before it."""
        world.declare("theirs", "mine", mode=SubplanMode.SEQUENTIAL, labels={"theirs": ("gpu",)})
        assert ask(world, labels=()) == NOTHING_NOW
        assert given(world, "bob", labels=("gpu",)) == "theirs"
        world.complete("theirs")
        assert given(world, labels=()) == "mine"

    def test_failed_ones_are_not_left(self, world: World) -> None:
        """Without an intervention they do not come back, and after one they do."""
        world.declare("mine", "theirs", labels={"theirs": ("gpu",)})
        assert given(world, labels=()) == "mine"
        world.fail("mine")
        assert ask(world, labels=()) == ReadyStarted(None, is_over=False, errored=("mine",), is_for_others=True)
        world.do(RetryPlan("mine"))
        assert given(world, labels=()) == "mine"

    def test_out_of_scope(self, world: World) -> None:
        """A scope is an ability that a session cannot get."""
        world.do(
            DeclareSubplans("plan", world.lease(), (SubplanSpec("q", "q", "act", project_links=(ProjectLink("q"),)),))
        )
        assert world.do(StartReady("plan"), projects={"p"}) == FOR_OTHERS
        assert world.do(StartReady("plan"), projects={"p", "q"}).plan is not None

    def test_not_declared_yet(self, world: World) -> None:
        """Whatever it may be, it is worth waiting for."""
        assert ask(world, labels=(), actors=("nobody",)) == NOTHING_NOW


class TestFairness:
    """A child that an agent failed is left to others first, if they can do it."""

    def failed(self, world: World, other: StartReady) -> str | None:
        """What the agent that has failed a child is offered, beside another one that waits."""
        world.declare("a", "b", retries=9, labels={"a": ("gpu",)})
        assert given(world, labels=("gpu",)) == "a"
        assert world.do(other, session="bob").plan is not None
        fail(world, "a", "alice")
        return given(world, labels=("gpu",))

    @pytest.mark.parametrize(
        "other", [StartReady("plan", labels=("python",)), StartReady("plan", actors=("planner",))], ids=repr
    )
    def test_others_cannot(self, world: World, other: StartReady) -> None:
        """It gets the child at once: to wait for them would be of no use."""
        assert self.failed(world, other) == "a"

    @pytest.mark.parametrize(
        "other",
        [StartReady("plan"), StartReady("plan", labels=("gpu", "x")), StartReady("plan", read_only=False)],
        ids=repr,
    )
    def test_others_can(self, world: World, other: StartReady) -> None:
        """They have a head start, which ends."""
        assert self.failed(world, other) is None
        world.now_ms += limits.RETRY_HEAD_START_MS
        assert given(world, labels=("gpu",)) == "a"

    def test_other_that_has_left(self, world: World) -> None:
        """One that was told that all is for others waits no more, and is not remembered."""
        world.declare("a", retries=9, labels={"a": ("gpu",)})
        assert ask(world, "bob", labels=()) == FOR_OTHERS
        subplans = world.plan().subplans
        assert subplans is not None
        assert (subplans.agents, subplans.limited) == ((), ())

    def test_what_is_remembered(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """The latest, each with each of its abilities; it is no other version of the plan."""
        monkeypatch.setattr(limits, "LIMITED_AGENTS_MAX", 2)
        world.declare("a", "b", max_parallel=1)
        version = world.plan().version
        for session, labels in (("alice", ("x",)), ("alice", ("y", "x")), ("bob", ()), ("bob", ())):
            ask(world, session, labels=labels)
        plan = world.plan()
        assert plan.subplans is not None
        assert plan.subplans.limited == (
            LimitedAgent("alice", Abilities(labels=("x", "y")), straight=True),
            LimitedAgent("bob", Abilities(labels=()), straight=True),
        )
        assert plan.version == version
