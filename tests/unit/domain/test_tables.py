"""Tables change by `swap` alone, `unswap` is its inverse, and every row is filed under its own key."""

import pytest

from stepwell.domain.plans.commands import RecordDecision
from stepwell.domain.receipts.commands import StoreReceipt
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
