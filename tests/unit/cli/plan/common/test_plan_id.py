"""Which plan is meant: an id, or the beginning of one."""

from collections.abc import Callable

import pytest

import stepwell as sw
from stepwell.client.session.environment import Environment
from tests.support.cli.plans import Shell, new

FIRST, SECOND, THIRD = "01M00000000000000000000AAA", "01M00000000000000000000AAB", "01M0000000000000000000BBBB"


@pytest.fixture
def named(client: sw.Client, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a plan with an id of our choice: those that are given out begin alike only by chance."""

    def make(plan_id: str) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Environment, "new_id", lambda _: plan_id)
            assert new(client) == plan_id

    return make


def test_the_whole_id_and_its_beginning(shell: Shell, named: Callable[[str], None]) -> None:
    """In capitals or not, and however many others there are that begin otherwise."""
    named(FIRST)
    named(THIRD)
    for given, meant in (
        (FIRST, FIRST),
        (FIRST[:24], FIRST),
        (FIRST.lower(), FIRST),
        (THIRD[:-1], THIRD),
        (THIRD[:23].lower(), THIRD),
    ):
        assert shell("plan", "show", given, "--json").json["plan.plan_id"] == meant


def test_the_beginning_of_several(shell: Shell, named: Callable[[str], None]) -> None:
    """Nobody guesses: the candidates are listed, up to ten."""
    for plan_id in (FIRST, SECOND, THIRD):
        named(plan_id)
    told = shell("plan", "cancel", FIRST[:23])
    assert (told.code, told.out) == (2, "")
    assert told.err.endswith(f"give more of the id: {FIRST}, {SECOND}\n")
    facts = shell("plan", "cancel", FIRST[:6], "--json").json
    assert facts["error.details.candidates"] == [FIRST, SECOND, THIRD]
    for number in range(10, 20):
        named(f"{FIRST[:-2]}{number}")
    assert shell("plan", "cancel", FIRST[:6]).err.endswith(", and more\n")


@pytest.mark.parametrize(
    "given, code, said",
    [
        ("01M", 2, "at least 6 characters"),
        ("01M000", 1, "no plan's id is '01M000', or begins with it"),
        ("no/plan", 2, "give an id as stepwell returned it"),
    ],
)
def test_no_such_plan(shell: Shell, given: str, code: int, said: str) -> None:
    """One line, that says what to give."""
    told = shell("plan", "show", given)
    assert told.code == code
    assert len(told.err.splitlines()) == 1
    assert said in told.err
