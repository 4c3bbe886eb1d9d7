"""Layered: a mapping that is changed by making another one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.memory.reader import persistent_map
from stepwell.memory.reader.persistent_map import PersistentMap

CHANGES = st.lists(st.dictionaries(st.sampled_from("abcdef"), st.none() | st.integers(0, 9), max_size=4), max_size=8)


@pytest.mark.parametrize("changes_min", [0, 3, 1_000])
@given(steps=CHANGES)
def test_the_same_as_a_dict(changes_min: int, steps: list[dict[str, int | None]]) -> None:
    """Whatever is changed, and whenever the changes are laid to the ground; and what was there before stays."""
    states: list[tuple[dict[str, int], PersistentMap[str, int]]] = [({}, PersistentMap({}))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(persistent_map, "_CHANGES_MIN", changes_min)
        for changes in steps:
            expected, mapping = states[-1]
            after = {key: value for key, value in {**expected, **changes}.items() if value is not None}
            stored = {key: value for key, value in changes.items() if value is not None}
            states.append((after, mapping.changed(stored, changes.keys() - stored.keys())))
    for expected, mapping in states:
        assert mapping == expected
        assert len(mapping) == len(expected)
        assert {*mapping} == {*expected}
        for key in "abcdef":
            assert mapping.get(key) == expected.get(key)
            assert (key in mapping) == (key in expected)


def test_what_has_not_changed_is_shared() -> None:
    """Few changes cost what they are; many make a new ground, so that they do not cost more each time."""
    first = PersistentMap(dict.fromkeys(range(100_000), "x"))
    second = first.changed({}, {*range(100)})
    assert second._base is first._base
    third = second.changed({}, {*range(20_000)})
    assert third._base is not first._base
    assert (len(first), len(second), len(third), third._gone) == (100_000, 99_900, 80_000, set())


def test_what_is_not_there() -> None:
    mapping = PersistentMap({"a": 1}).changed({}, {"a"})
    for key in "ab":
        with pytest.raises(KeyError):
            mapping[key]
