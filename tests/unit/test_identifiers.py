"""New ids: no two processes make the same one, and those of one process are in order."""

import os
import time

import pytest
from ulid import ULID

from stepwell.identifiers import new_id
from tests.support.processes import fork


def test_ids_are_ulids_in_the_order_in_which_they_were_made() -> None:
    """A list by id is a list by age, also within a millisecond."""
    clock = iter(range(1_700_000_000_000_000_000, 1_700_000_000_010_000_000, 1_000))  # a microsecond apart
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time_ns", lambda: next(clock))
        made = [new_id() for _ in range(10_000)]
    assert made == sorted(made)
    assert len({*made}) == len(made)
    assert ULID.from_str(made[0]).milliseconds == 1_700_000_000_000


def test_digits_are_those_of_a_ulid() -> None:
    """The digits are written without the library: it reads them as the same number, and writes them in the same way."""
    for _ in range(1_000):
        made = new_id()
        assert str(ULID.from_str(made)) == made


def test_forked_processes_make_different_ids_within_a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id that two children made would be one session with two clients."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    new_id()
    made = [_made_in_child(), _made_in_child(), new_id()]
    assert len({*made}) == 3


def _made_in_child() -> str:
    reader, writer = os.pipe()

    def make() -> None:
        os.write(writer, new_id().encode())

    pid = fork(make)
    os.close(writer)
    made = os.read(reader, 100).decode()
    os.close(reader)
    os.waitpid(pid, 0)
    return made
