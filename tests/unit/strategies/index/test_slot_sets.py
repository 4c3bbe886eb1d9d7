"""Sets of slots by name: like a dict of sets, also after any number of snapshots."""

import pytest

from stepwell.strategies.index.slot_sets import SlotSets
from tests.support.seeds import seeded


def test_any_changes_and_snapshots() -> None:
    """Adding, discarding and looking up gives what a dict of sets gives, over snapshots that were made at any time."""
    random = seeded(7)
    sets, expected = SlotSets(), dict[str, set[int]]()
    for _ in range(4_000):
        name, slot = random.choice("abcdefghijklmnop"), random.randrange(40)
        match random.randrange(10):
            case 0:
                restored = SlotSets()
                restored.restore(sets.arrays(), 40)
                sets = restored
            case 1 | 2 | 3 | 4:
                sets.add(name, slot)
                expected.setdefault(name, set()).add(slot)
            case 5 | 6 | 7:
                sets.discard(name, slot)
                expected.get(name, set()).discard(slot)
            case _:
                assert sets.get(name) == expected.get(name, set())
    assert {name: {*sets.get(name)} for name in "abcdefghijklmnop"} == {
        name: expected.get(name, set()) for name in "abcdefghijklmnop"
    }


def test_the_same_sets_have_the_same_arrays() -> None:
    """The order of their making does not matter, nor does what was removed again."""
    one, other = SlotSets(), SlotSets()
    for name, slot in (("x", 1), ("y", 2), ("x", 3)):
        one.add(name, slot)
    for name, slot in (("x", 3), ("z", 9), ("y", 2), ("x", 1)):
        other.add(name, slot)
    other.discard("z", 9)
    other.discard("nothing", 9)
    assert {name: array.tolist() for name, array in one.arrays().items()} == {
        name: array.tolist() for name, array in other.arrays().items()
    }


@pytest.mark.parametrize(
    "part, array",
    [("slots", [0, 1, 40]), ("slots", [-1, 1, 2]), ("borders", [0, 1]), ("borders", [0, 3, 3]), ("hashes", [2, 1])],
)
def test_arrays_that_make_no_sense(part: str, array: list[int]) -> None:
    """They are refused: a slot that there is not would be found otherwise."""
    sets = SlotSets()
    for name, slot in (("x", 1), ("y", 2), ("y", 0)):
        sets.add(name, slot)
    arrays = sets.arrays()
    wrong = {**arrays, part: arrays[part].__class__((len(array),), arrays[part].dtype)}
    wrong[part][:] = array
    with pytest.raises(ValueError, match="the rule does not hold"):
        SlotSets().restore(wrong, 40)
