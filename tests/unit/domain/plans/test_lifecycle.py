"""The whole life of a plan, from the tables: every event in every position, through the real commands."""

from collections.abc import Mapping
from itertools import combinations, product

import pytest

from stepwell.domain.commands import Command
from stepwell.domain.plans.commands import (
    AdvancePlan,
    CancelPlan,
    CompleteApply,
    CompletePhase,
    ConstrainApply,
    EndSession,
    ExpireLeases,
    FailPhase,
    RenewLease,
    RetryPlan,
    RevertPlan,
    RollBackPlan,
    StartPhase,
)
from stepwell.domain.plans.lifecycle import (
    LEGAL,
    POSITIONS,
    PROGRESS,
    RETRY,
    REVERSION,
    ROLLBACK,
    START,
    STEPS,
    TERMINAL,
    TERMINAL_STATES,
    PlanEvent,
)
from stepwell.domain.plans.model import Phase, PlanState, Position
from stepwell.domain.plans.transitions import transition
from stepwell.domain.replies import PlanFound, SessionEnded
from stepwell.errors import LeaseLost, PlanError, PlanNotReady
from tests.support.domain.world import World, image

COMMANDS: Mapping[PlanEvent, type[Command[PlanFound]]] = {
    **dict.fromkeys((each for each in PlanEvent if each.startswith("start_")), StartPhase),
    **dict.fromkeys((PlanEvent.COMPLETE_STRATEGIZE, PlanEvent.COMPLETE_EXECUTE), CompletePhase),
    **dict.fromkeys((each for each in PlanEvent if each.startswith("fail_")), FailPhase),
    **dict.fromkeys((PlanEvent.EXECUTE_PLAN, PlanEvent.APPLY_PLAN), AdvancePlan),
    PlanEvent.COMPLETE_APPLY: CompleteApply,
    PlanEvent.CONSTRAIN_APPLY: ConstrainApply,
    PlanEvent.RENEW_LEASE: RenewLease,
    PlanEvent.CANCEL_PLAN: CancelPlan,
    PlanEvent.RETRY_PLAN: RetryPlan,
    PlanEvent.REVERT_PLAN: RevertPlan,
    PlanEvent.ROLL_BACK_PLAN: RollBackPlan,
}
"""The command of each event; losing a lease is nobody's command."""

LEASED = {CompletePhase, FailPhase, CompleteApply, ConstrainApply, RenewLease}


def command_for(event: PlanEvent, lease: int | None) -> Command[PlanFound]:
    """The command that makes the event happen, from a caller who shows that lease."""
    verb, _, rest = event.partition("_")
    kind = COMMANDS[event]
    if kind is AdvancePlan:
        return AdvancePlan("plan", Phase(verb))
    if kind is StartPhase:
        return StartPhase("plan", Phase(rest))
    if kind is CompletePhase:
        return CompletePhase("plan", Phase(rest), lease)
    if kind is FailPhase:
        return FailPhase("plan", Phase(rest), lease, "it broke")
    if kind is CompleteApply:
        return CompleteApply("plan", lease, {})
    if kind is ConstrainApply:
        return ConstrainApply("plan", lease, "a test failed")
    if kind is RenewLease:
        return RenewLease("plan", lease)
    if kind is RollBackPlan:
        return RollBackPlan("plan", "it broke the build", {})
    if kind is RevertPlan:
        return RevertPlan("plan", "wrong way")
    return CancelPlan("plan") if kind is CancelPlan else RetryPlan("plan")


def happen(world: World, event: PlanEvent) -> None:
    """Let a legal event happen."""
    if event is PlanEvent.LOSE_LEASE:
        world.do(EndSession("alice"))
    else:
        lease = world.plan().lease
        world.do(command_for(event, lease.token if lease else None))


def paths() -> dict[Position, tuple[PlanEvent, ...]]:
    """The shortest way to each position that the tables lead to, from the start."""
    found: dict[Position, tuple[PlanEvent, ...]] = {START: ()}
    waiting = [START]
    for position in waiting:
        for (event, source), target in LEGAL.items():
            if source == position and target not in found:
                found[target] = (*found[position], event)
                waiting.append(target)
    return found


PATHS = paths()


def reach(position: Position) -> World:
    """A world whose plan is there, brought by commands alone."""
    world = World()
    world.use()
    for event in PATHS[position]:
        happen(world, event)
    assert world.plan().position == position
    return world


def test_every_position_can_be_reached() -> None:
    """No position is there for nothing, and none is reached that is not listed."""
    assert set(PATHS) == set(POSITIONS)
    assert len(POSITIONS) == 16


def test_four_tables_are_separate() -> None:
    """Progress, retry, reversion and undoing share no row, and together they are all that is legal."""
    tables = (PROGRESS, RETRY, REVERSION, ROLLBACK)
    for one, other in combinations(tables, 2):
        assert not one.keys() & other.keys()
    assert len(LEGAL) == sum(map(len, tables))


def test_steps_say_what_the_tables_say() -> None:
    """A transition looks at the steps alone. An apply that begins anew keeps the merge that it applies."""
    assert {(event, Position(phase, state)) for event, phase, state in STEPS} == set(LEGAL)
    for (event, phase, state), step in STEPS.items():
        at = (event, Position(phase, state))
        assert (step.phase, step.state) == LEGAL[at]
        assert (step.is_new_attempt, step.is_reversion) == (at in {**RETRY, **REVERSION}, at in REVERSION)
        assert step.phase_name == step.phase.value
        assert step.is_executed_again == (step.is_new_attempt and step.phase is not Phase.APPLY)


def test_every_event_is_legal_somewhere() -> None:
    """An event that never happens would be a mistake in a table; each has its command."""
    assert {event for event, _ in LEGAL} == set(PlanEvent)
    assert set(COMMANDS) == set(PlanEvent) - {PlanEvent.LOSE_LEASE}


def test_tables_stay_within_the_positions() -> None:
    """They begin and end where a plan can be."""
    assert {source for _, source in LEGAL} | set(LEGAL.values()) <= set(POSITIONS)


def test_only_terminal_positions_are_dead_ends() -> None:
    """There is a way out of everything else: an errored plan too. Undoing is none: a plan that is over stays over."""
    leading_out = {source for table in (PROGRESS, RETRY, REVERSION) for _, source in table}
    assert set(POSITIONS) - leading_out == TERMINAL
    assert {at for at in POSITIONS if at.state in TERMINAL_STATES} == TERMINAL
    assert all(source == target for (_, source), target in ROLLBACK.items())
    assert {source for _, source in ROLLBACK} <= TERMINAL


def test_reversion_goes_to_the_start_only() -> None:
    """A revert never goes forward."""
    assert set(REVERSION.values()) == {START}


def test_retry_stays_in_its_phase() -> None:
    """And queues it."""
    assert all((target.phase, target.state) == (at.phase, PlanState.QUEUED) for (_, at), target in RETRY.items())


@pytest.mark.parametrize("position", POSITIONS, ids=str)
def test_processing_means_leased(position: Position) -> None:
    """A plan carries a lease exactly while it is processed."""
    plan = reach(position).plan()
    assert (plan.lease is not None) == (position.state is PlanState.PROCESSING)


@pytest.mark.parametrize("event, position", LEGAL, ids=str)
def test_legal(event: PlanEvent, position: Position) -> None:
    """It leads where the table says, as a new version unless it only renews; retry and reversion: another attempt."""
    world = reach(position)
    before = world.plan()
    world.now_ms += 5
    happen(world, event)
    after = world.plan()
    assert after.position == LEGAL[event, position]
    assert after.version - before.version == (event is not PlanEvent.RENEW_LEASE)
    assert after.attempt - before.attempt == ((event, position) in {**RETRY, **REVERSION})
    assert after.reversion_count - before.reversion_count == ((event, position) in REVERSION)
    assert (after.lease is not None) == (after.state is PlanState.PROCESSING)
    assert after.errors[: len(before.errors)] == before.errors


ILLEGAL = [each for each in product(PlanEvent, POSITIONS) if each not in LEGAL]


@pytest.mark.parametrize("event, position", ILLEGAL, ids=str)
def test_illegal(event: PlanEvent, position: Position) -> None:
    """Whatever is not in a table is refused in the plan's family of errors, and changes nothing."""
    world = reach(position)
    with pytest.raises(PlanNotReady, match=f"{event} is not legal for plan 'plan', which is {position}; from there: "):
        transition(world.plan(), event, world.now_ms)
    if event is PlanEvent.LOSE_LEASE:
        before = image(world.state)
        assert world.do(EndSession("alice")) == SessionEnded(())
        world.now_ms += 10**9
        assert world.do(ExpireLeases()) == SessionEnded(())
        assert image(world.state) == before
        return
    held = world.plan().lease
    world.refuse(command_for(event, held.token if held else None), PlanNotReady, str(position))
    if COMMANDS[event] in LEASED:
        error = world.refuse(command_for(event, 10**9), LeaseLost, "is over; stop working on it")
        assert isinstance(error, PlanError)


def test_refusal_says_what_is_legal() -> None:
    """Whoever is refused knows what to do instead."""
    world = reach(Position(Phase.EXECUTE, PlanState.COMPLETE))
    error = world.refuse(
        StartPhase("plan", Phase.APPLY), PlanNotReady, "from there: apply_plan, cancel_plan, revert_plan$"
    )
    assert error.details == {"plan_id": "plan", "phase": "execute", "state": "complete"}
    world.do(CancelPlan("plan"))
    world.refuse(RetryPlan("plan"), PlanNotReady, "from there: nothing, it has ended")
