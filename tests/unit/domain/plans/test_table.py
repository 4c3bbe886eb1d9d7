"""The indexes of the table of plans follow its rows, forwards and backwards."""

import pytest

from stepwell.domain.plans.commands import CancelPlan
from stepwell.domain.plans.table import PlanTable
from tests.support.domain.world import World


@pytest.fixture
def world() -> World:
    """A plan that executes."""
    world = World()
    world.use()
    world.execute()
    return world


def test_leases_are_filed_and_unfiled(world: World) -> None:
    """By session and by expiry, backwards too; a session without leases is forgotten."""
    table, plan = PlanTable(), world.plan()
    assert plan.lease is not None
    table.swap(None, plan)
    assert (table.leased_to("alice"), table.next_expiry_ms) == ([plan], plan.lease.expires_at_ms)
    assert list(table.expired(plan.lease.expires_at_ms - 1)) == []
    assert list(table.expired(plan.lease.expires_at_ms)) == [plan]
    table.unswap(None, plan)
    assert (table.by_session, list(table.by_expiry), table.by_root, len(table)) == ({}, [], {}, 0)
    assert (table.leased_to("alice"), table.next_expiry_ms) == ([], None)


def test_trees_are_listed_from_the_leaves(world: World) -> None:
    """Children before their parents, and nobody else's; a tree of which nobody is left is not there."""
    world.use("other")
    world.declare("a", "b")
    world.execute("a")
    world.declare("z", plan_id="a")
    table = world.state.plans
    assert [plan.plan_id for plan in table.tree("plan")] == ["z", "a", "b", "plan"]
    assert [plan.plan_id for plan in table.tree("other")] == ["other"]
    table.swap(table.get("other"), None)
    assert (table.tree("other"), table.by_root) == ([], {"plan": {"z", "a", "b", "plan"}})


def test_roots_that_are_over_are_filed_and_unfiled(world: World) -> None:
    """A plan is there from its end on, as long as it is there at all."""
    world.declare("kid")
    executing = world.plan()
    world.now_ms += 5
    world.do(CancelPlan("plan"))
    ended, kid = world.plan(), world.plan("kid")
    table = PlanTable()
    table.swap(None, executing)
    assert list(table.by_end) == []
    table.swap(executing, ended)
    table.swap(None, kid)
    assert list(table.by_end) == [(world.now_ms, "plan")]
    table.swap(ended, None)
    assert list(table.by_end) == []
    table.unswap(ended, None)
    assert list(table.by_end) == [(world.now_ms, "plan")]
    table.unswap(executing, ended)
    assert list(table.by_end) == []
