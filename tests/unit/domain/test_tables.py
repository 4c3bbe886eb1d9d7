"""Tables change by `swap` alone, `unswap` is its inverse, and every row is filed under its own key."""

import pytest

from stepwell.domain.changesets.table import EntryTable
from stepwell.domain.plans.commands import CancelPlan, RecordDecision
from stepwell.domain.plans.table import PlanTable
from stepwell.domain.receipts.commands import StoreReceipt
from stepwell.domain.receipts.model import ReceiptRow
from stepwell.domain.receipts.table import ReceiptTable
from stepwell.domain.state import State
from stepwell.domain.tables import Table
from tests.support.domain.world import World, image


@pytest.fixture
def world() -> World:
    """A row in every table."""
    world = World()
    world.store("f")
    world.use()
    world.execute()
    world.open()
    world.record("a")
    world.record("b")
    world.do(RecordDecision("plan", "d", world.lease(), "q", "c"))
    world.do(StoreReceipt("r", ("p",), "a title", b"receipt"))
    return world


def test_rows_know_their_keys(world: World) -> None:
    """Whoever follows the changes files rows where the tables do."""
    state = world.state
    tables = (state.actions, state.plans, state.decisions, state.contexts, state.changesets, state.receipts)
    for table in tables:
        assert isinstance(table, Table)
        assert len(table) > 0
        assert [row.key for row in table] == list(table.rows)
    assert [row.key for row in state.entries.of("cs")] == [("cs", 1), ("cs", 2)]
    assert [entry.row.key for entry in state.fragments.entries.values()] == list(state.fragments.entries)
    assert state.budget.key == "budget"


def test_after_is_behind(world: World) -> None:
    """A cursor's own row is not given again, whether or not it is still there."""
    for name in "ac":
        world.action(name)
    names = [action.name for action in world.state.actions.after("local/a")]
    assert names == ["local/act", "local/c"]
    assert [action.name for action in world.state.actions.after("local/b")] == ["local/c"]
    assert len(list(world.state.actions.after(None))) == 3


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


def test_entries_are_added_and_that_undone(world: World) -> None:
    """Undone to the last, nothing of a changeset is left."""
    table = EntryTable()
    first, second = world.state.entries.of("cs")
    table.swap(None, first)
    table.swap(None, second)
    table.unswap(None, second)
    assert (table.of("cs"), table.by_plan) == ([first], {"plan": 1})
    table.unswap(None, first)
    assert (table.by_changeset, table.by_plan, table.of("cs")) == ({}, {}, [])


def test_receipts_are_in_the_order_of_storing() -> None:
    """Whatever their ids are; as many of the oldest are too many as have to be, and undone they are back."""
    table, names = ReceiptTable(), ("c", "a", "b")
    rows = [ReceiptRow(name, ("p",), "", 10, b"", 0, 1, serial) for serial, name in enumerate(names, 1)]
    assert (table.next_serial, list(table.before(None)), table.surplus(0, 0)) == (1, [], [])
    for row in rows:
        table.swap(None, row)
    assert (table.next_serial, table.bytes) == (4, 30)
    assert list(table.before(None)) == rows[::-1]
    assert list(table.before(3)) == rows[1::-1]
    assert list(table.before(1)) == []
    assert table.surplus(3, 30) == []
    assert table.surplus(2, 30) == table.surplus(3, 29) == table.surplus(3, 20) == rows[:1]
    assert table.surplus(3, 19) == rows[:2]
    assert table.surplus(0, 30) == table.surplus(3, -1) == rows
    table.swap(rows[0], None)
    assert (table.bytes, list(table.before(None))) == (20, rows[:0:-1])
    table.unswap(rows[0], None)
    assert (table.next_serial, table.bytes, list(table.before(None))) == (4, 30, rows[::-1])
    table.unswap(None, rows[2])
    assert table.next_serial == 3


def test_change_of_nothing(world: World) -> None:
    """Nothing for nothing is nothing."""
    before = image(world.state)
    world.state.actions.swap(None, None)
    world.state.entries.swap(None, None)
    assert image(world.state) == before


def test_new_state_is_empty() -> None:
    """And its tables are its own."""
    one, other = State(), State()
    assert image(one) == image(other)
    one.revision = 1
    one.bodies.bytes = 1
    assert image(one) != image(other) == image(State())
