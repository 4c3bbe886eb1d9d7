"""What is kept of a project follows it."""

import pytest

from stepwell.errors import BodyGone
from stepwell.strategies.index.columns import SLOTS_MIN, ColumnIndex, smallest
from stepwell.strategies.index.incremental import SlotIndex
from stepwell.strategies.index.index_cache import IndexCache
from stepwell.strategies.protocol import SeenFragment
from tests.support.strategy_views import Store, ask


class Reader(SlotIndex):
    """Keeps bodies, and counts how many it has read."""

    def __init__(self, project: str = "p") -> None:
        super().__init__(project)
        self.bodies: dict[int, str] = {}
        self.read = 0

    def _fill_slot(self, slot: int, fragment: SeenFragment) -> None:
        self.bodies[slot] = fragment.text
        self.read += 1

    def _clear_slot(self, slot: int) -> None:
        del self.bodies[slot]

    @property
    def known(self) -> dict[str, str]:
        return {self.at(slot).fragment_id: body for slot, body in self.bodies.items()}


def test_only_what_changed_is_read() -> None:
    store, reader = Store(), Reader()
    for number in range(5):
        store.store(f"id{number}", f"body{number}")
    reader.catch_up(store.view())
    reader.catch_up(store.view())
    assert reader.read == 5
    store.store("id1", "another")
    store.delete("id2")
    store.store("new", "new")
    reader.catch_up(store.view())
    assert reader.read == 7
    assert reader.known == {"id0": "body0", "id1": "another", "id3": "body3", "id4": "body4", "new": "new"}
    assert len(reader._rows) == 5, "the slot of one that is gone was used again"


def test_back_and_forth() -> None:
    """An older view, one that cannot tell what changed, and one of another store: all rows are compared."""
    store, reader = Store(), Reader()
    store.store("a", "1")
    early = store.view()
    store.store("a", "2")
    store.store("b", "3")
    late = store.view()
    for view, known in [(late, {"a": "2", "b": "3"}), (early, {"a": "1"}), (store.view(base=3), {"a": "2", "b": "3"})]:
        reader.catch_up(view)
        assert reader.known == known
    other = Store("another epoch")
    other.store("c", "4")
    reader.catch_up(other.view())
    assert reader.known == {"c": "4"}
    assert reader.row("a") is None


def test_after_a_failure() -> None:
    """A body that is gone stops it in the middle; with the next view it is where it would have been."""
    store, reader = Store(), Reader()
    store.store("a", "1")
    reader.catch_up(store.view())
    store.store("a", "2")
    store.store("b", "2")
    store.lose_body("a")
    with pytest.raises(BodyGone):
        reader.catch_up(store.view())
    store.store("a", "3")
    reader.catch_up(store.view())
    assert reader.known == {"a": "3", "b": "2"}
    assert len(reader) == 2


def test_after_a_failure_on_the_way_back() -> None:
    """It does not believe to be still where it was."""
    store, reader = Store(), Reader()
    store.store("a", "1")
    store.store("b", "1")
    store.lose_body("b")
    early = store.view()
    store.store("a", "2")
    store.store("b", "2")
    reader.catch_up(store.view())
    with pytest.raises(BodyGone):
        reader.catch_up(early)
    reader.catch_up(store.view())
    assert reader.known == {"a": "2", "b": "2"}


def test_only_so_many_projects_are_followed() -> None:
    """The one that was not asked for the longest goes."""
    store = Store()
    for project in "abc":
        store.store("x", project, project=project)
    view = store.view("a", "b", "c")
    following = IndexCache(Reader, projects_max=2)
    first = following.get(view, "a")
    for project in "bac":
        assert following.get(view, project).known == {"x": project}
    assert len(following) == 2
    assert following.get(view, "a") is first


def test_kinds_are_forgotten_with_the_last_of_them() -> None:
    store, columns = Store(), ColumnIndex("p")
    for number in range(50):
        store.store("a", str(number), kind=f"kind{number}")
        columns.catch_up(store.view())
    assert len(columns._kinds) == len(columns._counts) == 1
    assert columns.has_requested(ask(kinds=["kind49"]))
    assert not columns.has_requested(ask(kinds=["kind48"]))
    assert columns.requested_slots(ask()).tolist() == [True]


def test_columns_grow() -> None:
    store, columns = Store(), ColumnIndex("p")
    view = store.view()
    for number in range(SLOTS_MIN + 1):
        view = store.view() if number == SLOTS_MIN - 1 else view
        store.store(f"id{number}", kind="odd" if number % 2 else "even")
    for each in (view, store.view()):
        columns.catch_up(each)
    assert columns.requested_slots(ask(kinds=["odd"])).sum() == SLOTS_MIN // 2
    assert columns.requested_slots(ask()).sum() == SLOTS_MIN + 1


def test_leading() -> None:
    """The smallest by one key and then another; the last ones with all that are equal to them."""
    columns = ColumnIndex("p")
    first, second = columns._codes[:6].copy(), columns._codes[:6].copy()
    first[:], second[:] = [2, 1, 1, 1, 0, 2], [0, 5, 4, 4, 9, 1]
    assert smallest((first, second), 1).tolist() == [4]
    assert smallest((first, second), 2).tolist() == [4, 2, 3]
    assert smallest((first, second), 4).tolist() == [4, 2, 3, 1]
    assert smallest((first, second), 10).tolist() == [4, 2, 3, 1, 0, 5]
    assert smallest((first[:0], second[:0]), 1).tolist() == []
