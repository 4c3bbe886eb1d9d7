"""`stepwell plan list`."""

from typing import cast

import pytest

import stepwell as sw
from tests.support.cli.plans import ACTION, Shell, executing, new


def ids(shell: Shell, *options: str) -> list[object]:
    found = shell("plan", "list", "--json", *options).json["plans"]
    return [each["plan_id"] for each in cast("list[dict[str, object]]", found)]


def test_what_is_listed(shell: Shell, client: sw.Client) -> None:
    """What is not over; with --all or a filter that asks for it, also what is."""
    waiting, busy, over = new(client), executing(client), new(client)
    client.plans.cancel_plan(over)
    client.plans.declare_subplans(busy, [sw.subplan(ACTION, alias="a")])
    (child,) = [each.plan_id for each in client.plans.list_plans(parent_plan_id=busy).plans]
    client.plans.cancel_plan(child)
    assert ids(shell) == [waiting, busy]
    assert {*ids(shell, "--all")} == {waiting, busy, over, child}
    assert ids(shell, "--phase", "execute") == [busy]
    assert {*ids(shell, "--state", "cancelled")} == {over, child}
    assert ids(shell, "--parent", busy) == [child]
    assert ids(shell, "--state", "applied") == []


def test_the_table(shell: Shell, client: sw.Client) -> None:
    """A line for each, without escape codes where there is no terminal."""
    plan_id = executing(client)
    told = shell("plan", "list")
    assert told.code == 0
    assert f"{plan_id} {ACTION} execute/processing 1" in told.words
    assert "\x1b" not in told.out


def test_labels(shell: Shell, client: sw.Client) -> None:
    """They have a column if a plan has some, and one of them selects plans."""
    plain, labelled = new(client), client.plans.use_action(ACTION, projects=["p"], labels=["gpu", "a"]).plan_id
    assert ids(shell, "--label", "gpu") == [labelled]
    assert "labels" not in shell("plan", "list", "--label", "none").out
    told = shell("plan", "list")
    assert "labels" in told.words
    assert "strategize/queued 1 a, gpu" in told.words
    assert ids(shell) == [plain, labelled]
    assert "labels is malformed" in shell("plan", "new", ACTION, "--project", "p", "--label", "a b").err


def test_more_than_a_page(shell: Shell, client: sw.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.limits.PAGE_ROWS_MAX", 2)
    plans = [new(client) for _ in range(5)]
    assert {*ids(shell)} == {*plans}


def test_nothing_to_list(shell: Shell) -> None:
    """That is no error; where to look is said."""
    told = shell("plan", "list")
    assert (told.code, told.out) == (0, "")
    assert "--all shows also what is over" in told.err
    assert "there are no such plans\n" in shell("plan", "list", "--all").err


def test_the_keys(shell: Shell, client: sw.Client) -> None:
    """What a script may rely on."""
    new(client)
    keys = shell("plan", "list", "--json").json.keys("plans.0")
    assert keys == {
        "plan_id",
        "action_name",
        "phase",
        "state",
        "attempt",
        "version",
        "parent_plan_id",
        "rolled_back",
        "labels",
    }
