"""The table of entries follows its rows, forwards and backwards."""

from stepwell.domain.changesets.table import EntryTable
from tests.support.domain.world import World


def test_entries_are_added_and_that_undone() -> None:
    """Undone to the last, nothing of a changeset is left."""
    world = World()
    world.use()
    world.execute()
    world.open()
    world.record("a")
    world.record("b")
    table = EntryTable()
    first, second = world.state.entries.of("cs")
    table.swap(None, first)
    table.swap(None, second)
    table.unswap(None, second)
    assert (table.of("cs"), table.by_plan) == ([first], {"plan": 1})
    table.unswap(None, first)
    assert (table.by_changeset, table.by_plan, table.of("cs")) == ({}, {}, [])
