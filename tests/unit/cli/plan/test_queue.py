"""`stepwell plan queue`, and `stepwell plan apply --wait`: whose turn it is at a tree."""

from pathlib import Path

import pytest

import stepwell as sw
from tests.support.cli.plans import ACTION, PROJECT, Shell, record


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The tree, which has a line break in its name."""
    root = tmp_path / "a\ntree"
    root.mkdir()
    return root


def ready(client: sw.Client, name: str) -> str:
    """A plan that is queued for apply."""
    plan_id = client.plans.begin(ACTION, projects=[PROJECT]).plan_id
    record(client, plan_id, sw.Change(path=name, after=b"new"))
    client.plans.complete_execute(plan_id)
    return client.plans.apply_plan(plan_id).plan_id


def test_nobody_waits(shell: Shell, root: Path) -> None:
    """That is no error."""
    told = shell("plan", "queue", "--root", str(root))
    assert (told.code, told.out) == (0, "")
    assert told.err.startswith("stepwell: no plan waits for ")
    found = shell("plan", "queue", "--root", str(root), "--json").json
    assert (found["plans"], found["at_work"], found["tickets"]) == (0, 0, [])


def test_in_order(shell: Shell, client: sw.Client, root: Path) -> None:
    """With what is being applied, and whose turn it is."""
    working, low, high = (ready(client, name) for name in "abc")
    client.plans.join_apply_queue(low, str(root), priority=-1)
    client.plans.join_apply_queue(high, str(root), priority=5)
    told = shell("plan", "queue", "--root", str(root))
    assert f"1 {high} 5 " in told.words
    assert "has its turn" in told.words
    client.plans.join_apply_queue(working, str(root), priority=7)
    client.plans.start_apply(working, tree=str(root))
    told = shell("plan", "queue", "--root", str(root))
    assert (told.code, told.err) == (0, "")
    assert [line.split()[:3] for line in told.out.splitlines() if "0" in line] == [
        ["1", working, "7"],
        ["2", high, "5"],
        ["3", low, "-1"],
    ]
    assert "is being applied" in told.words
    found = shell("plan", "queue", "--root", str(root), "--json").json
    assert (found["plans"], found["at_work"], found["tickets.2.plan_id"]) == (3, 1, low)


def test_applied_in_its_turn(shell: Shell, client: sw.Client, root: Path) -> None:
    """The place is told on stderr, and stdout has what it always has."""
    plan_id = ready(client, "a")
    told = shell("plan", "apply", plan_id, "--root", str(root), "--wait", "--priority", "3")
    assert (told.code, told.out.startswith(f"applied {plan_id}: 1 path in ")) == (0, True)
    assert told.err == f"stepwell: waiting for {root.parent}/a\\ntree: 1 of 1\n"
    assert (root / "a").read_bytes() == b"new"


def test_others_wait(shell: Shell, client: sw.Client, root: Path) -> None:
    """Without --wait it is refused; with it, it waits for as long as it is told to."""
    first, second = ready(client, "a"), ready(client, "b")
    client.plans.join_apply_queue(first, str(root))
    told = shell("plan", "apply", second, "--root", str(root))
    assert (told.code, "would be number 2" in told.err) == (1, True)
    told = shell("plan", "apply", second, "--root", str(root), "--wait", "--timeout", "0.05", "--priority", "-1")
    assert (told.code, "2 of 2\n" in told.err, "0.05 s were not enough" in told.err) == (1, True, True)
    assert client.plans.apply_queue(str(root)).plans == 1


def test_options_of_waiting(shell: Shell, client: sw.Client, root: Path) -> None:
    told = shell("plan", "apply", ready(client, "a"), "--root", str(root), "--priority", "1")
    assert (told.code, "give wait=True" in told.err) == (2, True)
