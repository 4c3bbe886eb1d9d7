"""The end of an apply: proven and valid, constrained, or undone; whoever asks later is told the same."""

from __future__ import annotations

import pytest

from stepwell import limits
from stepwell.domain.plans.commands import (
    AdvancePlan,
    CompleteApply,
    ConstrainApply,
    CreateAction,
    DeclareSubplans,
    ForgetPlans,
    ListDecisions,
    ListPlans,
    RecordDecision,
    RevertPlan,
    RollBackPlan,
    SubplanSpec,
    UseAction,
)
from stepwell.domain.plans.model import Applied, Constrained, Phase, PlanState, RolledBack
from stepwell.domain.plans.validations import Validation, ValidationResult
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import (
    BrokenChain,
    Conflict,
    InvalidArgument,
    LeaseLost,
    NotFound,
    NotProven,
    NotValidated,
    PlanNotReady,
)
from tests.support.domain.world import LINKS, NOON_MS, World

TESTS = Validation("tests", ("pytest", "-q"))
LINT = Validation("lint", ("ruff",), required=False)
AFTER = {"a.py": digest_of(b"2"), "new.py": digest_of(b"n"), "gone.py": None}
BEFORE = {"a.py": digest_of(b"1"), "new.py": None, "gone.py": digest_of(b"g")}


def result(of: Validation, exit_code: int | None = 0) -> ValidationResult:
    return ValidationResult.of(of, exit_code, 17, b"said so")


@pytest.fixture
def world() -> World:
    """A plan with two validations whose changes are being applied."""
    world = World()
    world.do(CreateAction("act", "", "", "planner", "coder", validations=(TESTS,)))
    world.do(UseAction("plan", "act", LINKS, validations=(LINT,)))
    world.execute()
    world.do(RecordDecision("plan", "d1", world.lease(), "q", "c", checkpoint=True))
    world.do(RecordDecision("plan", "d2", world.lease(), "q", "c"))
    world.change("a.py", b"1", b"2")
    world.change("new.py", None, b"n")
    world.change("gone.py", b"g", None)
    world.complete()
    world.do(AdvancePlan("plan", Phase.APPLY))
    world.start()
    return world


def apply(world: World) -> None:
    world.do(CompleteApply("plan", world.lease(), AFTER, validations=(result(TESTS),), root="/tree"))


class TestValidations:
    """What has to pass before a plan is applied."""

    def test_declared(self, world: World) -> None:
        """The action's and then the plan's; a child has its action's only."""
        assert world.plan().validations == (TESTS, LINT)
        world.use("other", "act")
        world.execute("other")
        world.do(DeclareSubplans("other", world.lease("other"), (SubplanSpec("kid", "kid", "act"),)))
        assert world.plan("kid").validations == (TESTS,)

    def test_name_twice(self, world: World) -> None:
        """In an action, or in a plan of it."""
        twice = CreateAction("twice", "", "", "planner", "coder", validations=(TESTS, TESTS))
        world.refuse(twice, InvalidArgument, "two validations are called 'tests'")
        world.refuse(
            UseAction("new", "act", LINKS, validations=(TESTS,)), InvalidArgument, "two validations are called"
        )

    def test_kept(self, world: World) -> None:
        """What was run is kept with who applied it, when, where and how much."""
        results = (result(TESTS), result(LINT, 1))
        world.now_ms += 7
        plan = world.do(
            CompleteApply("plan", world.lease(), AFTER, validations=results, root="/tree"), session="alice"
        ).plan
        assert plan.applied == Applied(NOON_MS + 7, 1, "alice", 3, "/tree", results)
        assert (plan.state, plan.constrained, plan.rolled_back) == (PlanState.APPLIED, None, None)

    @pytest.mark.parametrize("results", [(), (result(TESTS, 1),), (result(TESTS, None), result(LINT))])
    def test_required(self, world: World, results: tuple[ValidationResult, ...]) -> None:
        """A required one that has no passing result stops it, whatever else is proven."""
        error = world.refuse(
            CompleteApply("plan", world.lease(), AFTER, validations=results),
            NotValidated,
            "the required validation 'tests' has not passed; undo what was applied, and call constrain_apply",
        )
        assert error.details == {"validations": ["tests"]}

    def test_of_another_plan(self, world: World) -> None:
        """Results are of what the plan declares."""
        other = (result(Validation("tests", ("true",))),)
        for command in (
            CompleteApply("plan", world.lease(), AFTER, validations=other),
            ConstrainApply("plan", world.lease(), "no", validations=other),
        ):
            world.refuse(command, InvalidArgument, "has no validation 'tests' with that command")

    def test_constrained(self, world: World) -> None:
        """The results are kept, past the revert, for whoever makes the next strategy; asking again gives the same."""
        failed = (result(TESTS, 1),)
        lease = world.lease()
        plan = world.do(ConstrainApply("plan", lease, "tests fail", validations=failed)).plan
        assert plan.constrained == Constrained(NOON_MS, 1, "alice", "tests fail", failed)
        world.now_ms += 1
        assert world.do(ConstrainApply("plan", lease, "something else")).plan == plan
        reverted = world.do(RevertPlan("plan", "another way")).plan
        assert (reverted.constrained, reverted.applied) == (plan.constrained, None)
        world.refuse(ConstrainApply("plan", lease, "late"), LeaseLost, "is over")


class TestRollBack:
    """What was applied is undone."""

    def test_rolled_back(self, world: World) -> None:
        """It stays applied, when and why it was undone is kept, and what it decided counts no longer."""
        apply(world)
        before = world.plan()
        world.now_ms += 5
        plan = world.do(RollBackPlan("plan", "it broke", BEFORE), session="bob").plan
        assert plan.rolled_back == RolledBack(NOON_MS + 5, "bob", "it broke", 3)
        assert (plan.position, plan.version, plan.times) == (before.position, before.version + 1, before.times)
        assert (plan.applied, plan.attempt) == (before.applied, before.attempt)
        decisions = world.do(ListDecisions("plan")).decisions
        assert [each.superseded_at_ms for each in decisions] == [NOON_MS + 5] * 2  # also what is behind a checkpoint

    def test_twice(self, world: World) -> None:
        """The second caller gets what the first got, and changes nothing."""
        apply(world)
        plan = world.do(RollBackPlan("plan", "it broke", BEFORE)).plan
        world.now_ms += 5
        assert world.do(RollBackPlan("plan", "me too", {}), session="bob").plan == plan

    def test_proof(self, world: World) -> None:
        """At every path, what was there before: also nothing."""
        apply(world)
        for proof, paths in (
            ({}, ["a.py", "gone.py", "new.py"]),
            (AFTER, ["a.py", "gone.py", "new.py"]),
            ({**BEFORE, "new.py": digest_of(b"n")}, ["new.py"]),
        ):
            error = world.refuse(RollBackPlan("plan", "", proof), NotProven, "not proven to be rolled back")
            assert error.details == {"paths": paths}

    def test_not_applied(self, world: World) -> None:
        """There is nothing to undo."""
        world.refuse(RollBackPlan("plan", "", BEFORE), PlanNotReady, "roll_back_plan is not legal .* apply/processing")

    def test_half_forgotten(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Half of a tree put back would be neither the one nor the other."""
        apply(world)
        monkeypatch.setattr(limits, "FORGOTTEN_ROWS_PER_STEP_MAX", 4)
        assert world.do(ForgetPlans(0, 0)).more
        world.refuse(RollBackPlan("plan", "", BEFORE), PlanNotReady, "is being forgotten: not all that it changed")

    def test_version_and_scope(self, world: World) -> None:
        """As for any other step."""
        apply(world)
        world.refuse(RollBackPlan("plan", "", BEFORE, 1), Conflict, "not 1: read it again")
        world.refuse(RollBackPlan("plan", "", BEFORE), NotFound, "no plan 'plan'", projects={"q"})

    def test_listed(self, world: World) -> None:
        """Those that were, those that were not, or all."""
        world.use("other")
        apply(world)
        world.do(RollBackPlan("plan", "", BEFORE))
        found = {
            rolled_back: [each.plan_id for each in world.do(ListPlans(rolled_back=rolled_back)).plans]
            for rolled_back in (True, False, None)
        }
        assert found == {True: ["plan"], False: ["other"], None: ["other", "plan"]}
        assert [each.rolled_back for each in world.do(ListPlans()).plans] == [False, True]


def test_broken_chain_is_not_applied() -> None:
    """What does not follow cannot be proven, whatever is in the tree."""
    world = World()
    world.use()
    world.execute()
    world.change("a.py", None, b"1", name="one")
    world.change("a.py", b"2", b"3", name="two")
    world.complete()
    world.do(AdvancePlan("plan", Phase.APPLY))
    error = world.refuse(
        CompleteApply("plan", world.start(), {"a.py": digest_of(b"3")}), BrokenChain, "the first is 'a.py'"
    )
    assert error.details == {"paths": ["a.py"]}
