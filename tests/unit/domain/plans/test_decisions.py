"""Decisions form a tree for each plan that only grows."""

import pytest

from stepwell import limits
from stepwell.domain.plans.commands import ListDecisions, RecordDecision
from stepwell.domain.plans.model import Phase
from stepwell.errors import AlreadyExists, Busy, InvalidArgument, LeaseLost, NotFound, PlanNotReady
from tests.support.domain.world import NOON_MS, World


@pytest.fixture
def world() -> World:
    """A plan that strategizes."""
    world = World()
    world.use()
    world.start()
    return world


def decide(world: World, name: str, parent: str | None = None, *, checkpoint: bool = False) -> RecordDecision:
    return RecordDecision("plan", name, world.lease(), "which?", "this", "because", parent, checkpoint)


def test_recorded(world: World) -> None:
    """With the phase and attempt in which it was made."""
    decision = world.do(decide(world, "d1")).decision
    assert (decision.plan_id, decision.decision_id, decision.parent_id) == ("plan", "d1", None)
    assert (decision.question, decision.choice, decision.rationale) == ("which?", "this", "because")
    assert (decision.phase, decision.attempt, decision.recorded_at_ms) == (Phase.STRATEGIZE, 1, NOON_MS)
    assert (decision.checkpoint, decision.superseded_at_ms) == (False, None)
    assert world.plan().decision_ids == ("d1",)
    assert world.plan().last_checkpoint_id is None


def test_tree(world: World) -> None:
    """A decision hangs on an earlier one of its plan."""
    world.do(decide(world, "d1"))
    world.do(decide(world, "d2", "d1", checkpoint=True))
    assert world.plan().last_checkpoint_id == "d2"
    world.do(decide(world, "d3", "d1"))
    assert world.plan().last_checkpoint_id == "d2"


def test_parent_of_another_plan(world: World) -> None:
    """Trees do not grow together."""
    world.do(decide(world, "d1"))
    world.use("other")
    token = world.start("other")
    world.refuse(
        RecordDecision("other", "d2", token, "q", "c", parent_id="d1"),
        NotFound,
        "plan 'other' has no decision 'd1' to be its parent",
    )


def test_recorded_once(world: World) -> None:
    """Nothing is overwritten."""
    world.do(decide(world, "d1"))
    world.refuse(decide(world, "d1"), AlreadyExists, "decision 'd1' is recorded already")


def test_needs_the_lease(world: World) -> None:
    """Whoever lost it decides nothing any more."""
    world.refuse(RecordDecision("plan", "d", None, "q", "c"), LeaseLost, "pass lease=")
    world.complete()
    world.refuse(RecordDecision("plan", "d", None, "q", "c"), PlanNotReady, "start its phase first")


def test_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for so many and no more."""
    monkeypatch.setattr(limits, "DECISIONS_PER_PLAN_MAX", 1)
    world.do(decide(world, "d1"))
    world.refuse(decide(world, "d2"), Busy, "has 1 decisions already")


def test_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order of recording, bounded in rows and in bytes."""
    for name in ("z", "a", "m"):
        world.do(decide(world, name))
    page = world.do(ListDecisions("plan", limit=2))
    assert ([each.decision_id for each in page.decisions], page.cursor) == (["z", "a"], "2")
    rest = world.do(ListDecisions("plan", cursor="2"))
    assert ([each.decision_id for each in rest.decisions], rest.cursor) == (["m"], None)
    world.refuse(ListDecisions("plan", cursor="z"), InvalidArgument, "cursor is malformed")
    monkeypatch.setattr(limits, "REPLY_BYTES_MAX", 50)
    assert len(world.do(ListDecisions("plan")).decisions) == 1
