"""`stepwell plan subplans`: the children of a plan, and what became of their changes."""

import stepwell as sw
from tests.support.cli.plans import ACTION, Shell, executing, new, record

WILD = "\x1b[2J\u202e"


def lines_of(out: str) -> list[str]:
    """The lines of a tree without what draws it."""
    return [" ".join(line.strip(" │├└─").split()) for line in out.splitlines()]


def executed(client: sw.Client, parent: str, *changes: sw.Change) -> str:
    """Execute the next child with some changes, and return its id."""
    child = client.plans.start_ready(parent, straight=True).plan
    assert child is not None
    record(client, child.plan_id, *changes)
    return client.plans.complete_execute(child.plan_id).plan_id


def test_where_each_stands(shell: Shell, client: sw.Client) -> None:
    """Its position and attempt, who works on it, what it waits for, what went wrong, and its own children below it."""
    parent = executing(client)
    specs = [sw.subplan(ACTION, alias="first"), sw.subplan(ACTION, alias="second", depends_on=["first"])]
    client.plans.declare_subplans(parent, specs, mode=sw.SubplanMode.DEPENDENCY_ORDERED, retries=1)
    ready = client.plans.start_ready(parent, straight=True).plan
    assert ready is not None
    client.plans.fail_execute(ready.plan_id, f"once {WILD}")
    client.plans.start_execute(ready.plan_id)
    client.plans.declare_subplans(ready.plan_id, [sw.subplan(ACTION, alias="grandchild")])
    told = shell("plan", "subplans", parent)
    assert (told.code, told.err) == (0, "")
    heading, first, session, error, grandchild, second = lines_of(told.out)
    assert heading.startswith("2 children, dependency_ordered, at most ")
    assert heading.endswith("merge strategy git_three_way; not merged")
    assert first == f"first {ready.plan_id} execute/processing, attempt 2"
    assert session.startswith(f"session {client.session_id} works on it, until 20")
    assert error == r"last error: once \x1b[2J\u202e"
    assert grandchild.startswith("grandchild ")
    assert second.endswith("strategize/queued, after first")
    drawn = told.out.splitlines()
    assert drawn[4].index("grandchild") > drawn[1].index("first")
    assert not {"\x1b", "\u202e"} & {*told.out}


def test_labels(shell: Shell, client: sw.Client) -> None:
    """What an agent has to be able to do for a child."""
    parent = executing(client)
    client.plans.declare_subplans(parent, [sw.subplan(ACTION, alias="a", labels=("gpu", "cuda"))])
    _, child = lines_of(shell("plan", "subplans", parent).out)
    assert child.endswith("strategize/queued, needs cuda, gpu")
    assert shell("plan", "subplans", parent, "--json").json["children.0.labels"] == ["cuda", "gpu"]


def test_what_is_merged(shell: Shell, client: sw.Client) -> None:
    """Children whose changes are in the parent, those in conflict with the path, and those whose conflict is over."""
    parent = executing(client)
    client.plans.declare_subplans(parent, [sw.subplan(ACTION, alias=alias) for alias in "abc"])
    done = [executed(client, parent, sw.Change(path="x\ny", after=b"1"), sw.Change(path="z", after=b"1"))]
    done += [executed(client, parent, sw.Change(path=path, after=b"2")) for path in ("x\ny", "z")]
    merged = record(client, parent, sw.Change(path="x\ny", after=b"1"), sw.Change(path="z", after=b"1"))
    conflicts = [("x\ny", done[1]), ("z", done[2])]
    client.plans.record_merge(parent, children=done, changeset_id=merged, conflicts=conflicts)
    client.execution(parent).resolve("z", accept="ours")
    told = shell("plan", "subplans", parent)
    heading, *children = lines_of(told.out)
    assert heading.endswith(", 1 open conflict")
    assert children == [
        f"a {done[0]} execute/complete, merged",
        f"b {done[1]} execute/complete, merged, 1 open conflict",
        r"conflict at x\ny: open",
        f"c {done[2]} execute/complete, merged",
        "conflict at z: resolved",
    ]
    found = shell("plan", "subplans", parent, "--json").json
    assert (found["open_conflicts"], found["merged.changeset_id"]) == (1, merged)
    assert found["children.1.conflicts"] == [{"path": "x\ny", "state": "open"}]
    assert found["children.2.conflicts.0.state"] == "resolved"
    # `plan show` says the same of them.
    shown = shell("plan", "show", parent)
    assert f"{done[0]} execute/complete, merged" in shown.words
    assert f"{done[1]} execute/complete, merged, 1 open conflict" in shown.words
    assert shell("plan", "show", parent, "--json").json["children"] == found["children"]


def test_no_children(shell: Shell, client: sw.Client) -> None:
    """That is no error; a script gets an empty list."""
    plan_id = new(client)
    told = shell("plan", "subplans", plan_id)
    assert (told.code, told.out, told.err) == (0, "", f"stepwell: plan {plan_id} has no children\n")
    found = shell("plan", "subplans", plan_id, "--json").json
    assert (found["subplans"], found["merged"], found["open_conflicts"], found["children"]) == (None, None, 0, [])


def test_the_keys(shell: Shell, client: sw.Client) -> None:
    """What a script may rely on."""
    parent = executing(client)
    client.plans.declare_subplans(parent, [sw.subplan(ACTION, alias="a")])
    found = shell("plan", "subplans", parent, "--json").json
    assert found.keys() == {"plan_id", "subplans", "merged", "open_conflicts", "children"}
    keys = "plan_id alias depends_on action_name phase state attempt lease error is_merged conflicts labels children"
    assert found.keys("children.0") == {*keys.split()}


def test_no_such_plan(shell: Shell) -> None:
    told = shell("plan", "subplans", "01M000")
    assert (told.code, told.out) == (1, "")
