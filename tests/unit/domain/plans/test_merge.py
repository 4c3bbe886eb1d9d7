"""Merging: once, of every child that executed, in declared order; what does not fit waits for somebody to choose."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.changesets.commands import EndChangeset, RecordChange, StartChangeset
from stepwell.domain.changesets.model import ChangesetState, Content
from stepwell.domain.changesets.paths import DIRECTORY, EXECUTABLE
from stepwell.domain.plans.commands import (
    AdvancePlan,
    CancelPlan,
    CompleteApply,
    CompletePhase,
    ConflictFound,
    EndSession,
    ForgetPlans,
    RecordMerge,
    ResolveConflict,
    RevertPlan,
)
from stepwell.domain.plans.conflicts import ConflictState, Merge, MergeConflict, Resolution
from stepwell.domain.plans.model import MergeStrategy, Phase, PlanState
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    MergeConflicts,
    NotFound,
    PlanError,
    PlanNotReady,
    StepTooLarge,
)
from tests.support.domain.world import NOON_MS, World

OURS, THEIRS, BODY = Resolution.ACCEPT_OURS, Resolution.ACCEPT_THEIRS, Resolution.BODY


def side(body: bytes, mode: int | None = None) -> Content:
    return Content(digest_of(body), len(body), held=True, mode=mode)


def family(merge: MergeStrategy = MergeStrategy.GIT_THREE_WAY) -> World:
    """Three children that changed `a.py`, each in its own way, the second also a file of its own."""
    world = World()
    world.use()
    world.execute()
    world.declare("one", "two", "three", merge=merge)
    for child in ("three", "one", "two"):  # whoever is quicker
        world.execute(child)
        world.change("a.py", b"base", child.encode(), plan_id=child)
        if child == "two":
            world.change("own.py", None, b"own", plan_id=child)
        world.complete(child)
    return world


def merge(world: World, *conflicts: tuple[str, str], changeset_id: str | None = None) -> RecordMerge:
    found = tuple(ConflictFound(path, child) for path, child in conflicts)
    return RecordMerge("plan", world.lease(), ("one", "two", "three"), changeset_id, found)


def resolve(
    world: World,
    how: Resolution,
    body: bytes | None = None,
    *,
    path: str = "a.py",
    mode: int | None = None,
    version: str | None = None,
) -> ResolveConflict:
    """A resolution for the conflict as it was recorded, or for another version."""
    name = f"resolved-{len(world.plan().changeset_ids)}"
    seen = version or next((each.version for each in world.plan().open_conflicts if each.path == path), "0" * 16)
    return ResolveConflict("plan", world.lease(), path, seen, name, how, body, mode)


@pytest.fixture
def world() -> World:
    """What the first child left is merged; the other two are in conflict with it."""
    world = family()
    merged = world.change("a.py", b"base", b"one", name="merged")
    world.change("own.py", None, b"own")
    world.do(merge(world, ("a.py", "two"), ("a.py", "three"), changeset_id=merged))
    return world


def left(world: World, path: str = "a.py") -> bytes:
    """What has to be found at a path for the plan to be applied."""
    world.complete()
    world.do(AdvancePlan("plan", Phase.APPLY))
    lease = world.start()
    for body in (b"one", b"two", b"three", b"mine", b"later"):
        proof: dict[str, bytes | None] = {"a.py": digest_of(body), "own.py": digest_of(b"own")}
        try:
            world.do(CompleteApply("plan", lease, proof))
        except PlanError:
            continue
        return body
    raise AssertionError(path)


class TestRecord:
    """What was merged, and what could not be."""

    def test_kept(self, world: World) -> None:
        """Both sides and what they began with, in declared order."""
        plan = world.plan()
        assert plan.merged == Merge(NOON_MS, 1, ("one", "two", "three"), "merged")
        assert plan.conflicts == tuple(
            MergeConflict("a.py", child, child, side(b"base"), side(b"one"), side(child.encode()))
            for child in ("two", "three")
        )
        assert plan.open_conflicts == plan.conflicts[:1]  # the third child waits for the resolution

    def test_without_conflicts(self) -> None:
        """Then it can complete at once; nothing may have come of it."""
        world = family()
        world.do(merge(world))
        assert world.plan().merged == Merge(NOON_MS, 1, ("one", "two", "three"), None)
        assert world.complete().state is PlanState.COMPLETE

    def test_needed(self) -> None:
        """A parent is not complete without what its children changed."""
        world = family()
        error = world.refuse(
            CompletePhase("plan", Phase.EXECUTE, world.lease()), PlanNotReady, "what child 'one' changed is not merged"
        )
        assert error.details == {"plan_id": "one"}

    def test_not_needed(self) -> None:
        """Of children that changed nothing, or were cancelled with what they changed."""
        world = World()
        world.use()
        world.execute()
        world.declare("idle", "aborted", "cancelled")
        world.finish("idle")
        world.execute("aborted")
        world.open("cs", "ctx", "aborted")
        world.record(plan_id="aborted")
        world.end(abort=True, plan_id="aborted")
        world.complete("aborted")
        world.execute("cancelled")
        world.change("a.py", None, b"x", plan_id="cancelled")
        world.complete("cancelled")
        world.do(CancelPlan("cancelled"))
        world.complete()

    def test_once(self, world: World) -> None:
        """For each attempt: a lost lease begins another, with another merge."""
        world.refuse(merge(world), AlreadyExists, "has merged its children already")
        world.do(EndSession("alice"))
        assert (world.plan().merged, world.plan().conflicts) == (None, ())
        world.start()
        world.do(merge(world))
        assert world.plan().merged == Merge(NOON_MS, 2, ("one", "two", "three"), None)

    def test_all_finished(self) -> None:
        """A child that is still at it would be left out."""
        world = World()
        world.use()
        world.execute()
        world.refuse(RecordMerge("plan", world.lease(), ()), PlanNotReady, "has no children to merge")
        world.declare("one")
        world.refuse(RecordMerge("plan", world.lease(), ("one",)), PlanNotReady, "child 'one' is strategize/queued")

    def test_all_in_declared_order(self) -> None:
        """Neither in order of completion nor without one; who was cancelled has nothing to merge."""
        world = family()
        for names in (("three", "one", "two"), ("one", "two"), ("one", "two", "three", "four")):
            command = RecordMerge("plan", world.lease(), names)
            world.refuse(command, Conflict, "has 3 children that executed, and these or their order are not")
        world.do(CancelPlan("two"))
        world.do(RecordMerge("plan", world.lease(), ("one", "three")))

    def test_changeset(self) -> None:
        """It is closed, of this plan and of this attempt."""
        world = family()
        world.open("open")
        world.refuse(merge(world, changeset_id="open"), PlanNotReady, "changeset 'open' is open: close it first")
        world.end("open")
        for name in ("one-a", "nothing"):
            world.refuse(merge(world, changeset_id=name), NotFound, f"has no changeset '{name}'")
        world.do(EndSession("alice"))
        world.start()
        world.refuse(merge(world, changeset_id="open"), NotFound, "this attempt of plan 'plan' has no changeset 'open'")

    @pytest.mark.parametrize(
        "conflicts, message",
        [
            ([("a.py", "nobody")], "is with 'nobody', which was not merged"),
            ([("own.py", "one")], "child 'one' did not change 'own.py'"),
            ([("a.py", "three"), ("a.py", "two")], "in the declared order of the children"),
            ([("a.py", "two"), ("a.py", "two")], "give each conflict once"),
        ],
    )
    def test_unsound_conflicts(self, conflicts: list[tuple[str, str]], message: str) -> None:
        """They are held to what the children recorded."""
        world = family()
        world.refuse(merge(world, *conflicts), InvalidArgument, message)

    def test_contents_are_held(self) -> None:
        """Whoever has to choose can read what there is to choose from."""
        world = World()
        world.use()
        world.execute()
        world.declare("one")
        lease = world.execute("one")
        world.do(StartChangeset("one", "ctx", "cs", lease))
        world.do(RecordChange("one", "ctx", lease, "a.py", before=b"x", after_digest=digest_of(b"y")))
        world.do(EndChangeset("one", "ctx", lease, "cs"))
        world.complete("one")
        command = RecordMerge("plan", world.lease(), ("one",), None, (ConflictFound("a.py", "one"),))
        world.refuse(command, InvalidArgument, "of which only the digest was recorded")

    def test_where_nothing_is_merged(self) -> None:
        """A conflict at a path that the parent has not changed: what it has there is what the child found."""
        world = family()
        plan = world.do(merge(world, ("own.py", "two"))).plan
        assert plan.conflicts == (MergeConflict("own.py", "two", "two", None, None, side(b"own")),)

    def test_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One step looks at so many entries and no more."""
        world = family()
        monkeypatch.setattr(limits, "ENTRIES_PER_PLAN_MAX", 1)
        world.refuse(merge(world, ("a.py", "two")), StepTooLarge, "in conflict have 2 entries, at most 1")

    def test_fail_on_conflict(self) -> None:
        """Nothing is recorded; without a conflict it is."""
        world = family(MergeStrategy.FAIL_ON_CONFLICT)
        error = world.refuse(
            merge(world, ("a.py", "two"), ("a.py", "three")), MergeConflicts, "of 1 path, and this plan fails then"
        )
        assert error.details == {"plan_id": "plan", "paths": ["a.py"]}
        world.do(merge(world))

    def test_last_wins(self) -> None:
        """It has no conflicts."""
        world = family(MergeStrategy.LAST_WINS)
        world.refuse(merge(world, ("a.py", "two")), InvalidArgument, "with merge='last_wins' there are no conflicts")

    def test_children_stay_as_they_were_merged(self, world: World) -> None:
        """They are their parent's by now, and go with it."""
        for command in (RevertPlan("two", "again"), CancelPlan("two")):
            error = world.refuse(command, PlanNotReady, "is merged into its parent: revert or cancel 'plan'")
            assert error.details == {"plan_id": "plan"}
        world.do(CancelPlan("plan"))
        assert world.plan("two").state is PlanState.CANCELLED

    def test_revert(self, world: World) -> None:
        """Takes the merge along."""
        plan = world.do(RevertPlan("plan", "again")).plan
        assert (plan.merged, plan.conflicts, plan.subplans) == (None, (), None)


class TestResolve:
    """Choosing."""

    def test_blocks(self, world: World) -> None:
        """Until the last is resolved the plan cannot go on; the refusal lists the paths."""
        for how in (OURS, THEIRS):
            error = world.refuse(
                CompletePhase("plan", Phase.EXECUTE, world.lease()),
                MergeConflicts,
                "has an open conflict at 'a.py' with child '.*': resolve each of them",
            )
            assert error.details == {"plan_id": "plan", "paths": ["a.py"]}
            world.do(resolve(world, how))
        world.complete()

    def test_ours(self, world: World) -> None:
        """What is merged stays, and nothing is recorded."""
        before = world.plan().changeset_ids
        plan = world.do(resolve(world, OURS)).plan
        first = plan.conflicts[0]
        assert (first.state, first.resolution, first.chosen) == (ConflictState.RESOLVED, OURS, side(b"one"))
        assert (first.resolved_at_ms, plan.changeset_ids) == (NOON_MS, before)
        assert [each.is_open for each in plan.conflicts] == [False, True]
        world.do(resolve(world, OURS))
        assert left(world) == b"one"

    def test_theirs(self, world: World) -> None:
        """What the child left takes its place, in a closed changeset; it is `ours` for the next child."""
        plan = world.do(resolve(world, THEIRS)).plan
        assert plan.conflicts[0].chosen == side(b"two")
        assert (plan.conflicts[1].ours, plan.conflicts[1].theirs) == (side(b"two"), side(b"three"))
        changeset = world.state.changesets.rows[plan.changeset_ids[-1]]
        assert (changeset.state, changeset.entry_count) == (ChangesetState.CLOSED, 1)
        world.do(resolve(world, OURS))
        assert left(world) == b"two"

    def test_body(self, world: World) -> None:
        """Neither of them."""
        world.do(resolve(world, THEIRS))
        plan = world.do(resolve(world, BODY, b"mine", mode=EXECUTABLE)).plan
        assert plan.conflicts[1].chosen == side(b"mine", EXECUTABLE)
        assert plan.open_conflicts == ()
        assert left(world) == b"mine"

    def test_what_was_recorded_since(self, world: World) -> None:
        """Is what is there, and so what `ours` accepts; a choice that was made before is for another version."""
        before = resolve(world, OURS)
        world.change("a.py", b"one", b"later", name="later")
        error = world.refuse(before, Conflict, "the conflict at 'a.py' is now with child 'two' in version")
        now = replace(world.plan().open_conflicts[0], ours=side(b"later")).version
        assert error.details == {"expected": before.version, "actual": now}
        plan = world.do(resolve(world, OURS, version=now)).plan
        assert plan.conflicts[0].chosen == side(b"later")
        world.do(resolve(world, OURS))
        assert left(world) == b"later"

    def test_version(self, world: World) -> None:
        """A choice for the conflict with one child is none for the conflict with the next."""
        seen = world.plan().open_conflicts[0].version
        world.do(resolve(world, THEIRS))
        world.refuse(resolve(world, OURS, version=seen), Conflict, "is now with child 'three'")
        waiting = world.plan().open_conflicts[0]
        assert {replace(waiting, ours=each).version for each in (None, side(b"x"), side(b"x", EXECUTABLE))}.isdisjoint(
            {waiting.version, seen}
        )

    @pytest.mark.parametrize("how", [*Resolution])
    def test_merged_content(self, world: World, how: Resolution) -> None:
        """Whichever choice it was: the result may be neither side's, and is what the next child is merged with."""
        plan = world.do(resolve(world, how, b"mine")).plan
        first, second = plan.conflicts
        assert (first.resolution, first.chosen, second.ours) == (how, side(b"mine"), side(b"mine"))
        world.do(resolve(world, OURS))
        assert left(world) == b"mine"

    def test_merged_after_a_choice(self, world: World) -> None:
        """A child that waited takes its place without a choice."""
        world.do(resolve(world, OURS))
        plan = world.do(resolve(world, Resolution.MERGED)).plan
        assert (plan.conflicts[1].resolution, plan.open_conflicts) == (Resolution.MERGED, ())
        assert left(world) == b"three"

    def test_deleted_by_a_child(self) -> None:
        """A side that is gone can be accepted as well."""
        world = World()
        world.use()
        world.execute()
        world.declare("one", "two")
        for child, after in (("one", b"kept"), ("two", None)):
            world.execute(child)
            world.change("a.py", b"base", after, plan_id=child)
            world.complete(child)
        world.change("a.py", b"base", b"kept", name="merged")
        found = (ConflictFound("a.py", "two"),)
        world.do(RecordMerge("plan", world.lease(), ("one", "two"), "merged", found))
        plan = world.do(resolve(world, THEIRS)).plan
        assert (plan.conflicts[0].theirs, plan.conflicts[0].chosen) == (None, None)
        world.complete()

    def test_mode_of_a_body(self, world: World) -> None:
        """Known from what is there unless given, and one that it can have."""
        world.refuse(resolve(world, BODY, b"x", mode=DIRECTORY), InvalidArgument, "body is a directory by its mode")
        world.refuse(resolve(world, OURS, mode=EXECUTABLE), InvalidArgument, "a mode goes with a body")

    @pytest.mark.parametrize("how", [BODY, Resolution.HUNKS])
    def test_body_is_needed(self, world: World, how: Resolution) -> None:
        """By a choice that is no side's."""
        world.refuse(resolve(world, how), InvalidArgument, f"give a body with resolution='{how}'")

    def test_no_conflict(self, world: World) -> None:
        """There, or any more."""
        world.refuse(resolve(world, OURS, path="own.py"), NotFound, "has no open conflict at 'own.py'")
        for _ in range(2):
            world.do(resolve(world, OURS))
        world.refuse(resolve(world, OURS), NotFound, "has no open conflict at 'a.py'")

    def test_id_is_taken(self, world: World) -> None:
        """A changeset has an id of its own."""
        command = replace(resolve(world, THEIRS), changeset_id="merged")
        world.refuse(command, AlreadyExists, "changeset 'merged' exists already")


def test_forgotten_bit_by_bit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree that is over loses its contents before its plans, also below a child that merged."""
    world.do(resolve(world, THEIRS))
    world.do(resolve(world, OURS))
    assert left(world) == b"two"
    monkeypatch.setattr(limits, "FORGOTTEN_ROWS_PER_STEP_MAX", 5)
    steps = 1
    while world.do(ForgetPlans(0, 0)).more:
        steps += 1
    assert steps > 3
    assert len(world.state.plans) == 0


def test_nested_conflicts_are_forgotten_with_their_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child with conflicts of its own is complete for ever; its bodies go when its root is over."""
    world = World()
    world.use()
    world.execute()
    world.declare("mid")
    world.execute("mid")
    world.declare("one", "two", plan_id="mid")
    for child in ("one", "two"):
        world.execute(child)
        world.change("a.py", None, child.encode(), plan_id=child)
        world.complete(child)
    world.change("a.py", None, b"one", plan_id="mid")
    found = (ConflictFound("a.py", "two"),)
    world.do(RecordMerge("mid", world.lease("mid"), ("one", "two"), "mid-a", found))
    (conflict,) = world.plan("mid").open_conflicts
    world.do(ResolveConflict("mid", world.lease("mid"), "a.py", conflict.version, "chosen", OURS))
    world.complete("mid")
    world.change("a.py", None, b"one")
    world.do(RecordMerge("plan", world.lease(), ("mid",), "plan-a"))
    world.complete()
    world.do(AdvancePlan("plan", Phase.APPLY))
    world.do(CompleteApply("plan", world.start(), {"a.py": digest_of(b"one")}))
    monkeypatch.setattr(limits, "FORGOTTEN_ROWS_PER_STEP_MAX", 5)
    while world.do(ForgetPlans(0, 0)).more:
        assert world.plan("mid").conflicts
    assert len(world.state.plans) == 0
