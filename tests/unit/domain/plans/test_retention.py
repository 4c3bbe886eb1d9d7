"""Plans that are over are forgotten: whole trees, in order of their end, a bounded number of rows at a time."""

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain import machine
from stepwell.domain.changesets.commands import GetChangeset, ListChangesets, ListEntries
from stepwell.domain.commands import Command
from stepwell.domain.plans.commands import (
    AdvancePlan,
    CancelPlan,
    CompleteApply,
    ForgetPlans,
    GetAction,
    GetPlan,
    ListDecisions,
    ListPlans,
    RecordDecision,
    RevertPlan,
    UseAction,
)
from stepwell.domain.plans.model import Lease, Phase, Plan, PlanState
from stepwell.domain.replies import PlansForgotten, Reply
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.model import Tier
from stepwell.domain.verdict import AnyChange, RowChanged
from stepwell.errors import NotFound
from tests.support.domain.world import LINKS, World, check, image

KEEP_ALL = 1_000


@pytest.fixture
def world() -> World:
    return World()


def close(world: World, *plan_ids: str) -> None:
    """Plans that are over, each a millisecond after the one before it."""
    for plan_id in plan_ids:
        world.use(plan_id)
        world.now_ms += 1
        world.do(CancelPlan(plan_id))


def forget(world: World, keep: int = 0, before_ms: int = 0) -> PlansForgotten:
    return world.do(ForgetPlans(keep, before_ms))


def steps(world: World, keep: int = 0) -> list[tuple[PlansForgotten, Sequence[AnyChange]]]:
    """Forget until there is no more, with sound states in between."""
    taken: list[tuple[PlansForgotten, Sequence[AnyChange]]] = []
    for _ in range(RICH_ROWS):
        outcome = machine.apply(world.state, ForgetPlans(keep, 0), world.origin())
        check(world.state)
        assert isinstance(outcome.reply, PlansForgotten)
        taken.append((outcome.reply, outcome.changes))
        if not outcome.reply.more:
            return taken
    raise AssertionError("steps in vain")


def left(world: World) -> list[str]:
    return [plan.plan_id for plan in world.state.plans]


def decide_on(world: World, plan_id: str, *decision_ids: str) -> None:
    """Each hangs on the one before it; the first is a checkpoint."""
    parent: str | None = None
    for decision_id in decision_ids:
        lease = world.lease(plan_id)
        world.do(RecordDecision(plan_id, decision_id, lease, "q", "c", parent_id=parent, checkpoint=parent is None))
        parent = decision_id


def rich(world: World, plan_id: str = "plan") -> None:
    """A tree of four, one of them disowned, with decisions, changesets of several states, and entries; cancelled."""
    world.use(plan_id)
    world.execute(plan_id)
    kids = [f"{plan_id}-{name}" for name in ("old", "kid", "grandkid")]
    world.declare(kids[0], plan_id=plan_id)
    world.finish(kids[0])
    world.do(RevertPlan(plan_id, "again"))
    world.execute(plan_id)
    world.declare(kids[1], plan_id=plan_id)
    world.execute(kids[1])
    world.declare(kids[2], plan_id=kids[1])
    world.execute(kids[2])
    for each in (plan_id, *kids[1:]):
        decide_on(world, each, *(f"{each}-d{n}" for n in range(3)))
        for number, size in enumerate((3, 0, 5)):
            world.open(f"{each}-cs{number}", f"{each}-ctx", each)
            for n in range(size):
                body = f"{each}-{number}-{n}".encode()
                world.record(f"{n}.py", before=b"shared", after=body, context_id=f"{each}-ctx", plan_id=each)
    world.do(CancelPlan(plan_id))


RICH_ROWS = 4 + 3 * (3 + 3 + 8)


class TestDue:
    """What ended too long ago, and what is too many: the first to have ended go first."""

    def test_by_number(self, world: World) -> None:
        """Those that ended last are kept, whatever their ids."""
        close(world, "d", "a", "c", "b")
        reply = forget(world, keep=2)
        assert (reply.plan_ids, reply.more) == (("d", "a"), False)
        assert left(world) == ["b", "c"]

    def test_by_age(self, world: World) -> None:
        """Before that time, not at it."""
        close(world, "d", "a", "c")
        assert forget(world, KEEP_ALL, world.now_ms - 1).plan_ids == ("d",)
        assert forget(world, KEEP_ALL, world.now_ms).plan_ids == ("a",)
        assert forget(world, KEEP_ALL, world.now_ms + 1).plan_ids == ("c",)

    def test_either_is_enough(self, world: World) -> None:
        """Few plans can be too old, and young ones too many."""
        close(world, "a", "b", "c", "d")
        assert forget(world, keep=1, before_ms=world.now_ms - 2).plan_ids == ("a", "b", "c")
        close(world, "e")
        assert forget(world, keep=1, before_ms=world.now_ms).plan_ids == ("d",)

    def test_same_time(self, world: World) -> None:
        """Then in order of id, so that nobody has to guess."""
        for plan_id in ("b", "c", "a"):
            world.use(plan_id)
        for plan_id in ("c", "b", "a"):
            world.do(CancelPlan(plan_id))
        assert forget(world, keep=1).plan_ids == ("a", "b")

    def test_order_is_that_of_the_end(self, world: World) -> None:
        """A plan that was long at work is as young as its end."""
        world.use("first")
        close(world, "second")
        world.now_ms += 1
        world.do(CancelPlan("first"))
        assert forget(world, keep=1).plan_ids == ("second",)

    def test_open_plans_stay(self, world: World) -> None:
        """However old they are, and they do not count."""
        world.use("queued")
        world.use("started")
        world.start("started")
        world.use("failed")
        world.start("failed")
        world.fail("failed")
        world.use("executed")
        world.finish("executed")
        world.now_ms += 1_000
        close(world, "a", "b")
        assert forget(world, keep=1, before_ms=world.now_ms).plan_ids == ("a",)
        assert left(world) == ["b", "executed", "failed", "queued", "started"]

    def test_nothing_to_do(self, world: World) -> None:
        """Then nothing is written, and there is no revision."""
        close(world, "a")
        world.use("open")
        before = image(world.state)
        outcome = machine.apply(world.state, ForgetPlans(1, world.now_ms), world.origin())
        assert (outcome.reply, outcome.changes) == (PlansForgotten((), more=False), ())
        assert outcome.revision == before["revision"]
        assert image(world.state) == before

    def test_a_step_is_a_revision(self, world: World) -> None:
        """If it forgets anything."""
        close(world, "a", "b")
        revision = world.state.revision
        forget(world)
        assert world.state.revision == revision + 1


def cancel(world: World) -> None:
    world.do(CancelPlan("plan"))


def cancel_processing(world: World) -> None:
    world.start()
    cancel(world)


def cancel_complete(world: World) -> None:
    world.start()
    world.complete()
    cancel(world)


def cancel_errored(world: World) -> None:
    world.execute()
    world.now_ms -= 5
    world.fail()
    world.now_ms += 5
    cancel(world)


def apply(world: World) -> None:
    world.finish()
    world.do(AdvancePlan("plan", Phase.APPLY))
    world.do(CompleteApply("plan", world.start(), {}))


@pytest.mark.parametrize("end", [cancel, cancel_processing, cancel_complete, cancel_errored, apply])
def test_every_end_has_its_time(world: World, end: Callable[[World], None]) -> None:
    """However a plan ends, it is filed under the moment at which it did."""
    world.use()
    world.now_ms += 10
    end(world)
    assert world.plan().ended_at_ms == world.now_ms
    assert list(world.state.plans.by_end) == [(world.now_ms, "plan")]
    assert forget(world, KEEP_ALL, world.now_ms).plan_ids == ()
    assert forget(world, KEEP_ALL, world.now_ms + 1).plan_ids == ("plan",)


class TestTrees:
    """A tree is kept, or forgotten, as a whole."""

    def test_children_go_with_their_root(self, world: World) -> None:
        """Below before above, disowned ones too; another tree stays."""
        rich(world)
        world.use("stays")
        assert forget(world).plan_ids == ("plan-grandkid", "plan-kid", "plan-old", "plan")
        assert left(world) == ["stays"]

    def test_child_that_is_over_waits_for_its_root(self, world: World) -> None:
        """It is no root, and does not count as one."""
        world.use()
        world.execute()
        world.declare("kid")
        world.do(CancelPlan("kid"))
        world.now_ms += 1_000
        close(world, "other")
        assert forget(world, keep=1, before_ms=world.now_ms).plan_ids == ()
        assert left(world) == ["kid", "other", "plan"]

    def test_finished_children_of_an_applied_plan(self, world: World) -> None:
        """They are never applied themselves: they are over when it is."""
        world.use()
        world.execute()
        world.declare("kid")
        world.finish("kid")
        world.complete()
        assert forget(world).plan_ids == ()
        world.do(AdvancePlan("plan", Phase.APPLY))
        world.do(CompleteApply("plan", world.start(), {}))
        assert world.plan("kid").state is PlanState.COMPLETE
        assert forget(world).plan_ids == ("kid", "plan")

    def test_whoever_works_below_is_waited_for(self, world: World) -> None:
        """No command leads there, but a lease always has its plan; later trees do not wait."""
        rich(world)
        world.now_ms += 1
        close(world, "later")
        idle = world.plan("plan-old")
        lease = Lease(world.state.revision, "alice", world.now_ms + 1)
        leased = RowChanged[Plan](idle, replace(idle, state=PlanState.PROCESSING, lease=lease))
        world.state.make(leased)
        reply = forget(world)
        assert (reply.plan_ids, reply.more) == (("later",), False)
        world.state.undo(leased)
        assert len(forget(world).plan_ids) == 4

    def test_nothing_of_it_is_left(self, world: World) -> None:
        """Decisions, changesets, entries, contexts and indexes; the state is as if it had never been."""
        world.use("stays")
        world.execute("stays")
        world.open("cs", "ctx", "stays")
        world.record("a.py", before=b"shared", after=b"kept", plan_id="stays")
        decide_on(world, "stays", "d")
        before = image(world.state)
        rich(world)
        outcome = machine.apply(world.state, ForgetPlans(0, 0), world.origin())
        assert len(outcome.changes) == RICH_ROWS
        after = image(world.state)
        assert {key for key in before if before[key] != after[key]} == {"revision", "actions"}

    def test_actions_are_not_touched(self, world: World) -> None:
        """A use stays counted: a spent action is still spent."""
        close(world, "a", "b")
        action = world.do(GetAction("act")).action
        forget(world)
        assert world.do(GetAction("act")).action == action

    def test_bodies_are_released(self, world: World) -> None:
        """Those that nothing else refers to, and no others."""
        world.store("f", body=b"shared")
        rich(world)
        assert world.state.bodies.tier_of(digest_of(b"plan-0-0")) is Tier.COLD
        assert world.state.bodies.counts[digest_of(b"shared")].cold == 24
        forget(world)
        assert world.state.bodies.counts.keys() == {digest_of(b"shared")}
        assert world.state.bodies.counts[digest_of(b"shared")].cold == 0
        assert world.state.bodies.bytes == len(b"shared")

    def test_it_is_not_found_any_more(self, world: World) -> None:
        """Whatever is asked about it."""
        rich(world)
        questions: list[Command[Reply]] = [
            GetPlan("plan"),
            GetPlan("plan-kid"),
            ListDecisions("plan"),
            ListChangesets("plan-grandkid"),
            GetChangeset("plan-cs0"),
            ListEntries("plan-cs0"),
            CancelPlan("plan-old"),
            RevertPlan("plan-old", "again"),
        ]
        for question in questions[:-1]:
            machine.decide(world.state, question, world.origin())
        forget(world)
        for question in questions:
            world.refuse(question, NotFound, "there is no (plan|changeset)")
        assert world.do(ListPlans()).plans == ()

    def test_its_ids_are_free(self, world: World) -> None:
        """A plan of the same name is another plan."""
        rich(world)
        forget(world)
        rich(world)
        assert len(forget(world).plan_ids) == 4


class TestSteps:
    """A step changes a bounded number of rows."""

    def test_as_many_trees_as_fit(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """The next one waits for the next step; `more` says so."""
        monkeypatch.setattr(limits, "FORGOTTEN_ROWS_PER_STEP_MAX", 2)
        close(world, *"abcde")
        assert [(reply.plan_ids, reply.more) for reply, _ in steps(world, keep=1)] == [
            (("a", "b"), True),
            (("c", "d"), False),
        ]

    def test_tree_that_fits_is_not_split(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """What another tree leaves of a step is not used for a part of it."""
        monkeypatch.setattr(limits, "FORGOTTEN_ROWS_PER_STEP_MAX", RICH_ROWS)
        close(world, "a")
        world.now_ms += 1
        rich(world)
        (first, one), (second, all_of_it) = steps(world)
        assert (first.plan_ids, len(one)) == (("a",), 1)
        assert (len(second.plan_ids), len(all_of_it)) == (4, RICH_ROWS)

    @pytest.mark.parametrize("bound", range(5, RICH_ROWS))
    def test_large_tree(self, world: World, monkeypatch: pytest.MonkeyPatch, bound: int) -> None:
        """Over several steps, none of them too large or in vain; its plans go together, in the last one."""
        monkeypatch.setattr(limits, "FORGOTTEN_ROWS_PER_STEP_MAX", bound)
        rich(world)
        taken = steps(world)
        assert len(taken) > 1
        assert all(1 <= len(changes) <= bound for _, changes in taken)
        deleted = [change.before for _, changes in taken for change in changes if change.after is None]
        assert len(deleted) == RICH_ROWS
        assert [reply.plan_ids for reply, _ in taken[:-1]] == [()] * (len(taken) - 1)
        assert taken[-1][0].plan_ids == ("plan-grandkid", "plan-kid", "plan-old", "plan")
        assert len(world.state.plans) == len(world.state.bodies.counts) == 0

    @pytest.mark.parametrize("bound", [5, 6, 7, 13, 20, RICH_ROWS])
    def test_every_step_can_be_undone(self, world: World, monkeypatch: pytest.MonkeyPatch, bound: int) -> None:
        """Backwards, each change in turn, to the very state that was before it."""
        monkeypatch.setattr(limits, "FORGOTTEN_ROWS_PER_STEP_MAX", bound)
        rich(world)
        while len(world.state.plans):
            before = image(world.state)
            verdict = machine.decide(world.state, ForgetPlans(0, 0), world.origin())
            assert image(world.state) == before
            machine.evolve(world.state, verdict, world.now_ms)
            assert image(world.state) != before
            for change in reversed(verdict.changes):
                world.state.undo(change)
            world.state.forget_undo()
            assert image(world.state) == before
            check(world.state)
            forget(world)

    def test_what_is_left_can_be_used(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Between two steps a tree can be read, and whatever was legal for its plans is."""
        monkeypatch.setattr(limits, "FORGOTTEN_ROWS_PER_STEP_MAX", 7)
        rich(world)
        while forget(world).more:
            for plan in world.state.plans:
                decisions = world.do(ListDecisions(plan.plan_id)).decisions
                assert plan.last_checkpoint_id == (decisions[0].decision_id if decisions else None)
                for changeset in world.do(ListChangesets(plan.plan_id)).changesets:
                    assert len(world.do(ListEntries(changeset.changeset_id)).entries) == changeset.entry_count
            if world.plan("plan-old").state is not PlanState.CANCELLED:
                world.do(CancelPlan("plan-old"))
        assert left(world) == []

    def test_others_go_on_meanwhile(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is being forgotten comes first, also when more has ended since."""
        monkeypatch.setattr(limits, "FORGOTTEN_ROWS_PER_STEP_MAX", 20)
        rich(world)
        assert forget(world) == PlansForgotten((), more=True)
        close(world, "a")
        world.do(UseAction("b", "act", LINKS))
        assert [plan_id for reply, _ in steps(world) for plan_id in reply.plan_ids][-2:] == ["plan", "a"]
        assert left(world) == ["b"]
