"""Children: declared at once, begun in their turn, finished before their parent."""

import pytest

from stepwell import limits
from stepwell.domain.plans.commands import (
    AdvancePlan,
    CancelPlan,
    CompletePhase,
    CreateAction,
    DeclareSubplans,
    FailPhase,
    GetAction,
    RetryPlan,
    StartPhase,
    SubplanSpec,
)
from stepwell.domain.plans.model import (
    Argument,
    Child,
    Invariant,
    MergeStrategy,
    Phase,
    PlanState,
    ProjectLink,
    SubplanMode,
)
from stepwell.errors import (
    ActionUnavailable,
    AlreadyExists,
    Busy,
    InvalidArgument,
    LeaseLost,
    NotFound,
    OutOfScope,
    PlanNotReady,
)
from tests.support.domain.world import World


@pytest.fixture
def world() -> World:
    """A plan that executes."""
    world = World()
    world.action(invariants=("tests pass",))
    world.use()
    world.execute()
    return world


def child(name: str, action: str = "act", *needs: str) -> SubplanSpec:
    return SubplanSpec(name, name, action, depends_on=needs)


def start(name: str) -> StartPhase:
    return StartPhase(name, Phase.STRATEGIZE)


class TestDeclare:
    """All of them, once, in the order in which they will merge."""

    def test_children(self, world: World) -> None:
        """They are plans of their own that know their parent, and use what it uses unless told otherwise."""
        world.do(CreateAction("other", "{x}", "", "planner", "coder", arguments=(Argument(name="x"),)))
        specs = (
            child("b"),
            SubplanSpec("first", "a", "other", {"x": "y"}, (ProjectLink("q"),)),
        )
        plan = world.do(
            DeclareSubplans(
                "plan", world.lease(), specs, SubplanMode.SEQUENTIAL, 7, fail_fast=True, merge=MergeStrategy.LAST_WINS
            )
        ).plan
        assert plan.subplans is not None
        assert plan.subplans.children == (Child("b", "b"), Child("a", "first"))
        assert (plan.subplans.mode, plan.subplans.max_parallel) == (SubplanMode.SEQUENTIAL, 7)
        assert (plan.subplans.fail_fast, plan.subplans.merge) == (True, MergeStrategy.LAST_WINS)
        b, a = world.plan("b"), world.plan("a")
        assert (b.parent_plan_id, b.root_plan_id, b.depth, b.projects) == ("plan", "plan", 1, ("p",))
        assert (a.action_name, a.arguments, a.description, a.projects) == ("local/other", {"x": "y"}, "y", ("q",))
        assert b.invariants == (Invariant("tests pass", "action"), Invariant("tests pass", "action"))
        assert b.state is PlanState.QUEUED

    def test_uses_are_counted(self, world: World) -> None:
        """Each child is a use."""
        world.declare("a", "b", "c")
        assert world.do(GetAction("act")).action.uses == 4

    def test_once(self, world: World) -> None:
        """A second declaration is refused."""
        world.declare("a")
        error = world.refuse(
            DeclareSubplans("plan", world.lease(), (child("b"),)), AlreadyExists, "has its children already"
        )
        assert error.details == {"plan_id": "plan"}

    def test_while_executing(self, world: World) -> None:
        """Neither before nor without the lease."""
        world.refuse(DeclareSubplans("plan", None, (child("a"),)), LeaseLost, "pass lease=")
        world.use("early")
        token = world.start("early")
        world.refuse(
            DeclareSubplans("early", token, (child("a"),)), PlanNotReady, "children are declared while it executes"
        )

    @pytest.mark.parametrize(
        "specs, mode, message",
        [
            ((child("a"), SubplanSpec("a", "b", "act")), SubplanMode.PARALLEL, "the same alias"),
            ((child("a"), SubplanSpec("b", "a", "act")), SubplanMode.PARALLEL, "the same plan_id"),
            ((child("a"), child("b", "act", "a")), SubplanMode.PARALLEL, "needs mode='dependency_ordered'"),
            ((child("a"), child("b", "act", "a")), SubplanMode.SEQUENTIAL, "needs mode='dependency_ordered'"),
            (
                (child("a", "act", "z"),),
                SubplanMode.DEPENDENCY_ORDERED,
                "'a' depends on 'z', which is not declared",
            ),
            ((child("a", "act", "a"),), SubplanMode.DEPENDENCY_ORDERED, "the children a depend on .* in a cycle"),
            (
                (child("a"), child("b", "act", "d"), child("c", "act", "b"), child("d", "act", "c", "a")),
                SubplanMode.DEPENDENCY_ORDERED,
                "the children b, c, d depend on each other in a cycle",
            ),
        ],
    )
    def test_contradictions(
        self, world: World, specs: tuple[SubplanSpec, ...], mode: SubplanMode, message: str
    ) -> None:
        """A family that could never run is refused when it is declared."""
        world.refuse(DeclareSubplans("plan", world.lease(), specs, mode), InvalidArgument, message)

    def test_bad_child_spoils_all(self, world: World) -> None:
        """A taken id, an unknown action, a project twice or out of scope: none of the children is born."""
        world.use("taken")
        twice = (ProjectLink("p"), ProjectLink("p"))
        lease = world.lease()
        for spec, kind, message in (
            (SubplanSpec("b", "taken", "act"), AlreadyExists, "plan 'taken' exists already"),
            (SubplanSpec("b", "plan", "act"), AlreadyExists, "plan 'plan' exists already"),
            (child("b", "unknown"), NotFound, "create it first"),
            (SubplanSpec("b", "b", "act", {"x": 1}), InvalidArgument, "has no argument 'x'"),
            (SubplanSpec("b", "b", "act", project_links=twice), InvalidArgument, "named twice"),
        ):
            world.refuse(DeclareSubplans("plan", lease, (child("a"), spec)), kind, message)
        spec = SubplanSpec("b", "b", "act", project_links=(ProjectLink("q"),))
        world.refuse(DeclareSubplans("plan", lease, (spec,)), OutOfScope, "'q' is not in", projects={"p"})

    def test_spent_action(self, world: World) -> None:
        """Two children cannot share what may be used once."""
        world.action("single", reusable=False)
        specs = (child("a", "single"), child("b", "single"))
        world.refuse(
            DeclareSubplans("plan", world.lease(), specs), ActionUnavailable, "not reusable: only one child can use it"
        )
        world.do(DeclareSubplans("plan", world.lease(), specs[:1]))

    def test_depth(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Families go so deep and no deeper."""
        monkeypatch.setattr(limits, "SUBPLAN_DEPTH_MAX", 1)
        world.declare("a")
        world.execute("a")
        world.refuse(
            DeclareSubplans("a", world.lease("a"), (child("b"),)), PlanNotReady, "is 1 levels deep, the most that is"
        )

    def test_size_of_a_tree(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """All of a tree can be cancelled in one step."""
        monkeypatch.setattr(limits, "PLANS_PER_TREE_MAX", 3)
        specs = tuple(map(child, "abc"))
        world.refuse(DeclareSubplans("plan", world.lease(), specs), PlanNotReady, "would have 4 plans, at most 3")
        world.declare("a", "b")
        world.execute("a")
        world.refuse(DeclareSubplans("a", world.lease("a"), specs[2:]), PlanNotReady, "would have 4 plans")

    def test_number_of_plans(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """A family does not overrun the bound on all plans."""
        monkeypatch.setattr(limits, "PLANS_MAX", 2)
        specs = tuple(map(child, "ab"))
        world.refuse(
            DeclareSubplans("plan", world.lease(), specs),
            Busy,
            "^there would be more than the 2 plans that are allowed: end some",
        )
        world.declare("a")


class TestTurn:
    """A child begins when it is its turn."""

    def test_sequential(self, world: World) -> None:
        """One after the other; a cancelled one is out of the way."""
        world.declare("a", "b", "c", mode=SubplanMode.SEQUENTIAL)
        error = world.refuse(start("b"), PlanNotReady, "it comes after 'a', which is strategize/queued")
        assert error.details == {"plan_id": "a"}
        world.execute("a")
        world.refuse(start("b"), PlanNotReady, "it comes after 'a', which is execute/processing")
        world.complete("a")
        world.refuse(start("c"), PlanNotReady, "it comes after 'b'")
        world.do(CancelPlan("b"))
        world.start("c")

    def test_parallel(self, world: World) -> None:
        """A cap on how many run, not on how many there are; who has a strategy keeps its place."""
        world.declare("a", "b", "c", max_parallel=2)
        world.start("c")
        world.start("a")
        world.refuse(start("b"), PlanNotReady, "2 siblings are running already, which is max_parallel")
        world.complete("c")
        world.refuse(start("b"), PlanNotReady, "which is max_parallel")
        world.do(CancelPlan("a"))
        world.start("b")

    def test_who_failed_gives_up_its_place(self, world: World) -> None:
        """The others go on without it; and it, when it is retried, as soon as there is a place again."""
        world.declare("a", "b", "c", max_parallel=1)
        world.execute("a")
        world.fail("a")
        world.start("b")
        world.do(RetryPlan("a"))
        again = StartPhase("a", Phase.EXECUTE)
        world.refuse(again, PlanNotReady, "1 sibling is running already, which is max_parallel")
        world.do(CancelPlan("b"))
        world.refuse(start("c"), PlanNotReady, "which is max_parallel")  # the place is kept for who has begun
        world.do(again)

    def test_dependency_ordered(self, world: World) -> None:
        """What it depends on first, and then a place."""
        world.declare(
            "a",
            "b",
            "c",
            mode=SubplanMode.DEPENDENCY_ORDERED,
            max_parallel=1,
            needs={"a": ("b", "c")},
        )
        world.refuse(start("a"), PlanNotReady, "it depends on 'b', which is strategize/queued")
        world.execute("b")
        world.refuse(start("c"), PlanNotReady, "which is max_parallel")
        world.complete("b")
        world.refuse(start("a"), PlanNotReady, "it depends on 'c'")
        world.finish("c")
        world.start("a")

    def test_cancelled_dependency_is_not_there(self, world: World) -> None:
        """What one depends on has to have executed: to be out of the way is enough in a sequence only."""
        world.declare("a", "b", "c", mode=SubplanMode.DEPENDENCY_ORDERED, needs={"b": ("a",)})
        world.do(CancelPlan("a"))
        error = world.refuse(start("b"), PlanNotReady, "it depends on 'a', which is strategize/cancelled$")
        assert error.details == {"plan_id": "a"}
        world.start("c")
        world.do(CancelPlan("b"))

    @pytest.mark.parametrize("kind", [FailPhase, CancelPlan])
    def test_dependency_that_ended_while_executing(self, world: World, kind: type) -> None:
        """Having begun to execute is not to have executed."""
        world.declare("a", "b", mode=SubplanMode.DEPENDENCY_ORDERED, needs={"b": ("a",)})
        token = world.execute("a")
        world.do(FailPhase("a", Phase.EXECUTE, token, "x") if kind is FailPhase else CancelPlan("a"))
        world.refuse(start("b"), PlanNotReady, "it depends on 'a', which is execute/(errored|cancelled)$")

    def test_later_phases_need_no_turn(self, world: World) -> None:
        """A child that has begun keeps its place through its phases."""
        world.declare("a", max_parallel=1)
        world.execute("a")

    def test_parent_has_to_execute(self, world: World) -> None:
        """Nobody works for a parent that has stopped."""
        world.declare("a")
        world.fail()
        world.refuse(start("a"), PlanNotReady, "its parent 'plan' is execute/errored, not executing")

    def test_parent_waits_for_its_children(self, world: World) -> None:
        """An unstarted child is not reported complete."""
        world.declare("a", "b")
        complete = CompletePhase("plan", Phase.EXECUTE, world.lease())
        error = world.refuse(complete, PlanNotReady, "child 'a' is strategize/queued: let it finish, or cancel it")
        assert error.details == {"plan_id": "a"}
        world.finish("a")
        world.refuse(complete, PlanNotReady, "child 'b'")
        world.do(CancelPlan("b"))
        world.do(complete)

    def test_child_is_applied_with_its_parent(self, world: World) -> None:
        """It has no apply phase of its own."""
        world.declare("a")
        world.finish("a")
        world.refuse(AdvancePlan("a", Phase.APPLY), PlanNotReady, "is a child: what it changed is applied with its")


class TestFailFast:
    """The first that fails takes its unfinished siblings along."""

    def test_on(self, world: World) -> None:
        """Queued ones are cancelled, running ones lose their token, finished ones stay."""
        world.declare("bad", "queued", "running", "done", fail_fast=True)
        world.finish("done")
        token = world.execute("running")
        world.open("cs", "ctx", "running")
        world.start("bad")
        plan = world.fail("bad")
        assert plan.state is PlanState.ERRORED
        for name in ("queued", "running"):
            assert world.plan(name).state is PlanState.CANCELLED
            assert world.plan(name).errors[-1].message == "fail_fast: sibling bad failed"
        assert world.plan("done").state is PlanState.COMPLETE
        world.refuse(FailPhase("running", Phase.EXECUTE, token, "x"), LeaseLost, "is over")

    def test_off(self, world: World) -> None:
        """By default the others go on."""
        world.declare("bad", "good")
        world.start("bad")
        world.fail("bad")
        assert world.plan("good").state is PlanState.QUEUED

    def test_plan_without_siblings(self, world: World) -> None:
        """A root fails alone, and its own children are not its siblings."""
        world.declare("a")
        world.start("a")
        world.fail()
        assert world.plan("a").state is PlanState.PROCESSING
