"""`stepwell plan show`: whatever an operator asks."""

import stepwell as sw
from stepwell.domain.tiers.body_refs import digest_of
from tests.support.cli.plans import ACTION, PROJECT, Shell, executing, new, record

WILD = "\x1b[2J\x9b\u202e"
TESTS = sw.Validation("tests", ("sh", "-c", f"{WILD} test"))
STYLE = sw.Validation("style", ("ruff", "check"), required=False)


def result(
    validation: sw.Validation, exit_code: int | None, output: str, *, timed_out: bool = False
) -> sw.ValidationResult:
    return sw.ValidationResult(validation.name, validation.command, exit_code, timed_out, 1_500, output)


def applying(client: sw.Client) -> str:
    """A plan with a change, that this client applies."""
    plan_id = executing(client, [TESTS, STYLE])
    record(client, plan_id, sw.Change(path="a", after=b"a"))
    client.plans.complete_execute(plan_id)
    client.plans.apply_plan(plan_id)
    client.plans.start_apply(plan_id)
    return plan_id


def test_who_works_on_it(shell: Shell, client: sw.Client) -> None:
    """Where it stands, whose lease it is and until when, which changesets count, what went wrong."""
    plan_id = executing(client)
    record(client, plan_id, sw.Change(path="a", after=b"a"))
    client.plans.fail_execute(plan_id, f"it broke {WILD}")
    client.plans.retry_plan(plan_id)
    lease = client.plans.start_execute(plan_id).lease
    counting = record(client, plan_id, sw.Change(path="a", after=b"b"), sw.Change(path="b", after=b"b"))
    assert lease is not None
    told = shell("plan", "show", plan_id)
    assert told.code == 0
    assert "stands at execute/processing, attempt 2, version" in told.words
    assert f"lease session {client.session_id}, until " in told.words
    assert f" s from now), token {lease.token}" in told.words
    assert "closed 1 1 " in told.words
    assert f"{counting} closed 2 2 " in told.words
    assert told.words.count(" no ") == told.words.count(" yes ") == 1
    assert r"it broke \x1b[2J\x9b\u202e" in told.words
    assert not {"\x1b", "\x9b", "\u202e"} & {*told.out}


def test_what_it_is(shell: Shell, client: sw.Client) -> None:
    """What was asked for, of whom, and what has to stay true."""
    plan = client.plans.use_action(
        ACTION,
        projects=[PROJECT, sw.ProjectLink("docs", read_only=True)],
        arguments={"what": f"a\n{WILD}"},
        invariants=["nothing is lost"],
    )
    told = shell("plan", "show", plan.plan_id)
    assert r"arguments what=a\n\x1b[2J" in told.words
    assert r"description change a \x1b[2J" in told.words
    assert "projects shop, docs (read only)" in told.words
    assert "invariant nothing is lost (plan)" in told.words
    assert "stands at strategize/queued" in told.words
    assert "lease" not in told.words


def test_one_that_came_back(shell: Shell, client: sw.Client) -> None:
    """How often it was reverted; what it decided is counted."""
    plan_id = executing(client)
    client.plans.record_decision(plan_id, question="which?", choice="this")
    client.plans.revert_plan(plan_id, "wrong way")
    words = shell("plan", "show", plan_id).words
    assert "reverted 1 time decisions 1" in words
    assert "reverted: wrong way" in words


def test_one_that_may_change_nothing(shell: Shell, client: sw.Client) -> None:
    plan_id = client.plans.use_action(ACTION, projects=[sw.ProjectLink(PROJECT, read_only=True)]).plan_id
    assert "read only it may not change anything" in shell("plan", "show", plan_id).words


def test_children(shell: Shell, client: sw.Client) -> None:
    """As a tree, with where each stands, what it waits for, and its own."""
    parent = executing(client)
    specs = [
        sw.subplan(ACTION, alias="first"),
        sw.subplan(ACTION, alias="second", depends_on=["first"]),
    ]
    client.plans.declare_subplans(parent, specs, mode=sw.SubplanMode.DEPENDENCY_ORDERED, retries=1)
    ready = client.plans.start_ready(parent, straight=True).plan
    assert ready is not None
    client.plans.fail_execute(ready.plan_id, "once")
    client.plans.start_execute(ready.plan_id)
    client.plans.declare_subplans(ready.plan_id, [sw.subplan(ACTION, alias="grandchild")])
    told = shell("plan", "show", parent)
    assert f"first {ready.plan_id} execute/processing, attempt 2" in told.words
    assert "strategize/queued, after first" in told.words
    lines = told.out.splitlines()
    depth = {name: line.index(name) for name in ("first ", "grandchild") for line in lines if f" {name}" in line}
    assert depth["grandchild"] > depth["first "]
    assert f"parent {parent}" in shell("plan", "show", ready.plan_id).words
    facts = shell("plan", "show", parent, "--json").json
    assert facts["children.0.children.0.alias"] == "grandchild"
    assert (facts["children.0.error"], facts["children.1.depends_on"]) == ("once", ["first"])


def test_conflicts(shell: Shell, client: sw.Client) -> None:
    """By path, with each side, and whether somebody has chosen."""
    parent = executing(client)
    client.plans.declare_subplans(parent, [sw.subplan(ACTION, alias="a"), sw.subplan(ACTION, alias="b")])
    done: list[str] = []
    for body in (b"one", b"two"):
        child = client.plans.start_ready(parent, straight=True).plan
        assert child is not None
        record(client, child.plan_id, sw.Change(path="x\ny", after=body), sw.Change(path="z", after=body))
        done.append(client.plans.complete_execute(child.plan_id).plan_id)
    merged = record(client, parent, sw.Change(path="x\ny", after=b"one"), sw.Change(path="z", after=b"one"))
    conflicts = [("x\ny", done[1]), ("z", done[1])]
    client.plans.record_merge(parent, children=done, changeset_id=merged, conflicts=conflicts)
    client.execution(parent).resolve("z", accept="ours")
    words = shell("plan", "show", parent).words
    one, two = (digest_of(body).hex()[:12] for body in (b"one", b"two"))
    assert rf"x\ny b open nothing {one} {two}" in words
    assert f"z b resolved: accept_ours nothing {one} {two}" in words


def test_applied_and_rolled_back(shell: Shell, client: sw.Client) -> None:
    """How it ended, with what its validations said at the end, and how that was undone."""
    plan_id = applying(client)
    assert "not run" in shell("plan", "show", plan_id).words
    output = "".join(f"line {number}\n" for number in range(20)) + f"done {WILD}\n"
    results = [result(TESTS, 0, output), result(STYLE, None, "", timed_out=True)]
    client.plans.complete_apply(plan_id, proof={"a": sw.Digest(digest_of(b"a"))}, validations=results, root=f"/r{WILD}")
    told = shell("plan", "show", plan_id)
    assert r"attempt 1: 1 path in /r\x1b[2J" in told.words
    assert r"tests sh -c '\x1b[2J\x9b\u202e test' yes ended with 0 after 1.5 s" in told.words
    assert "style ruff check no stopped after 1.5 s" in told.words
    assert r"line 19 done \x1b[2J" in told.words
    assert "line 10\n" not in told.out
    client.plans.roll_back(plan_id, "never mind", proof={"a": None})
    assert "1 path: never mind" in shell("plan", "show", plan_id).words
    assert "apply/applied, rolled back" in shell("plan", "show", plan_id).words


def test_constrained(shell: Shell, client: sw.Client) -> None:
    """Why it is not applied."""
    plan_id = applying(client)
    results = [result(TESTS, 1, "1 failed\n"), result(STYLE, None, "")]
    client.plans.constrain_apply(plan_id, "tests failed", validations=results)
    words = shell("plan", "show", plan_id).words
    assert "attempt 1: tests failed" in words
    assert "yes ended with 1 after 1.5 s" in words
    assert "no did not end by itself, or could not be started" in words
    assert "end of the output of tests 1 failed" in words


def test_the_keys(shell: Shell, client: sw.Client) -> None:
    """What a script may rely on."""
    told = shell("plan", "show", new(client), "--json")
    assert told.json.keys() == {"plan", "changesets", "children"}
    assert {*sw.Plan.__struct_fields__} == told.json.keys("plan")
