"""Events are made of changes: each says what happened, and together they lead to where the state is."""

import random
from typing import get_args

import pytest
from msgspec import Struct

from stepwell import limits
from stepwell.domain import events as ev
from stepwell.domain import machine
from stepwell.domain.changesets.commands import EndChangeset, RecordChange, StartChangeset
from stepwell.domain.changesets.model import ChangesetState, Operation
from stepwell.domain.commands import Command, Write
from stepwell.domain.event_builder import BUILDERS, events_of
from stepwell.domain.plans.commands import (
    AdvancePlan,
    ArchiveAction,
    BeginPlan,
    CancelPlan,
    CompleteApply,
    ConflictFound,
    DeclareSubplans,
    EndSession,
    FailPhase,
    ForgetPlans,
    RecordDecision,
    RecordMerge,
    RenewLease,
    ResolveConflict,
    RetryPlan,
    RevertPlan,
    RollBackPlan,
    StartPhase,
    StartReady,
    SubplanSpec,
    UseAction,
)
from stepwell.domain.plans.conflicts import Resolution
from stepwell.domain.plans.model import Phase, PlanState, ProjectLink, SubplanMode
from stepwell.domain.receipts.commands import StoreReceipt
from stepwell.domain.replies import KeptRow, Reply
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.commands import (
    DeleteFragment,
    DemoteFragment,
    EvictLru,
    GetFragment,
    PromoteFragment,
    SetBudget,
    StoreFragment,
)
from stepwell.domain.tiers.model import Tier, TierBudget
from stepwell.domain.verdict import RowChanged
from stepwell.errors import Refused
from tests.support.domain.world import NOON_MS, World
from tests.support.seeds import seeded

HOT, WARM, COLD = Tier
SEED = 7316


class Told(World):
    """A world that tells what happens in it."""

    def projects_of(self, plan_id: str) -> tuple[str, ...]:
        return self.plan(plan_id).projects

    def told(self, *commands: Command[Reply]) -> list[ev.AnyEvent]:
        """What one command, or a transaction of several, comes to."""
        writes = [command for command in commands if isinstance(command, Write)]
        if len(writes) > 1:
            outcomes = machine.apply_all(self.state, writes, self.origin())
        else:
            outcomes = [machine.apply(self.state, commands[0], self.origin())]
        changes = [change for outcome in outcomes for change in outcome.changes]
        return events_of(changes, outcomes[0].revision, self.now_ms, self.projects_of)


@pytest.fixture
def world() -> Told:
    return Told()


@pytest.fixture
def executing(world: Told) -> Told:
    """A world with a plan that executes."""
    world.use()
    world.execute()
    return world


def put(fragment_id: str, tokens: int = 1, tier: Tier = HOT, body: bytes = b"body") -> StoreFragment:
    return StoreFragment("p", fragment_id, body, tokens, tier)


def test_every_row_is_told_of() -> None:
    """A new kind of row has to say what it means to whoever watches, if only nothing."""
    assert {*BUILDERS} == {*get_args(KeptRow)}


@pytest.mark.parametrize("kind", get_args(ev.AnyEvent), ids=lambda kind: kind.__name__)
def test_names_are_past_participles_and_fields_small(kind: type[Struct]) -> None:
    """Whatever happened has happened; when, and at which revision, comes first."""
    assert kind.__name__.endswith("ed") or kind in {ev.PlanForgotten, ev.PlanRolledBack}
    assert kind.__struct_fields__[:2] == ("revision", "at_ms")
    assert not {"body", "description", "question", "rationale", "metadata", "source_text"} & {*kind.__struct_fields__}


def test_stored(world: Told) -> None:
    """What is new, and what takes the place of another, each with what is needed to know whether one has it."""
    digest = digest_of(b"body")
    assert world.told(put("a", 3)) == [
        ev.FragmentStored(1, NOON_MS, "p", "a", HOT, None, 3, 4, digest, "text"),
    ]
    assert world.told(put("a", 5, WARM)) == [
        ev.FragmentStored(2, NOON_MS, "p", "a", WARM, HOT, 5, 4, digest, "text"),
    ]
    assert world.told(put("a", 5, WARM)) == [
        ev.FragmentStored(3, NOON_MS, "p", "a", WARM, WARM, 5, 4, digest, "text"),
    ]


def test_receipts_are_no_news(world: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that one is kept, nor that another makes way: who asked what changes nothing of what there is."""
    monkeypatch.setattr(limits, "RECEIPTS_MAX", 1)
    assert [world.told(StoreReceipt(name, ("p",), "?", b"bytes")) for name in "ab"] == [[], []]


def test_pushed_down() -> None:
    """Whoever makes room for another is told of before it, at the same revision."""
    world = Told(TierBudget(hot_tokens=10, warm_entries=1))
    world.store("a", 10)
    world.store("b", 10)
    assert world.told(put("c", 10)) == [
        ev.FragmentDemoted(3, NOON_MS, "p", "b", HOT, WARM, 10),
        ev.FragmentDemoted(3, NOON_MS, "p", "a", WARM, COLD, 10),
        ev.FragmentStored(3, NOON_MS, "p", "c", HOT, None, 10, 4, digest_of(b"body"), "text"),
    ]


def test_moved_and_deleted(world: Told) -> None:
    world.store("a", 2, tier=COLD)
    digest = world.row("a").digest
    assert world.told(PromoteFragment("p", "a")) == [ev.FragmentPromoted(2, NOON_MS, "p", "a", COLD, WARM, 2)]
    assert world.told(PromoteFragment("p", "a")) == [ev.FragmentPromoted(3, NOON_MS, "p", "a", WARM, HOT, 2)]
    assert world.told(PromoteFragment("p", "a")) == []
    assert world.told(DemoteFragment("p", "a")) == [ev.FragmentDemoted(5, NOON_MS, "p", "a", HOT, WARM, 2)]
    assert world.told(DeleteFragment("p", "a")) == [ev.FragmentDeleted(6, NOON_MS, "p", "a", WARM, 2, digest)]


def test_read_often(world: Told) -> None:
    """A read says nothing, but for the one that lifts what it reads."""
    world.store("a", tier=WARM)
    threshold = world.state.budget.promotion_threshold
    told = [world.told(GetFragment("p", "a")) for _ in range(threshold)]
    assert told == [[]] * (threshold - 1) + [[ev.FragmentPromoted(2, NOON_MS, "p", "a", WARM, HOT, 1)]]


@pytest.mark.parametrize(
    "second, kind",
    [
        pytest.param(put("a", 1, WARM, b"other"), ev.FragmentStored, id="another body"),
        pytest.param(put("a", 2, WARM), ev.FragmentStored, id="another count"),
        pytest.param(
            StoreFragment("p", "a", b"body", 1, WARM, metadata={"k": "v"}), ev.FragmentStored, id="other metadata"
        ),
        pytest.param(DemoteFragment("p", "a"), ev.FragmentDemoted, id="only moved"),
    ],
)
def test_twice_in_a_transaction(world: Told, second: Command[Reply], kind: type[Struct]) -> None:
    """All of it is of one revision; whether something was moved or stored anew is still told apart."""
    first, then = world.told(put("a"), second)
    assert (first.revision, then.revision) == (1, 1)
    assert type(first) is ev.FragmentStored
    assert type(then) is kind


def test_budget(world: Told) -> None:
    """Everybody's business; the same again is no change."""
    budget = TierBudget(hot_tokens=10)
    (event,) = world.told(SetBudget(budget))
    assert event == ev.BudgetChanged(1, NOON_MS, budget)
    assert event.scope == ()
    assert world.told(SetBudget(budget)) == []


def test_actions(world: Told) -> None:
    """Created, used and archived; archiving again is no change."""
    world.action("once", reusable=False)
    action = world.state.actions.get("local/once")
    assert action is not None
    made = events_of([RowChanged(None, action)], 1, NOON_MS, world.projects_of)
    assert made == [ev.ActionCreated(1, NOON_MS, "local/once", reusable=False)]
    assert world.told(ArchiveAction("once")) == [ev.ActionArchived(2, NOON_MS, "local/once")]
    assert world.told(ArchiveAction("once")) == []


def test_plan_created(world: Told) -> None:
    """With the use that it makes of its action."""
    world.action()
    used, created = world.told(UseAction("plan", "act", (ProjectLink("p"), ProjectLink("q"))))
    assert used == ev.ActionUsed(2, NOON_MS, "local/act", 1)
    assert created == ev.PlanCreated(
        2, NOON_MS, "plan", ("p", "q"), "local/act", None, "plan", Phase.STRATEGIZE, PlanState.QUEUED
    )
    assert (used.scope, created.scope) == ((), ("p", "q"))


def test_plan_moved(world: Told) -> None:
    """From where to where, for whom to wait, and who works on it."""
    world.use()
    (started,) = world.told(StartPhase("plan", Phase.STRATEGIZE))
    assert started == ev.PlanMoved(
        3,
        NOON_MS,
        "plan",
        ("p",),
        "local/act",
        None,
        Phase.STRATEGIZE,
        PlanState.QUEUED,
        Phase.STRATEGIZE,
        PlanState.PROCESSING,
        1,
        2,
        "alice",
    )
    (failed,) = world.told(FailPhase("plan", Phase.STRATEGIZE, world.lease(), "it broke"))
    assert isinstance(failed, ev.PlanMoved)
    assert (failed.state, failed.session_id) == (PlanState.ERRORED, None)
    (retried,) = world.told(RetryPlan("plan"))
    assert isinstance(retried, ev.PlanMoved)
    assert (retried.source_state, retried.state, retried.attempt) == (PlanState.ERRORED, PlanState.QUEUED, 2)


def test_lease(world: Told) -> None:
    """Renewed is no move; lost is one."""
    world.use()
    world.start()
    world.now_ms += 5
    (renewed,) = world.told(RenewLease("plan", world.lease(), 400_000))
    assert renewed == ev.LeaseRenewed(4, NOON_MS + 5, "plan", ("p",), "alice", NOON_MS + 400_005)
    (lost,) = world.told(EndSession("alice"))
    assert isinstance(lost, ev.PlanMoved)
    assert (lost.state, lost.attempt, lost.session_id) == (PlanState.QUEUED, 2, None)


def test_subplans(executing: Told) -> None:
    """The parent says that it has children; each of them that it was created."""
    specs = (SubplanSpec("c1", "c1", "act"), SubplanSpec("c2", "c2", "act"))
    declared, used, *born = executing.told(
        DeclareSubplans("plan", executing.lease(), specs, SubplanMode.PARALLEL, 5, fail_fast=False)
    )
    assert declared == ev.SubplansDeclared(executing.state.revision, NOON_MS, "plan", ("p",), SubplanMode.PARALLEL, 2)
    assert isinstance(used, ev.ActionUsed)
    assert [(each.plan_id, each.parent_plan_id) for each in born if isinstance(each, ev.PlanCreated)] == [
        ("c1", "plan"),
        ("c2", "plan"),
    ]


def test_decisions(executing: Told) -> None:
    """Recorded, and superseded by going back; that the plan has one more is not told twice."""
    command = RecordDecision("plan", "d", executing.lease(), "which?", "this", "because")
    assert executing.told(command) == [
        ev.DecisionRecorded(
            executing.state.revision, NOON_MS, "plan", ("p",), "d", None, Phase.EXECUTE, 1, checkpoint=False
        )
    ]
    moved, superseded = executing.told(RevertPlan("plan", "no"))
    assert isinstance(moved, ev.PlanMoved)
    assert superseded == ev.DecisionSuperseded(executing.state.revision, NOON_MS, "plan", ("p",), "d")


def test_changesets(executing: Told) -> None:
    """Started, recorded into and ended; what the context has open is not told twice."""
    lease = executing.lease()
    assert executing.told(StartChangeset("plan", "ctx", "cs", lease)) == [
        ev.ChangesetStarted(executing.state.revision, NOON_MS, "plan", ("p",), "cs", "ctx", 1)
    ]
    assert executing.told(RecordChange("plan", "ctx", lease, "a.py", before=None, after=b"new")) == [
        ev.ChangeRecorded(
            executing.state.revision,
            NOON_MS,
            "plan",
            ("p",),
            "cs",
            1,
            Operation.CREATE,
            "a.py",
            None,
            None,
            digest_of(b"new"),
        )
    ]
    assert executing.told(EndChangeset("plan", "ctx", lease, "cs")) == [
        ev.ChangesetEnded(executing.state.revision, NOON_MS, "plan", ("p",), "cs", ChangesetState.CLOSED, 1)
    ]


def test_steps_of_one_command_are_told_one_by_one(executing: Told) -> None:
    """Whoever watches sees every position that a plan went through."""
    executing.do(DeclareSubplans("plan", executing.lease(), (SubplanSpec("kid", "kid", "act"),), retries=1))

    def positions(*commands: Command[Reply]) -> list[tuple[str, str, int]]:
        told = executing.told(*commands)
        assert all(isinstance(event, ev.PlanMoved) and event.parent_plan_id == "plan" for event in told)
        return [(event.phase, event.state, event.attempt) for event in told if isinstance(event, ev.PlanMoved)]

    assert positions(StartReady("plan", straight=True)) == [
        ("strategize", "processing", 1),
        ("strategize", "complete", 1),
        ("execute", "queued", 1),
        ("execute", "processing", 1),
    ]
    assert positions(FailPhase("kid", Phase.EXECUTE, executing.lease("kid"), "no")) == [
        ("execute", "errored", 1),
        ("execute", "queued", 2),
    ]
    assert positions(StartReady("plan")) == [("execute", "processing", 2)]
    assert executing.told(StartReady("plan")) == []


def test_plan_that_is_begun(executing: Told) -> None:
    """Whoever watches sees the same as with single commands."""
    told = executing.told(BeginPlan("other", "act", (ProjectLink("p"),)))
    assert [type(event) for event in told[:2]] == [ev.ActionUsed, ev.PlanCreated]
    assert [(event.phase, event.state) for event in told if isinstance(event, ev.PlanMoved)] == [
        ("strategize", "processing"),
        ("strategize", "complete"),
        ("execute", "queued"),
        ("execute", "processing"),
    ]


def test_merge(executing: Told) -> None:
    """That it was made, and each choice, with the change that it made."""
    executing.declare("one", "two")
    for child in ("one", "two"):
        executing.execute(child)
        executing.change("a.py", None, child.encode(), plan_id=child)
        executing.complete(child)
    executing.change("a.py", None, b"one")
    lease = executing.lease()
    found = (ConflictFound("a.py", "two"),)
    assert executing.told(RecordMerge("plan", lease, ("one", "two"), "plan-a", found)) == [
        ev.SubplansMerged(executing.state.revision, NOON_MS, "plan", ("p",), 2, "plan-a", 1)
    ]
    seen = executing.plan().open_conflicts[0].version
    started, recorded, ended, resolved = executing.told(
        ResolveConflict("plan", lease, "a.py", seen, "cs", Resolution.ACCEPT_THEIRS)
    )
    facts = (executing.state.revision, NOON_MS, "plan", ("p",))
    assert started == ev.ChangesetStarted(*facts, "cs", "cs", 1)
    assert isinstance(recorded, ev.ChangeRecorded)
    assert (recorded.before_digest, recorded.after_digest) == (digest_of(b"one"), digest_of(b"two"))
    assert ended == ev.ChangesetEnded(*facts, "cs", ChangesetState.CLOSED, 1)
    assert resolved == ev.ConflictResolved(*facts, "a.py", "two", Resolution.ACCEPT_THEIRS, 0)


def test_rolled_back(executing: Told) -> None:
    """Once, with what it decided."""
    executing.do(RecordDecision("plan", "d", executing.lease(), "which?", "this", "because"))
    executing.change("a.py", None, b"x")
    executing.complete()
    executing.do(AdvancePlan("plan", Phase.APPLY))
    executing.do(CompleteApply("plan", executing.start(), {"a.py": digest_of(b"x")}))
    rolled_back = RollBackPlan("plan", "no", {"a.py": None})
    told = executing.told(rolled_back)
    facts = (executing.state.revision, NOON_MS, "plan", ("p",))
    assert told == [
        ev.PlanRolledBack(*facts, "local/act", executing.plan().version, 1),
        ev.DecisionSuperseded(*facts, "d"),
    ]
    assert executing.told(rolled_back) == []


def test_modes_are_told(executing: Told) -> None:
    """A change of mode alone, too."""
    lease = executing.lease()
    executing.open()
    change = RecordChange(
        "plan", "ctx", lease, "run", before=b"x", after=b"x", before_mode=0o100644, after_mode=0o100755
    )
    (recorded,) = executing.told(change)
    assert isinstance(recorded, ev.ChangeRecorded)
    assert (recorded.operation, recorded.before_mode, recorded.after_mode) == (Operation.MODIFY, 0o100644, 0o100755)


def test_forgotten(executing: Told) -> None:
    """A plan that is gone is told of once, with its projects; what went with it is not."""
    executing.do(RecordDecision("plan", "d", executing.lease(), "which?", "this", "because"))
    executing.open()
    executing.record()
    executing.do(CancelPlan("plan"))
    assert executing.told(ForgetPlans(0, 0)) == [
        ev.PlanForgotten(executing.state.revision, NOON_MS, "plan", ("p",)),
    ]


Placement = dict[tuple[str, str], tuple[Tier, int]]


def place(placement: Placement, event: ev.AnyEvent) -> None:
    """What an event does to whoever knows nothing else; what it says of the past has to be so."""
    match event:
        case ev.FragmentStored():
            before = placement.get((event.project, event.fragment_id))
            assert event.replaced is (before and before[0])
            placement[event.project, event.fragment_id] = event.tier, event.tokens
        case ev.FragmentPromoted() | ev.FragmentDemoted():
            assert placement[event.project, event.fragment_id] == (event.source, event.tokens)
            placement[event.project, event.fragment_id] = event.target, event.tokens
        case ev.FragmentDeleted():
            assert placement.pop((event.project, event.fragment_id)) == (event.tier, event.tokens)
        case _:
            pass


def test_events_are_enough() -> None:
    """Whatever is done to tiers that are always full, applying the events gives every fragment's place."""
    chance = seeded(SEED)
    world = Told(TierBudget(hot_tokens=40, warm_entries=8, cold_entries=10_000, promotion_threshold=2))
    placement: Placement = {}
    for _ in range(1_500):
        commands = [deed(chance) for _ in range(chance.choice([1, 1, 3]))]
        try:
            told = world.told(*commands)
        except Refused:
            continue
        assert {event.revision for event in told} <= {world.state.revision}
        for event in told:
            place(placement, event)
        assert placement == {
            key: (entry.row.tier, entry.row.tokens) for key, entry in world.state.fragments.entries.items()
        }


def deed(chance: random.Random) -> Command[Reply]:
    project, name = chance.choice("pq"), f"f{chance.randrange(30)}"
    kinds: list[Command[Reply]] = [
        StoreFragment(project, name, chance.randbytes(3), chance.randrange(1, 50), chance.choice([*Tier])),
        PromoteFragment(project, name),
        DemoteFragment(project, name),
        DeleteFragment(project, name),
        EvictLru(chance.choice([*Tier]), chance.randrange(1, 4)),
        GetFragment(project, name),
        SetBudget(TierBudget(hot_tokens=chance.randrange(20, 60), warm_entries=8, promotion_threshold=2)),
    ]
    return chance.choices(kinds, [8, 4, 4, 2, 2, 4, 1])[0]
