"""The checker of the cross-process tests can fail."""

import pytest
from msgspec.structs import replace

from tests.support.programs.history import Operation, violations
from tests.support.seeds import seeded

SEED = 20_240


def serial_history(count: int) -> list[Operation]:
    """Operations of several actors that overlap, applied one at a time somewhere inside their interval."""
    generator = seeded(SEED)
    history: list[Operation] = []
    revision = 0
    for step in range(count):
        moment = step * 10
        is_write = generator.random() < 0.7
        revision += is_write
        began, ended = moment - generator.randrange(40), moment + generator.randrange(1, 40)
        history.append(Operation(began, ended, revision, is_write))
    generator.shuffle(history)
    return history


def test_serial_history_is_accepted() -> None:
    """Whatever was really applied one at a time passes, however its intervals overlap."""
    assert violations(serial_history(2_000)) == []


def test_empty_history_is_accepted() -> None:
    """Nothing happened, so nothing is wrong."""
    assert violations([]) == []


def test_revision_given_twice_is_found() -> None:
    """Two writes with one revision are a lost update."""
    history = serial_history(2_000)
    write = next(each for each in history if each.is_write)
    assert any("two writes" in each for each in violations([*history, write]))


@pytest.mark.parametrize("seed", range(20))
def test_swapped_revisions_are_found(seed: int) -> None:
    """Two writes that did not overlap, with their revisions exchanged, contradict real time."""
    writes = sorted((each for each in serial_history(500) if each.is_write), key=lambda each: each.revision)
    generator = seeded(seed)
    first = generator.randrange(len(writes) - 20)
    early, late = writes[first], writes[first + 15]
    assert early.ended_ns < late.began_ns
    swapped = [
        replace(each, revision={early.revision: late.revision, late.revision: early.revision}[each.revision])
        if each in {early, late}
        else each
        for each in writes
    ]
    assert violations(swapped) != []


def test_stale_read_is_found() -> None:
    """A read that began after a write was acknowledged, and does not see it, is stale."""
    acknowledged = Operation(0, 10, revision=5, is_write=True)
    assert violations([acknowledged, Operation(11, 20, revision=4, is_write=False)]) != []
    assert violations([acknowledged, Operation(11, 20, revision=5, is_write=False)]) == []
    assert violations([acknowledged, Operation(9, 20, revision=4, is_write=False)]) == []
