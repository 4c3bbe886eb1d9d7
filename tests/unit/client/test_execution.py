"""Execution contexts and plans, through the client."""

import subprocess
from pathlib import Path
from typing import cast

import pytest

import stepwell as sw
from stepwell import limits
from tests.support.client.sessions import act, executing
from tests.support.processes import in_forked_child


@pytest.fixture
def context(client: sw.Client) -> sw.PlanExecutionContext:
    """A context of a plan that is executing."""
    project = (client.projects or ("",))[0]
    return client.execution(executing(client, f"act-{project.lower()}"[:60], project).plan_id)


def test_diff_shows_every_operation(context: sw.PlanExecutionContext) -> None:
    """Created, modified, moved and deleted files, text without a last newline, and what is no text."""
    changeset_id = context.start_changeset()
    for change in (
        sw.Change(path="new.txt", after=b"one\n", tool="editor"),
        sw.Change(path="new.txt", before=b"one\n", after=b"one\ntwo", tool="editor"),
        sw.Change(path="moved.txt", source_path="new.txt", before=b"one\ntwo", after=b"one\ntwo"),
        sw.Change(path="moved.txt", before=b"one\ntwo", after=None),
        sw.Change(path="image", after=b"\x00\x01"),
        sw.Change(path="latin", after=b"\xff"),
        sw.Change(path="elsewhere", after=sw.Digest.of(b"not sent")),
    ):
        context.record_change(change)
    assert context.close_changeset(changeset_id).state is sw.ChangesetState.CLOSED
    diff = context.diff(changeset_id)
    assert "--- /dev/null\n+++ b/new.txt" in diff
    assert "+two\n\\ No newline at end of file" in diff
    assert "rename from new.txt\nrename to moved.txt" in diff
    assert "--- a/moved.txt\n+++ /dev/null" in diff
    for binary in ("image", "latin", "elsewhere"):
        assert f"Binary files /dev/null and b/{binary} differ" in diff
    summary = context.summary(changeset_id)
    assert (summary.entries, summary.by_tool) == (7, {"editor": 2, "unknown": 5})
    assert summary.by_operation[sw.Operation.CREATE] == 4
    assert summary.paths == ("new.txt", "moved.txt", "image", "latin", "elsewhere")


def test_diff_is_one_that_git_applies(context: sw.PlanExecutionContext, tmp_path: Path) -> None:
    """Lines end at newlines alone, empty files and names with newlines in them included."""
    before = b"one\x0ctwo\r\nthree\xe2\x80\xa8four\n"
    (tmp_path / "old.txt").write_bytes(before)
    changes = (
        sw.Change(path="old.txt", before=before, after=before + b"five"),
        sw.Change(path="empty", after=b""),
        sw.Change(path="a\n+++ b/evil", after=b"x\n"),
    )
    changeset_id = context.start_changeset()
    for change in changes:
        context.record_change(change)
    diff = context.diff(changeset_id).encode()
    subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], input=diff, cwd=tmp_path, check=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == {
        "old.txt": before + b"five",
        "empty": b"",
    }
    assert (tmp_path / "a\n+++ b" / "evil").read_bytes() == b"x\n"


def test_forked_child_has_a_context_of_its_own(client: sw.Client, context: sw.PlanExecutionContext) -> None:
    """What a child opens is not where its parent's changes go."""
    changeset_id = context.start_changeset()
    lease = client.plans.get_plan(context.plan_id).lease
    assert lease is not None

    def open_another() -> None:
        context.lease = lease.token
        assert context.start_changeset() != changeset_id

    in_forked_child(open_another)
    assert context.record_change(sw.Change(path="a", after=b"x")).changeset_id == changeset_id


def test_entries_follow_the_pages(client: sw.Client, context: sw.PlanExecutionContext) -> None:
    """More entries than a page has come as one sequence."""
    changeset_id = context.start_changeset()
    count = limits.PAGE_ROWS_MAX + 5
    for start in range(0, count, 500):
        with client.batch() as batch:
            for number in range(start, min(start + 500, count)):
                batch.execution(context).record_change(sw.Change(path=str(number), after=b"x"))
    assert [entry.path for entry in context.entries(changeset_id)] == [str(number) for number in range(count)]


def test_changesets_nest_and_end(context: sw.PlanExecutionContext) -> None:
    """The most recent open one takes the change; a closed or aborted one takes none."""
    outer, inner = context.start_changeset(), context.start_changeset()
    assert context.record_change(sw.Change(path="a", after=b"")).changeset_id == inner
    assert context.record_change(sw.Change(path="b", after=b""), changeset_id=outer).changeset_id == outer
    assert context.abort_changeset(inner).state is sw.ChangesetState.ABORTED
    assert context.record_change(sw.Change(path="c", after=b"")).changeset_id == outer
    with pytest.raises(sw.ChangesetClosed):
        context.record_change(sw.Change(path="d", after=b""), changeset_id=inner)
    assert context.get(outer).entry_count == 2
    assert [each.changeset_id for each in context.list().changesets] == [outer, inner]


def test_contexts_of_one_plan_do_not_see_each_other(client: sw.Client, context: sw.PlanExecutionContext) -> None:
    """A changeset that one context opened is not "the most recent" of another."""
    context.start_changeset()
    other = client.execution(context.plan_id)
    with pytest.raises(sw.NoActiveChangeset):
        other.record_change(sw.Change(path="a", after=b""))
    with pytest.raises(sw.InvalidArgument, match=r"takes a stepwell.Change"):
        other.record_change(cast("sw.Change", "a"))


def test_plan_walks_its_whole_way(client: sw.Client) -> None:
    """Every method of the service, once, in an order in which it is legal."""
    plans, project = client.plans, (client.projects or ("",))[0]
    name = act(client, "whole-way")
    assert plans.get_action("whole-way").name == name
    assert name in [each.name for each in plans.list_actions(limit=1_000).actions]
    plan = plans.use_action(name, projects=[sw.ProjectLink(project)], invariants=["stay calm"])
    plan_id = plan.plan_id
    plans.start_strategize(plan_id)
    assert plans.renew_lease(plan_id).lease is not None
    assert str(plans.fail_strategize(plan_id, "oops").position) == "strategize/errored"
    assert plans.retry_plan(plan_id).attempt == 2
    plans.start_strategize(plan_id)
    decision = plans.record_decision(plan_id, question="how", choice="so", checkpoint=True)
    assert plans.list_decisions(plan_id).decisions == (decision,)
    plans.complete_strategize(plan_id)
    plans.execute_plan(plan_id)
    plans.start_execute(plan_id)
    declared = plans.declare_subplans(plan_id, [sw.subplan(name, alias="child")])
    assert declared.subplans is not None
    (child,) = declared.subplans.children
    plans.cancel_plan(child.plan_id, "not needed")
    assert plans.list_plans(parent_plan_id=plan_id).plans[0].state is sw.PlanState.CANCELLED
    plans.fail_execute(plan_id, "oops")
    plans.revert_plan(plan_id, "again")
    assert str(plans.get_plan(plan_id).position) == "strategize/queued"
    plans.start_strategize(plan_id)
    plans.complete_strategize(plan_id)
    plans.execute_plan(plan_id)
    plans.start_execute(plan_id)
    context = client.execution(plan_id)
    changeset_id = context.start_changeset()
    context.record_change(sw.Change(path="a", after=b"1"))
    context.close_changeset(changeset_id)
    plans.complete_execute(plan_id)
    plans.apply_plan(plan_id)
    plans.start_apply(plan_id)
    plans.fail_apply(plan_id, "disk full")
    plans.retry_plan(plan_id)
    plans.start_apply(plan_id)
    with pytest.raises(sw.NotProven):
        plans.complete_apply(plan_id, proof={"a": None})
    assert str(plans.complete_apply(plan_id, proof={"a": sw.Digest.of(b"1")}).position) == "apply/applied"
    assert plans.archive_action(name).state is sw.ActionState.ARCHIVED
    with pytest.raises(sw.ActionUnavailable):
        plans.use_action(name, projects=project)


def test_begun_in_one_call(client: sw.Client) -> None:
    """From an action, or its name, to recording; also in a transaction, which takes all of it back if it is refused."""
    plans, project = client.plans, (client.projects or ("p",))[0]
    action = plans.create_action(
        f"begin-{project}".lower()[:60],
        description="",
        definition_of_done="",
        strategy_actor="planner",
        execution_actor="coder",
    )
    for given in (action, action.name):
        plan = plans.begin(given, projects=[project])
        assert str(plan.position) == "execute/processing"
        context = client.execution(plan.plan_id)
        context.close_changeset(context.start_changeset())
        assert plans.complete_execute(plan.plan_id).executed_attempt == 1
    with client.transaction() as transaction:
        pending = transaction.plans.begin(action, projects=[project])
    assert str(plans.complete_execute(pending.result().plan_id).position) == "execute/complete"
    uses = plans.get_action(action.name).uses
    with pytest.raises(sw.TransactionAborted), client.transaction() as transaction:
        transaction.plans.begin(action, projects=[project])
        transaction.plans.begin("no-such-action", projects=[project])
    with pytest.raises(sw.NotFound):
        plans.begin("no-such-action", projects=[project])
    assert plans.get_action(action.name).uses == uses == 3


def test_constrained_apply(client: sw.Client) -> None:
    """A validation that failed ends the application, with its reason."""
    project = (client.projects or ("",))[0]
    plan_id = executing(client, "constrained", project).plan_id
    client.plans.complete_execute(plan_id)
    client.plans.apply_plan(plan_id)
    client.plans.start_apply(plan_id)
    assert str(client.plans.constrain_apply(plan_id, "tests fail").position) == "apply/constrained"


def test_constrained_apply_keeps_what_was_run(client: sw.Client) -> None:
    """The results of validations are with the plan, for whoever looks later."""
    project = (client.projects or ("",))[0]
    tests, lint = sw.Validation("tests", ("pytest",)), sw.Validation("lint", ("ruff",), required=False)
    plans = client.plans
    plans.create_action(
        "validated",
        description="",
        definition_of_done="",
        strategy_actor="planner",
        execution_actor="coder",
        validations=[tests],
    )
    plan = plans.use_action("validated", projects=[project], validations=[lint])
    assert (plan.validations, plans.get_action("validated").validations) == ((tests, lint), (tests,))
    plans.start_strategize(plan.plan_id)
    plans.proceed(plan.plan_id)
    plans.complete_execute(plan.plan_id)
    plans.apply_plan(plan.plan_id)
    plans.start_apply(plan.plan_id)
    with pytest.raises(sw.NotValidated):
        plans.complete_apply(plan.plan_id, proof={})
    failed = sw.ValidationResult.of(tests, 1, 20, b"1 failed")
    plans.constrain_apply(plan.plan_id, "tests fail", validations=[failed])
    constrained = plans.get_plan(plan.plan_id).constrained
    assert constrained is not None
    assert (constrained.reason, constrained.validations) == ("tests fail", (failed,))


def test_applied_and_rolled_back(client: sw.Client, context: sw.PlanExecutionContext) -> None:
    """What a plan comes to, its end, and its undoing; each outcome is kept, and given again."""
    plans, plan_id = client.plans, context.plan_id
    for change in (
        sw.Change(path="a", before=b"1", after=b"2", before_mode=0o100644, after_mode=0o100755),
        sw.Change(path="b", source_path="a", before=b"2", after=b"2"),
    ):
        changeset_id = context.start_changeset()
        context.record_change(change)
        context.close_changeset(changeset_id)
    aborted = context.start_changeset()
    context.record_change(sw.Change(path="c", after=b"3"))
    context.abort_changeset(aborted)
    net = context.net_changes()
    assert [(each.path, each.after and each.after.mode) for each in net.values()] == [("a", None), ("b", 0o100755)]
    assert bytes(context.body(sw.Digest.of(b"1").value)) == b"1"
    with pytest.raises(sw.NotFound, match="nothing refers to that body"):
        context.body(sw.Digest.of(b"never seen").value)
    plans.complete_execute(plan_id)
    assert context.net_changes() == net
    plans.apply_plan(plan_id)
    started = plans.start_apply(plan_id)
    assert started.lease is not None
    proof = {path: sw.Digest(each.after.digest) if each.after else None for path, each in net.items()}
    plan = plans.complete_apply(plan_id, proof=proof, root="/somewhere")
    assert plan.applied is not None
    assert (plan.applied.paths, plan.applied.root) == (2, "/somewhere")
    assert plans.complete_apply(plan_id, proof=proof, lease=started.lease.token) == plan
    assert plans.list_plans(rolled_back=True).plans == ()
    with pytest.raises(sw.NotProven):
        plans.roll_back(plan_id, proof=proof)
    undone = plans.roll_back(plan_id, "not what we wanted", proof={"a": sw.Digest.of(b"1"), "b": None})
    assert undone.rolled_back is not None
    assert plans.roll_back(plan_id, "again", proof={}) == undone
    assert [each.plan_id for each in plans.list_plans(rolled_back=True).plans] == [plan_id]


def test_changesets_follow_the_pages(context: sw.PlanExecutionContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a page has come as one sequence."""
    ids = [context.start_changeset() for _ in range(5)]
    monkeypatch.setattr(limits, "PAGE_ROWS_MAX", 2)
    assert [each.changeset_id for each in context.changesets()] == ids
