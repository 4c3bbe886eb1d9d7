"""The right to work on a plan: one holder, one token, one end."""

from collections.abc import Callable

import pytest

from stepwell import limits
from stepwell.domain import machine
from stepwell.domain.changesets.commands import EndChangeset, RecordChange, StartChangeset
from stepwell.domain.commands import Write
from stepwell.domain.plans.commands import (
    AdvancePlan,
    CancelPlan,
    CompleteApply,
    CompletePhase,
    ConflictFound,
    ConstrainApply,
    DeclareSubplans,
    EndSession,
    ExpireLeases,
    FailPhase,
    GetPlan,
    ProceedPlan,
    RecordDecision,
    RecordMerge,
    RenewLease,
    ResolveConflict,
    RetryPlan,
    RevertPlan,
    RollBackPlan,
    StartPhase,
    SubplanSpec,
    UseAction,
)
from stepwell.domain.plans.conflicts import Resolution
from stepwell.domain.plans.model import Lease, Phase, PlanState, ProjectLink
from stepwell.domain.replies import PlanFound, Reply
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import Busy, LeaseLost, NotFound, PlanNotReady
from tests.support.domain.world import NOON_MS, World


@pytest.fixture
def world() -> World:
    """A plan in strategize/queued."""
    world = World()
    world.use()
    return world


def test_start_grants_a_lease(world: World) -> None:
    """Session, token and end; the token is the revision that granted it."""
    plan = world.do(StartPhase("plan", Phase.STRATEGIZE, 1_000), session="bob").plan
    assert plan.lease == Lease(world.state.revision, "bob", NOON_MS + 1_000)
    assert world.state.plans.next_expiry_ms == NOON_MS + 1_000


def test_one_winner(world: World) -> None:
    """Of two who start, the second finds the plan processing."""
    world.start(session="alice")
    world.refuse(StartPhase("plan", Phase.STRATEGIZE), PlanNotReady, "strategize/processing", session="bob")
    assert world.plan().lease is not None


def test_without_a_token(world: World) -> None:
    """Somebody else's plan is not mine to complete; nobody's has to be started first."""
    world.refuse(
        CompletePhase("plan", Phase.STRATEGIZE, None),
        PlanNotReady,
        "no session is working on it; start its phase first",
    )
    world.start()
    world.refuse(
        CompletePhase("plan", Phase.STRATEGIZE, None),
        LeaseLost,
        "another session holds its lease; pass lease= if it was given to you",
    )


def test_wrong_token(world: World) -> None:
    """It is over, and the refusal says to stop."""
    token = world.start()
    error = world.refuse(
        FailPhase("plan", Phase.STRATEGIZE, token + 1, "x"), LeaseLost, f"lease {token + 1} is over; stop working on it"
    )
    assert error.details == {"plan_id": "plan", "lease": token + 1}


def test_token_can_be_given_away(world: World) -> None:
    """Whoever shows the token may use it, from any session."""
    token = world.start(session="alice")
    world.do(CompletePhase("plan", Phase.STRATEGIZE, token), session="bob")


def test_ends_in_time(world: World) -> None:
    """At its end it is over, even before anybody took it back."""
    token = world.start(lease_ms=1_000)
    world.now_ms += 999
    world.do(RenewLease("plan", token, 10))
    world.now_ms += 10
    world.refuse(CompletePhase("plan", Phase.STRATEGIZE, token), LeaseLost, "is over")
    world.refuse(RenewLease("plan", token), LeaseLost, "is over")
    assert world.plan().state is PlanState.PROCESSING


def test_renewal(world: World) -> None:
    """The same token for longer, and never for shorter."""
    token = world.start(lease_ms=1_000)
    world.now_ms += 500
    plan = world.do(RenewLease("plan", token, 1_000)).plan
    assert plan.lease == Lease(token, "alice", NOON_MS + 1_500)
    assert world.do(RenewLease("plan", token, 10)).plan.lease == plan.lease
    assert list(world.state.plans.by_expiry) == [(NOON_MS + 1_500, "plan")]


def test_renewal_makes_nobody_stale(world: World) -> None:
    """A heartbeat is no news: whoever saw the plan before it may still say so."""
    token = world.start()
    version = world.plan().version
    assert world.do(RenewLease("plan", token)).plan.version == world.plan().version == version
    world.do(CompletePhase("plan", Phase.STRATEGIZE, token, version))


def test_tokens_grow_within_one_transaction(world: World) -> None:
    """Which has one revision for all of them: the first holder cannot be taken for the second."""
    first = world.state.revision + 1
    outcomes = machine.apply_all(
        world.state,
        [
            StartPhase("plan", Phase.STRATEGIZE),
            FailPhase("plan", Phase.STRATEGIZE, first, "x"),
            RetryPlan("plan"),
            StartPhase("plan", Phase.STRATEGIZE),
        ],
        world.origin(),
    )
    tokens = [
        reply.plan.lease.token for each in outcomes if isinstance(reply := each.reply, PlanFound) if reply.plan.lease
    ]
    assert tokens == [first, first + 1]
    assert world.lease() == world.plan().fence == first + 1
    world.refuse(CompletePhase("plan", Phase.STRATEGIZE, first), LeaseLost, "is over; stop working on it")
    world.complete()


def test_tokens_grow_behind_a_transaction(world: World) -> None:
    """Also when it granted so many that the revision is behind them."""
    first = world.state.revision + 1
    starts = [StartPhase("plan", Phase.STRATEGIZE), FailPhase("plan", Phase.STRATEGIZE, first, "x"), RetryPlan("plan")]
    again = [
        each if type(each) is not FailPhase else FailPhase("plan", Phase.STRATEGIZE, first + 1, "x") for each in starts
    ]
    machine.apply_all(world.state, [*starts, *again, *starts[:1]], world.origin())
    tokens = [world.lease()]
    assert tokens == [first + 2]
    for _ in range(3):
        world.fail()
        world.do(RetryPlan("plan"))
        tokens.append(world.start())
    assert tokens == sorted(set(tokens))


def test_tokens_grow_when_the_lease_went_without_its_token(world: World) -> None:
    """A revert takes it from whoever holds it, in the transaction that granted it too."""
    world.start()
    world.complete()
    world.do(AdvancePlan("plan", Phase.EXECUTE))
    first = world.state.revision + 1
    machine.apply_all(
        world.state,
        [StartPhase("plan", Phase.EXECUTE), RevertPlan("plan", "x"), StartPhase("plan", Phase.STRATEGIZE)],
        world.origin(),
    )
    assert world.lease() == first + 1


def test_expiry_queues_again(world: World) -> None:
    """Another attempt, the loss among the errors, and the old token worthless."""
    token = world.start(lease_ms=1_000)
    world.now_ms += 999
    assert world.do(ExpireLeases()).plan_ids == ()
    world.now_ms += 1
    revision = world.state.revision
    assert world.do(ExpireLeases()).plan_ids == ("plan",)
    assert world.state.revision == revision + 1
    plan = world.plan()
    assert (plan.state, plan.attempt, plan.lease) == (PlanState.QUEUED, 2, None)
    fault = plan.errors[-1]
    assert (fault.at_ms, fault.phase, fault.attempt) == (world.now_ms, Phase.STRATEGIZE, 1)
    assert fault.message == "lease lost: it expired"
    assert world.state.plans.next_expiry_ms is None
    assert world.start() != token
    world.refuse(CompletePhase("plan", Phase.STRATEGIZE, token), LeaseLost, "is over")


def test_expiry_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest overdue first, the rest at the next call."""
    monkeypatch.setattr(limits, "EXPIRIES_PER_STEP_MAX", 2)
    for number, lease_ms in enumerate((30, 10, 20)):
        world.use(f"p{number}")
        world.start(f"p{number}", lease_ms=lease_ms)
    world.now_ms += 100
    assert world.do(ExpireLeases()).plan_ids == ("p1", "p2")
    assert world.do(ExpireLeases()).plan_ids == ("p0",)
    assert world.do(ExpireLeases()).plan_ids == ()


def test_end_of_a_session(world: World) -> None:
    """All of its leases are lost at once, and nobody else's."""
    world.use("other")
    world.use("bobs")
    world.start("plan")
    world.start("other")
    world.start("bobs", session="bob")
    assert world.do(EndSession("alice")).plan_ids == ("other", "plan")
    assert world.plan().errors[-1].message == "lease lost: session alice ended"
    assert world.plan("bobs").state is PlanState.PROCESSING
    assert world.do(EndSession("alice")).plan_ids == ()


def test_leases_of_a_session_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another session may still start."""
    monkeypatch.setattr(limits, "LEASES_PER_SESSION_MAX", 1)
    world.use("other")
    world.start()
    start = StartPhase("other", Phase.STRATEGIZE)
    world.refuse(start, Busy, "holds 1 leases already: finish some plans first")
    world.do(start, session="bob")


def test_last_attempt_ends_in_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that kills whoever works on it is not queued for ever."""
    monkeypatch.setattr(limits, "ATTEMPTS_MAX", 2)
    world.start()
    world.do(EndSession("alice"))
    world.start()
    world.do(EndSession("alice"))
    plan = world.plan()
    assert (plan.state, plan.attempt, len(plan.errors)) == (PlanState.ERRORED, 2, 2)


def test_find(world: World) -> None:
    """A plan that is not there, and one of which a project is out of scope, which is the same to who asks."""
    assert world.refuse(GetPlan("none"), NotFound, "there is no plan 'none'").details == {"plan_id": "none"}
    missing = world.refuse(GetPlan("none"), NotFound, "in this session's projects$", projects={"q"})
    hidden = world.refuse(GetPlan("plan"), NotFound, "in this session's projects$", projects={"q"})
    assert hidden.message == missing.message.replace("none", "plan")
    assert hidden.details == {"plan_id": "plan"}
    world.do(UseAction("wide", "act", (ProjectLink("p"), ProjectLink("q"))))
    world.refuse(GetPlan("wide"), NotFound, "there is no plan 'wide'", projects={"q"})
    assert world.do(GetPlan("plan"), projects={"p", "q"}).plan == world.plan()


def lost_in_execute() -> World:
    """A parent whose children are finished, merged but for a conflict, with an open changeset, and a lease to lose."""
    world = World()
    world.use()
    world.execute()
    world.declare("first", "second")
    for child in ("first", "second"):
        world.execute(child)
        world.change("a.py", b"base", child.encode(), plan_id=child)
        world.complete(child)
    world.change("a.py", b"base", b"first")
    return world


def lost_in_apply() -> World:
    """A plan that is being applied."""
    world = World()
    world.use()
    world.execute()
    world.change("a.py", None, b"x")
    world.complete()
    world.do(AdvancePlan("plan", Phase.APPLY))
    world.start()
    return world


def merged(token: int) -> RecordMerge:
    return RecordMerge("plan", token, ("first", "second"), "plan-a", (ConflictFound("a.py", "second"),))


STALE: dict[str, Callable[[int], Write[Reply]]] = {
    "start a changeset": lambda token: StartChangeset("plan", "ctx", "new", token),
    "record": lambda token: RecordChange("plan", "ctx", token, "b.py", after=b"late"),
    "record by name": lambda token: RecordChange("plan", "ctx", token, "b.py", after=b"late", changeset_id="cs"),
    "close": lambda token: EndChangeset("plan", "ctx", token, "cs"),
    "abort": lambda token: EndChangeset("plan", "ctx", token, "cs", abort=True),
    "complete": lambda token: CompletePhase("plan", Phase.EXECUTE, token),
    "fail": lambda token: FailPhase("plan", Phase.EXECUTE, token, "late"),
    "renew": lambda token: RenewLease("plan", token),
    "decide": lambda token: RecordDecision("plan", "d", token, "which?", "this"),
    "declare": lambda token: DeclareSubplans("plan", token, (SubplanSpec("kid", "kid", "act"),)),
    "proceed": lambda token: ProceedPlan("plan", token),
    "merge": lambda token: RecordMerge("plan", token, ("first", "second")),
    "resolve": lambda token: ResolveConflict("plan", token, "a.py", "0", "new", Resolution.ACCEPT_THEIRS),
}
"""What a worker does while it executes, with its token."""

AFTERWARDS = ["nobody took it back", "taken back", "another has it"]


def goes_by(world: World, what: str) -> None:
    """The lease is over; whether somebody noticed must not matter to whoever had it."""
    world.now_ms += limits.LEASE_MS
    if what != "nobody took it back":
        world.do(ExpireLeases())
    if what == "another has it":
        world.start(session="bob")


@pytest.mark.parametrize("what", AFTERWARDS)
@pytest.mark.parametrize("deed", STALE)
def test_who_stood_still_for_too_long_can_do_nothing(deed: str, what: str) -> None:
    """Paused past its lease and continued, a worker neither records nor ends, merges nor resolves anything."""
    world = lost_in_execute()
    token = world.lease()
    world.open()
    if deed == "resolve":
        world.do(merged(token))
    goes_by(world, what)
    world.refuse(STALE[deed](token), LeaseLost, f"lease {token} is over; stop working on it")


@pytest.mark.parametrize("what", AFTERWARDS)
def test_who_stood_still_while_it_applied(what: str) -> None:
    """What it did to the tree is not proven by it any more, nor constrained, nor rolled back: it is not applied."""
    world = lost_in_apply()
    token = world.lease()
    goes_by(world, what)
    proof: dict[str, bytes | None] = {"a.py": digest_of(b"x")}
    over = f"lease {token} is over; stop working on it"
    world.refuse(CompleteApply("plan", token, proof), LeaseLost, over)
    world.refuse(ConstrainApply("plan", token, "late"), LeaseLost, over)
    world.refuse(FailPhase("plan", Phase.APPLY, token, "late"), LeaseLost, over)
    world.refuse(RollBackPlan("plan", "late", {"a.py": None}), PlanNotReady, "roll_back_plan is not legal")


def test_who_was_cancelled_from_above_can_do_nothing() -> None:
    """A child's token ends with its parent."""
    world = World()
    world.use()
    world.execute()
    world.declare("kid")
    token = world.execute("kid")
    world.open("cs", "ctx", "kid")
    world.do(CancelPlan("plan"))
    for command in (
        RecordChange("kid", "ctx", token, "a.py", after=b"late"),
        EndChangeset("kid", "ctx", token, "cs"),
        CompletePhase("kid", Phase.EXECUTE, token),
    ):
        world.refuse(command, LeaseLost, "is over; stop working on it")
