"""The only way in: all of a command or nothing, all of a transaction or nothing."""

from collections.abc import Sequence
from typing import cast

import pytest

from stepwell import limits
from stepwell.domain import machine
from stepwell.domain.changesets.commands import EndChangeset, RecordChange, StartChangeset
from stepwell.domain.commands import Write
from stepwell.domain.plans.commands import (
    ArchiveAction,
    CancelPlan,
    CreateAction,
    DeclareSubplans,
    ExpireLeases,
    FailPhase,
    GetAction,
    RecordDecision,
    RenewLease,
    RetryPlan,
    RevertPlan,
    StartPhase,
    SubplanSpec,
    UseAction,
)
from stepwell.domain.plans.model import Phase
from stepwell.domain.replies import Reply, SessionEnded
from stepwell.domain.state import State
from stepwell.domain.tiers import fast_path
from stepwell.domain.tiers.commands import (
    DeleteFragment,
    DemoteFragment,
    EvictLru,
    GetFragment,
    PromoteFragment,
    SetBudget,
    StoreFragment,
    SweepStale,
)
from stepwell.domain.tiers.model import Tier, TierBudget
from stepwell.domain.verdict import DECIDERS, Origin, Verdict
from stepwell.errors import (
    AlreadyExists,
    ManagerFault,
    NotFound,
    ResourceExhausted,
    StepTooLarge,
    TransactionAborted,
)
from tests.support.domain.world import LINKS, NOON_MS, World, image, origin

REFUSED = DeleteFragment("p", "no-such-fragment")


def busy_world() -> World:
    """Fragments in every tier and project, and a plan that executes with children and changesets."""
    world = World(TierBudget(hot_tokens=10, warm_entries=3, cold_entries=5))
    for name in "abc":
        world.store(name, 3)
    world.store("d", 3, project="q")
    world.store("w", tier=Tier.WARM)
    world.store("z", tier=Tier.COLD, project="r")
    world.do(GetFragment("p", "b"))
    world.use()
    world.execute()
    world.declare("kid", "sister")
    world.execute("kid")
    world.open("cs1", "ctx")
    world.open("cs2", "ctx")
    world.open("cs3", "other")
    world.record(before=b"a", after=b"b")
    world.open("cs4", "kids", "kid")
    world.do(RecordDecision("plan", "d1", world.lease(), "which?", "this", checkpoint=True))
    world.do(RecordDecision("plan", "d2", world.lease(), "why?", "because", parent_id="d1"))
    return world


@pytest.fixture
def world() -> World:
    return busy_world()


def everything(world: World) -> Sequence[Write[Reply]]:
    """A transaction of every kind of write, each of which succeeds after those before it."""
    lease, kids = world.lease(), world.lease("kid")
    return [
        StoreFragment("p", "e", b"e", 6),
        StoreFragment("new", "n", b"n", 1),
        StoreFragment("p", "a", b"again", 2, Tier.WARM),
        PromoteFragment("p", "a"),
        DemoteFragment("p", "c"),
        DeleteFragment("r", "z"),
        EvictLru(count=2),
        EvictLru(Tier.COLD),
        SweepStale(),
        SetBudget(TierBudget(hot_tokens=5, warm_entries=2, cold_entries=9)),
        CreateAction("fresh", "", "", "planner", "coder"),
        ArchiveAction("fresh"),
        UseAction("second", "act", LINKS),
        StartPhase("second", Phase.STRATEGIZE),
        RecordChange("plan", "ctx", lease, "b.py", before=b"b", after=b"c"),
        StartChangeset("plan", "third", "cs5", lease),
        RecordChange("plan", "third", lease, "c.py", after=b"c"),
        EndChangeset("plan", "ctx", lease, "cs2"),
        EndChangeset("plan", "other", lease, "cs3", abort=True),
        RecordDecision("plan", "d3", lease, "what?", "that", parent_id="d2"),
        RenewLease("plan", lease, 1_000_000),
        FailPhase("kid", Phase.EXECUTE, kids, "broken"),
        RetryPlan("kid"),
        StartPhase("kid", Phase.EXECUTE),
        DeclareSubplans("kid", world.state.revision + 1, (SubplanSpec("x", "grandkid", "act"),)),
        RevertPlan("plan", "wrong way"),
        CancelPlan("second", "not needed"),
    ]


def test_write_gets_a_revision_of_its_own(world: World) -> None:
    """Also when it finds everything as it is wanted."""
    revision = world.state.revision
    outcome = machine.apply(world.state, PromoteFragment("p", "b"), world.origin())
    assert (outcome.revision, outcome.changes) == (revision + 1, ())
    assert world.state.revision == revision + 1


def test_read_and_idle_housekeeping_have_none(world: World) -> None:
    """They answer at the revision that there is."""
    revision = world.state.revision
    for command in (GetAction("act"), ExpireLeases()):
        assert machine.apply(world.state, command, world.origin()).revision == revision


def test_deciding_changes_nothing(world: World) -> None:
    """Whatever was decided, until it is evolved nothing has happened."""
    before = image(world.state)
    for command in everything(world)[:5]:
        machine.decide(world.state, command, world.origin())
    assert image(world.state) == before


def test_transaction_is_one_revision(world: World) -> None:
    """All of it happens, each with its reply."""
    revision = world.state.revision
    outcomes = machine.apply_all(world.state, everything(world), world.origin())
    assert world.state.revision == revision + 1
    assert {outcome.revision for outcome in outcomes} == {revision + 1}
    assert outcomes[0].bodies
    assert world.plan().phase is Phase.STRATEGIZE
    assert world.plan("grandkid").parent_plan_id == "kid"
    assert world.do(GetAction("fresh")).action.uses == 0


@pytest.mark.parametrize("position", range(28))
def test_transaction_that_fails_anywhere_leaves_no_trace(world: World, position: int) -> None:
    """Rows, orders of use, counts, clocks, indexes, bodies, contexts and leases are as they were."""
    commands = everything(world)
    assert len(commands) == 27
    error = world.abort([*commands[:position], REFUSED])
    assert error.details == {"index": position, "cause": "NotFound"}
    assert isinstance(error.__cause__, NotFound)
    assert error.message.startswith(f"command {position} was refused, so none of the transaction happened: ")


def test_aborted_transaction_can_be_sent_again(world: World) -> None:
    """What follows an abort is what would have happened without it."""
    world.abort([*everything(world), REFUSED])
    twin = busy_world()
    for each in (world, twin):
        machine.apply_all(each.state, everything(each), each.origin())
    assert image(world.state) == image(twin.state)


def test_later_commands_see_earlier_ones() -> None:
    """Inside a transaction a name is taken as soon as it is used."""
    state = State()
    create = CreateAction("twice", "", "", "planner", "coder")
    with pytest.raises(TransactionAborted, match="exists already") as caught:
        machine.apply_all(state, [create, create], origin())
    assert isinstance(caught.value.__cause__, AlreadyExists)
    assert len(state.actions) == 0


def test_transaction_changes_a_bounded_number_of_rows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, not commands: the one that passes the bound is refused, and with it all of them."""
    commands = [StoreFragment("p", "a", b"new", 1), EvictLru(count=3), StoreFragment("p", "e", b"e", 1)]
    twin = busy_world()
    sizes = [len(each.changes) for each in machine.apply_all(twin.state, commands, twin.origin())]
    assert sum(sizes) > len(commands)
    for bound, index in ((sum(sizes) - 1, 2), (sum(sizes[:2]) - 1, 1), (sizes[0] - 1, 0)):
        monkeypatch.setattr(limits, "TRANSACTION_CHANGES_MAX", bound)
        error = world.abort(commands)
        assert error.details == {"index": index, "cause": "StepTooLarge"}
        assert isinstance(error.__cause__, StepTooLarge)
        assert error.message.endswith(f"a transaction changes at most {bound} rows: split it")
    monkeypatch.setattr(limits, "TRANSACTION_CHANGES_MAX", sum(sizes))
    machine.apply_all(world.state, commands, world.origin())
    assert image(world.state) == image(twin.state)


def test_single_command_has_a_bound_of_its_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of a transaction is not that of a command."""
    monkeypatch.setattr(limits, "TRANSACTION_CHANGES_MAX", 1)
    assert len(machine.apply(world.state, EvictLru(count=2), world.origin()).changes) > 1


def test_defect_costs_one_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that nobody foresaw becomes a `ManagerFault`, and nothing has changed."""

    def broken(_state: State, _command: object, _origin: Origin) -> Verdict:
        raise ZeroDivisionError

    deciders: dict[type, object] = cast("dict[type, object]", DECIDERS)
    monkeypatch.setitem(deciders, SweepStale, broken)
    before = image(world.state)
    with pytest.raises(ManagerFault, match=r"SweepStale met a defect \(ZeroDivisionError\(\)\); nothing changed"):
        machine.apply(world.state, SweepStale(), world.origin())
    with pytest.raises(ManagerFault):
        machine.apply_all(world.state, [StoreFragment("x", "y", b"z", 1), SweepStale()], world.origin())
    assert image(world.state) == before


def test_want_of_memory_costs_one_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that finds no memory is refused with what to do, and nothing has changed; no transaction either."""

    def greedy(_state: State, _command: object, _origin: Origin) -> Verdict:
        raise MemoryError

    deciders: dict[type, object] = cast("dict[type, object]", DECIDERS)
    monkeypatch.setitem(deciders, SweepStale, greedy)
    before = image(world.state)
    with pytest.raises(ResourceExhausted, match="ulimit -v"):
        machine.apply(world.state, SweepStale(), world.origin())
    with pytest.raises(TransactionAborted, match="ulimit -v") as aborted:
        machine.apply_all(world.state, [StoreFragment("x", "y", b"z", 1), SweepStale()], world.origin())
    assert aborted.value.details == {"index": 1, "cause": "ResourceExhausted"}
    assert image(world.state) == before


def test_fast_path_without_memory_leaves_it_to_the_general_path(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that cannot be decided is empty, and nothing has changed."""

    def greedy(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(fast_path, "decide_stores", greedy)
    before = image(world.state)
    run = machine.apply_store_run(world.state, [StoreFragment("x", "y", b"z", 1)], world.origin(), 1_000)
    assert (run.rows, run.bodies, run.demotions) == ([], {}, {})
    assert image(world.state) == before


def test_image_sees_what_a_read_changes(world: World) -> None:
    """The comparison on which these tests rest is not blind to orders and counts."""
    before = image(world.state)
    machine.evolve(world.state, Verdict(SessionEnded(()), accessed=("p", "a")), NOON_MS)
    after = image(world.state)
    assert {key for key in before if before[key] != after[key]} == {"fragments", "clocks", "orders"}
