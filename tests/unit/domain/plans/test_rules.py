"""Every command of a plan: what it checks, what it takes along, what it keeps."""

import pytest
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.changesets.model import ChangesetState
from stepwell.domain.plans.commands import (
    AdvancePlan,
    BeginPlan,
    CancelPlan,
    CompleteApply,
    CompletePhase,
    ConstrainApply,
    DeclareSubplans,
    EndSession,
    FailPhase,
    GetPlan,
    ListDecisions,
    ListPlans,
    ProceedPlan,
    RecordDecision,
    RenewLease,
    RetryPlan,
    RevertPlan,
    StartPhase,
    SubplanSpec,
    UseAction,
)
from stepwell.domain.plans.model import Argument, Invariant, Phase, PhaseTimes, Plan, PlanState, ProjectLink
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import (
    ActionUnavailable,
    AlreadyExists,
    Busy,
    Conflict,
    InvalidArgument,
    LeaseLost,
    NotFound,
    NotProven,
    OutOfScope,
    PlanNotReady,
)
from tests.support.domain.world import LINKS, NOON_MS, World

PROOF = {"a.py": digest_of(b"2"), "gone.py": None, "to.py": digest_of(b"m"), "from.py": None}


@pytest.fixture
def world() -> World:
    """A plan in strategize/queued."""
    world = World()
    world.use()
    return world


class TestBegin:
    """From an action to an executing plan in one step."""

    def test_same_as_in_single_steps(self) -> None:
        """The plan is what use_action, start_strategize and proceed make of it, under a lease of the caller."""
        world, stepwise = World(), World()
        for each in (world, stepwise):
            each.action(invariants=("tests pass",))
        links = (ProjectLink("p"),)
        begun = world.do(BeginPlan("plan", "act", links, {}, ("no new files",), lease_ms=777), session="bob").plan
        stepwise.do(UseAction("plan", "act", links, {}, ("no new files",)), session="bob")
        token = stepwise.do(StartPhase("plan", Phase.STRATEGIZE, 777), session="bob").plan.lease
        assert token is not None
        single = stepwise.do(ProceedPlan("plan", token.token, 777), session="bob").plan
        assert begun.lease is not None
        assert single.lease is not None
        assert (begun.lease.session_id, begun.lease.expires_at_ms) == ("bob", NOON_MS + 777)
        assert replace(begun, lease=None, fence=0) == replace(single, lease=None, fence=0)
        assert begun == world.plan()
        assert world.state.actions.get("local/act") == replace(
            stepwise.state.actions.rows["local/act"], revision=world.state.actions.rows["local/act"].revision
        )

    def test_refusal_leaves_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither a plan nor a use of an action that can be used once."""
        world = World()
        world.action(arguments=(Argument(name="what"),), reusable=False)
        world.refuse(BeginPlan("plan", "act", LINKS), InvalidArgument, "needs the argument 'what'")
        world.refuse(BeginPlan("plan", "nope", LINKS), NotFound, "no action 'local/nope'")
        world.refuse(BeginPlan("plan", "act", LINKS, {"what": "x"}), OutOfScope, "scope", projects={"q"})
        with monkeypatch.context() as patched:
            patched.setattr(limits, "LEASES_PER_SESSION_MAX", 0)
            world.refuse(BeginPlan("plan", "act", LINKS, {"what": "x"}), Busy, "leases already")
        assert world.state.actions.rows["local/act"].uses == 0
        assert world.do(BeginPlan("plan", "act", LINKS, {"what": "x"})).plan.arguments == {"what": "x"}
        world.refuse(BeginPlan("plan 2", "act", LINKS, {"what": "x"}), ActionUnavailable, "was used already")


class TestUse:
    """Plans begin in one place."""

    def test_plan(self) -> None:
        """Texts are rendered, invariants have their source, and it waits in strategize."""
        world = World()
        world.action(arguments=(Argument(name="what"),), invariants=("tests pass",), read_only=True)
        links = (ProjectLink("p", "main"), ProjectLink("q", read_only=True))
        plan = world.do(UseAction("plan", "act", links, {"what": "it"}, ("be quick",))).plan
        assert (plan.description, plan.definition_of_done) == ("do it", "it is done")
        assert plan.invariants == (Invariant("tests pass", "action"), Invariant("be quick", "plan"))
        assert (plan.phase, plan.state, plan.version, plan.attempt) == (Phase.STRATEGIZE, PlanState.QUEUED, 1, 1)
        assert (plan.parent_plan_id, plan.root_plan_id, plan.depth) == (None, "plan", 0)
        assert (plan.projects, plan.project_links, plan.read_only) == (("p", "q"), links, True)
        assert plan.times == {"strategize": PhaseTimes(queued_at_ms=NOON_MS)}
        assert world.do(GetPlan("plan")).plan == plan

    @pytest.mark.parametrize(
        "links, action, expected",
        [
            ((False,), False, False),
            ((False,), True, True),
            ((True,), False, True),
            ((True, True), False, True),
            ((True, False), False, False),
            ((True, False), True, True),
        ],
    )
    def test_read_only(self, links: tuple[bool, ...], *, action: bool, expected: bool) -> None:
        """By its action, or because all of its projects are: one to write to is enough."""
        world = World()
        world.action(read_only=action)
        named = tuple(ProjectLink(f"p{number}", read_only=each) for number, each in enumerate(links))
        assert world.do(UseAction("plan", "act", named)).plan.read_only is expected

    def test_id_is_taken(self, world: World) -> None:
        """An id is used once."""
        error = world.refuse(UseAction("plan", "act", LINKS), AlreadyExists, "plan 'plan' exists already")
        assert error.details == {"plan_id": "plan"}

    def test_project_twice(self, world: World) -> None:
        """A project has one link, and one alias."""
        links = (ProjectLink("p"), ProjectLink("p", "again"))
        world.refuse(UseAction("new", "act", links), InvalidArgument, "a project is named twice")

    def test_out_of_scope(self, world: World) -> None:
        """All of its projects have to be in scope."""
        links = (ProjectLink("p"), ProjectLink("q"))
        world.refuse(UseAction("new", "act", links), OutOfScope, "project 'q' is not in", projects={"p"})

    def test_bound(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """There is room for so many and no more."""
        monkeypatch.setattr(limits, "PLANS_MAX", 1)
        world.refuse(
            UseAction("new", "act", LINKS), Busy, "^there are 1 plans already: end some, and the manager deletes them"
        )

    def test_link_that_exists_is_valid(self) -> None:
        """A malformed project never becomes a link."""
        with pytest.raises(InvalidArgument, match="project is malformed"):
            ProjectLink("../p")


class TestList:
    """Plans of which the session may see every project."""

    def test_filters(self, world: World) -> None:
        """Phase, state and parent narrow together."""
        world.execute()
        world.declare("kid", "sister")
        world.start("kid")
        world.use("other")

        def ids(command: ListPlans) -> list[str]:
            return [each.plan_id for each in world.do(command).plans]

        assert ids(ListPlans()) == ["kid", "other", "plan", "sister"]
        assert ids(ListPlans(phase=Phase.EXECUTE)) == ["plan"]
        assert ids(ListPlans(state=PlanState.PROCESSING)) == ["kid", "plan"]
        assert ids(ListPlans(parent_plan_id="plan")) == ["kid", "sister"]
        assert ids(ListPlans(Phase.STRATEGIZE, PlanState.QUEUED, "plan")) == ["sister"]

    def test_pages(self, world: World) -> None:
        """In order of id, behind the cursor."""
        world.use("another")
        page = world.do(ListPlans(limit=1))
        assert ([each.plan_id for each in page.plans], page.cursor) == (["another"], "another")
        (summary,) = world.do(ListPlans(cursor=page.cursor)).plans
        assert (summary.plan_id, summary.action_name, summary.version) == ("plan", "local/act", 1)
        assert (summary.phase, summary.state, summary.attempt) == (Phase.STRATEGIZE, PlanState.QUEUED, 1)

    def test_scope(self, world: World) -> None:
        """One project out of scope hides the plan."""
        world.do(UseAction("wide", "act", (ProjectLink("p"), ProjectLink("q"))))
        assert [each.plan_id for each in world.do(ListPlans(), projects={"p"}).plans] == ["plan"]
        assert len(world.do(ListPlans(), projects={"p", "q"}).plans) == 2


class TestVersion:
    """Every transition is a compare-and-set, if the caller says what it saw."""

    def test_stale_caller(self, world: World) -> None:
        """Whoever saw an earlier version is refused, whatever it wants."""
        world.execute()
        version, lease = world.plan().version, world.lease()
        for command in (
            CompletePhase("plan", Phase.EXECUTE, lease, version - 1),
            FailPhase("plan", Phase.EXECUTE, lease, "x", version - 1),
            CompleteApply("plan", lease, {}, version - 1),
            ConstrainApply("plan", lease, "x", version - 1),
            StartPhase("plan", Phase.EXECUTE, 1_000, version - 1),
            AdvancePlan("plan", Phase.APPLY, version - 1),
            RetryPlan("plan", version - 1),
            RevertPlan("plan", "x", version - 1),
            CancelPlan("plan", "x", version - 1),
        ):
            error = world.refuse(command, Conflict, "is execute/processing at version .*: read it again")
            assert error.details == {"expected": version - 1, "actual": version}
            assert error.retry

    def test_current_caller(self, world: World) -> None:
        """Whoever saw the present one goes on."""
        plan = world.do(StartPhase("plan", Phase.STRATEGIZE, 1_000, world.plan().version)).plan
        assert plan.version == 2

    def test_recording_makes_nobody_stale(self, world: World) -> None:
        """Decisions, changesets and children are no transitions."""
        world.execute()
        version = world.plan().version
        world.open()
        world.do(RecordDecision("plan", "d", world.lease(), "q", "c"))
        world.declare("kid")
        assert world.plan().version == version


class TestPhases:
    """Forwards."""

    def test_times_of_each_phase(self, world: World) -> None:
        """When it was queued, started and ended; queued again, it starts from nothing."""
        world.now_ms = 10
        world.start()
        world.now_ms = 20
        world.complete()
        world.now_ms = 30
        world.do(AdvancePlan("plan", Phase.EXECUTE))
        world.now_ms = 40
        world.start()
        assert world.plan().times == {
            "strategize": PhaseTimes(NOON_MS, 10, 20),
            "execute": PhaseTimes(30, 40),
        }
        world.now_ms = 50
        world.do(EndSession("alice"))
        assert world.plan().times["execute"] == PhaseTimes(50)

    def test_complete_apply_is_another_command(self, world: World) -> None:
        """Applying needs proof."""
        world.refuse(
            CompletePhase("plan", Phase.APPLY, 1), InvalidArgument, r"use complete_apply\(plan_id, proof=\.\.\.\)"
        )

    def test_advance_leads_forwards_only(self, world: World) -> None:
        """Back to strategize is a revert."""
        world.refuse(AdvancePlan("plan", Phase.STRATEGIZE), InvalidArgument, "revert_plan leads back to strategize")

    def test_execute_before_strategize_is_complete(self, world: World) -> None:
        """The refusal is the one that the table names."""
        world.refuse(AdvancePlan("plan", Phase.EXECUTE), PlanNotReady, "execute_plan is not legal")

    def test_open_changeset_holds_up_completion(self, world: World) -> None:
        """What is still being recorded is not complete."""
        world.execute()
        world.open()
        error = world.refuse(
            CompletePhase("plan", Phase.EXECUTE, world.lease()),
            PlanNotReady,
            "has 1 open changeset, the first is 'cs': close or abort it",
        )
        assert error.details == {"changeset_id": "cs"}
        world.end(abort=True)
        assert world.complete().executed_attempt == 1

    def test_failure(self, world: World) -> None:
        """The error is appended, and open changesets are aborted, however many one context has."""
        world.execute()
        for changeset, context in (("cs1", "ctx"), ("cs2", "ctx"), ("cs3", "other")):
            world.open(changeset, context)
        plan = world.fail(error="no disk")
        assert plan.errors[-1].message == "no disk"
        assert plan.state is PlanState.ERRORED
        assert {each.state for each in world.state.changesets} == {ChangesetState.ABORTED}
        assert len(world.state.contexts) == 0

    def test_failure_names_its_phase(self, world: World) -> None:
        """Failing a phase that the plan is not in is refused."""
        world.start()
        world.refuse(FailPhase("plan", Phase.EXECUTE, world.lease(), "x"), PlanNotReady, "fail_execute is not legal")

    def test_lost_lease_aborts_changesets(self, world: World) -> None:
        """What a dead worker left open does not count."""
        world.execute()
        world.open("cs1")
        world.open("cs2")
        world.do(EndSession("alice"))
        assert {each.state for each in world.state.changesets} == {ChangesetState.ABORTED}
        assert world.plan().attempt == 2


class TestApply:
    """Applied means proven."""

    @pytest.fixture
    def applying(self, world: World) -> World:
        """In apply/processing, with closed, aborted and earlier changesets."""
        world.execute()
        world.open("lost")
        world.record("old.py", after=b"old")
        world.do(EndSession("alice"))
        world.start()
        world.open("one")
        world.record("a.py", after=b"1")
        world.record("gone.py", before=b"x", after=None)
        world.end("one")
        world.open("two")
        world.record("a.py", before=b"1", after=b"2")
        world.record("to.py", before=b"m", after=b"m", source_path="from.py")
        world.end("two")
        world.open("dropped")
        world.record("dropped.py", after=b"d")
        world.end("dropped", abort=True)
        world.complete()
        world.do(AdvancePlan("plan", Phase.APPLY))
        world.start()
        return world

    def test_proof(self, applying: World) -> None:
        """The last digest of each path of the closed changesets of the attempt that executed."""
        plan = applying.do(CompleteApply("plan", applying.lease(), PROOF)).plan
        assert (plan.state, plan.lease) == (PlanState.APPLIED, None)

    def test_more_than_was_asked(self, applying: World) -> None:
        """Other paths in the proof do no harm."""
        applying.do(CompleteApply("plan", applying.lease(), {**PROOF, "other": None}))

    @pytest.mark.parametrize("path", PROOF)
    def test_missing_or_wrong(self, applying: World, path: str) -> None:
        """Each path has to be there, with the right digest; absence is proven, not assumed."""
        missing = {each: digest for each, digest in PROOF.items() if each != path}
        message = f"1 path is not proven to be applied; the first is '{path}'"
        error = applying.refuse(CompleteApply("plan", applying.lease(), missing), NotProven, message)
        assert error.details == {"paths": [path]}
        wrong = {**PROOF, path: digest_of(b"else")}
        applying.refuse(CompleteApply("plan", applying.lease(), wrong), NotProven, message)

    def test_proof_survives_a_retry_of_apply(self, applying: World) -> None:
        """The attempt that counts is the one that executed, not the one that applies."""
        applying.fail()
        applying.do(RetryPlan("plan"))
        applying.start()
        assert applying.plan().attempt == 3
        applying.refuse(CompleteApply("plan", applying.lease(), {}), NotProven, "4 paths are not proven")
        applying.do(CompleteApply("plan", applying.lease(), PROOF))

    def test_double_apply(self, applying: World) -> None:
        """Applied is the end. Who applied it, and asks again with its lease, is told the same; nobody else is."""
        lease = applying.lease()
        plan = applying.do(CompleteApply("plan", lease, PROOF)).plan
        applying.now_ms += 1
        assert applying.do(CompleteApply("plan", lease, {})).plan == plan
        applying.refuse(CompleteApply("plan", lease - 1, PROOF), LeaseLost, "apply/applied.*is over")
        applying.refuse(CompleteApply("plan", None, PROOF), PlanNotReady, "no session is working on it")
        applying.refuse(RevertPlan("plan", "x"), PlanNotReady, "apply/applied; from there: roll_back_plan$")

    def test_constrained(self, applying: World) -> None:
        """The reason is kept; revert and cancel lead out."""
        plan = applying.do(ConstrainApply("plan", applying.lease(), "lint failed")).plan
        assert (plan.state, plan.errors[-1].message) == (PlanState.CONSTRAINED, "lint failed")
        applying.refuse(RetryPlan("plan"), PlanNotReady, "from there: cancel_plan, revert_plan$")
        reverted = applying.do(RevertPlan("plan", "try again")).plan
        assert reverted.executed_attempt is None

    def test_nothing_to_prove(self, world: World) -> None:
        """A plan that changed nothing is applied by an empty proof."""
        world.finish()
        world.do(AdvancePlan("plan", Phase.APPLY))
        lease = world.start()
        assert world.do(CompleteApply("plan", lease, {})).plan.state is PlanState.APPLIED


class TestAgain:
    """Retry and revert."""

    def test_retry(self, world: World) -> None:
        """The same phase, another attempt, the errors kept."""
        world.start()
        world.fail()
        plan = world.do(RetryPlan("plan")).plan
        assert (plan.phase, plan.state, plan.attempt) == (Phase.STRATEGIZE, PlanState.QUEUED, 2)
        assert len(plan.errors) == 1

    def test_attempts_are_bounded(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Past the bound the advice is to revert or cancel."""
        monkeypatch.setattr(limits, "ATTEMPTS_MAX", 1)
        world.start()
        world.fail()
        world.refuse(RetryPlan("plan"), PlanNotReady, "had 1 attempts: revert or cancel it")

    def test_revert(self, world: World) -> None:
        """Back to strategize: the lease is revoked, the reason kept, open changesets are aborted."""
        token = world.execute()
        world.open("cs1")
        world.open("cs2")
        plan = world.do(RevertPlan("plan", "wrong way"), session="bob").plan
        assert (plan.phase, plan.state, plan.reversion_count, plan.lease) == (
            Phase.STRATEGIZE,
            PlanState.QUEUED,
            1,
            None,
        )
        assert plan.errors[-1].message == "reverted: wrong way"
        assert {each.state for each in world.state.changesets} == {ChangesetState.ABORTED}
        world.refuse(CompletePhase("plan", Phase.EXECUTE, token), LeaseLost, "is over")

    @pytest.mark.parametrize("size", [0, 1, limits.ERROR_CHARS_MAX - 1, limits.ERROR_CHARS_MAX])
    def test_longest_reason(self, world: World, size: int) -> None:
        """What is kept is a little longer than what was given, and arrives at the client whole."""
        world.execute()
        plan = world.do(RevertPlan("plan", "☃" * size)).plan
        assert plan.errors[-1].message == "reverted: " + "☃" * size
        assert world.do(GetPlan("plan")).plan == plan

    def test_revert_supersedes_decisions(self, world: World) -> None:
        """Those after the last checkpoint, once, and never erased."""
        world.execute()
        for name, checkpoint in (("d1", False), ("d2", True), ("d3", False)):
            world.do(RecordDecision("plan", name, world.lease(), "q", "c", checkpoint=checkpoint))
        world.do(RevertPlan("plan", "x"))
        first = world.now_ms
        world.now_ms += 9
        world.execute()
        world.do(RecordDecision("plan", "d4", world.lease(), "q", "c"))
        world.do(RevertPlan("plan", "x"))
        decisions = world.do(ListDecisions("plan")).decisions
        assert {each.decision_id: each.superseded_at_ms for each in decisions} == {
            "d1": None,
            "d2": None,
            "d3": first,
            "d4": world.now_ms,
        }

    def test_reversions_are_bounded(self, world: World) -> None:
        """At most three."""
        for _ in range(3):
            world.execute()
            world.do(RevertPlan("plan", "x"))
        world.execute()
        world.refuse(RevertPlan("plan", "x"), PlanNotReady, "was reverted 3 times: cancel it")
        world.do(CancelPlan("plan"))

    def test_revert_cancels_children(self, world: World) -> None:
        """The unfinished ones; the parent may declare others."""
        world.execute()
        world.declare("done", "kid")
        world.finish("done")
        world.start("kid")
        plan = world.do(RevertPlan("plan", "x")).plan
        assert plan.subplans is None
        assert world.plan("kid").state is PlanState.CANCELLED
        assert world.plan("kid").errors[-1].message == "parent plan was reverted"
        assert world.plan("done").state is PlanState.COMPLETE
        world.execute()
        world.declare("fresh")

    def test_disowned_child_does_not_run(self, world: World) -> None:
        """A finished child of a reverted parent cannot come back among, or instead of, its new siblings."""
        world.execute()
        world.declare("old")
        world.finish("old")
        world.do(RevertPlan("plan", "x"))
        world.refuse(RevertPlan("old", "x"), PlanNotReady, "its parent 'plan' is strategize/queued, not executing")
        world.execute()
        world.do(RevertPlan("old", "x"))
        start = StartPhase("old", Phase.STRATEGIZE)
        world.refuse(start, PlanNotReady, "its parent 'plan' was reverted and no longer declares it: cancel it")
        world.declare("new")
        world.refuse(start, PlanNotReady, "no longer declares it: cancel it")
        world.do(CancelPlan("old"))

    def test_child_of_a_done_parent_stays_done(self, world: World) -> None:
        """A parent that completed counts on its children: none goes back behind it."""
        lease = world.execute()
        world.declare("kid")
        world.finish("kid")
        world.do(CompletePhase("plan", Phase.EXECUTE, lease))
        world.refuse(RevertPlan("kid", "x"), PlanNotReady, "its parent 'plan' is execute/complete, not executing")


class TestCancel:
    """For good, with everybody below."""

    def test_tree(self, world: World) -> None:
        """Children and grandchildren end with it; what has ended already is left as it is."""
        world.execute()
        world.declare("kid", "done")
        world.execute("kid")
        world.do(CancelPlan("done", "first"))
        world.declare("grandkid", plan_id="kid")
        world.start("grandkid")
        version = world.plan("done").version
        plan = world.do(CancelPlan("plan", "enough")).plan
        assert plan == world.plan()
        for each in ("plan", "kid", "grandkid"):
            assert (world.plan(each).state, world.plan(each).lease) == (PlanState.CANCELLED, None)
            assert world.plan(each).errors[-1].message == "enough"
        assert world.plan("done").version == version
        assert len(world.state.plans.by_expiry) == 0

    def test_changesets_stay_readable(self, world: World) -> None:
        """Closed, not aborted, for the audit."""
        world.execute()
        world.open("cs1")
        world.record()
        world.open("cs2")
        world.do(CancelPlan("plan"))
        assert {each.state for each in world.state.changesets} == {ChangesetState.CLOSED}
        assert len(world.state.entries.of("cs1") + world.state.entries.of("cs2")) == 1
        assert len(world.state.contexts) == 0

    def test_without_a_reason(self, world: World) -> None:
        """No empty error is recorded."""
        assert world.do(CancelPlan("plan")).plan.errors == ()

    def test_twice(self, world: World) -> None:
        """Cancelled is the end."""
        world.do(CancelPlan("plan"))
        world.refuse(CancelPlan("plan"), PlanNotReady, "nothing, it has ended")


@pytest.mark.parametrize(
    "command",
    [
        StartPhase("plan", Phase.STRATEGIZE),
        CompletePhase("plan", Phase.STRATEGIZE, 1),
        FailPhase("plan", Phase.STRATEGIZE, 1, "x"),
        CompleteApply("plan", 1, {}),
        ConstrainApply("plan", 1, "x"),
        RenewLease("plan", 1),
        RecordDecision("plan", "d", 1, "q", "c"),
        DeclareSubplans("plan", 1, (SubplanSpec("a", "a", "act"),)),
        GetPlan("plan"),
        AdvancePlan("plan", Phase.EXECUTE),
        RetryPlan("plan"),
        RevertPlan("plan", ""),
        CancelPlan("plan"),
        ListDecisions("plan"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_out_of_scope(world: World, command: GetPlan) -> None:
    """A plan with a project outside the scope can be neither changed nor read: it is not there."""
    error = world.refuse(command, NotFound, "^there is no plan 'plan' in this session's projects$", projects={"q"})
    assert error.details == {"plan_id": "plan"}


def test_plan_is_immutable(world: World) -> None:
    """What a reader got does not follow the state."""
    before: Plan = world.do(GetPlan("plan")).plan
    world.start()
    assert before.state is PlanState.QUEUED
