"""A tree, and plans that are applied to it."""

from __future__ import annotations

import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from behave import fixture, given, then, use_fixture, when
from behave.runner import Context

import stepwell as sw
from tests.support.features import work
from tests.support.features.outcomes import no_errors
from tests.support.features.work import PROJECT

CHANGED = ["a.txt", "script"]
FAILS = sw.Validation("tests", ("sh", "-c", "echo 1 failed; exit 1"))


@fixture
def tree(context: Context) -> Iterator[None]:
    context.above = Path(tempfile.mkdtemp())
    context.root = context.above / "root"
    context.root.mkdir()
    (context.root / "a.txt").write_text("old\n")
    (context.root / "script").write_bytes(b"\x00\xff")
    (context.root / "name with\nnewline").write_text("moved\n")
    (context.root / "link").symlink_to("a.txt")
    (context.root / "empty").mkdir()
    context.found = seen(context.root)
    yield
    shutil.rmtree(context.above)


@fixture
def capturing(context: Context) -> Iterator[None]:
    with context.execution.capture(context.root, tool="agent"):
        yield


def seen(root: Path) -> dict[str, tuple[int, bytes]]:
    """Everything in a tree, but for what transactions keep in it."""
    found: dict[str, tuple[int, bytes]] = {}
    for path in sorted(root.rglob("*")):
        if ".stepwell" not in path.parts:
            mode = path.lstat().st_mode
            body = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            found[str(path.relative_to(root))] = (mode if stat.S_ISREG(mode) else stat.S_IFMT(mode), body)
    return found


def edit(root: Path) -> None:
    (root / "a.txt").write_text("new\n")
    (root / "script").chmod(0o755)
    (root / "name with\nnewline").rename(root / "renamed")
    (root / "link").unlink()


def record(context: Context, at: Path, validations: Sequence[sw.Validation] = ()) -> None:
    """A plan that was executed: what was edited is what it changed."""
    client: sw.Client = context.services
    action = work.create_action(client, "local/edit", "edits files")
    plan_id = client.plans.use_action(action.name, projects=[PROJECT], validations=validations).plan_id
    client.plans.start_strategize(plan_id)
    client.plans.proceed(plan_id)
    context.execution = client.execution(plan_id)
    with context.execution.capture(at):
        edit(at)
    client.plans.complete_execute(plan_id)
    context.recorded = seen(at)


def begin(context: Context, name: str) -> sw.PlanExecutionContext:
    """The context of a plan that executes."""
    client: sw.Client = context.services
    action = work.create_action(client, f"local/{name}", "works in a tree")
    return client.execution(client.plans.begin(action, projects=[PROJECT]).plan_id)


def spoil(root: Path, count: int) -> None:
    for name in CHANGED[:count]:
        (root / name).write_text("theirs\n")


def attempt(context: Context, act: partial[sw.Plan]) -> None:
    context.refusal = None
    try:
        context.plan = act()
    except sw.Refused as refusal:
        context.refusal = refusal


@given("a tree of files, links and empty directories")
def step_tree(context: Context) -> None:
    use_fixture(tree, context)


@given("a plan that was recorded from a copy of it")
def step_recorded(context: Context) -> None:
    record(context, shutil.copytree(context.root, context.above / "copy", symlinks=True))


@given("a plan that was recorded from a copy of it, with a validation that fails")
def step_recorded_validated(context: Context) -> None:
    record(context, shutil.copytree(context.root, context.above / "copy", symlinks=True), [FAILS])


@given("a plan that was recorded from the tree itself")
def step_recorded_in_place(context: Context) -> None:
    record(context, context.root)


@given("{count:d} plans that are recorded in workspaces of the tree at the same time")
def step_workspaces(context: Context, count: int) -> None:
    context.executions = [begin(context, f"copy-{number}") for number in range(count)]
    with ExitStack() as stack:
        context.workspaces = [stack.enter_context(each.workspace(context.root)) for each in context.executions]
        for number, path in enumerate(context.workspaces):
            (path / f"own-{number}").write_text("new\n")


@given("a plan that is capturing the tree")
def step_capturing(context: Context) -> None:
    context.execution = begin(context, "first")
    use_fixture(capturing, context)


@when("another plan captures a directory in it")
def step_captured_twice(context: Context) -> None:
    context.refusal = None
    try:
        with begin(context, "second").capture(context.root / "empty"):
            pass
    except sw.Refused as refusal:
        context.refusal = refusal


@when("the plans are applied one after the other")
def step_apply_each(context: Context) -> None:
    for each in context.executions:
        context.services.plans.complete_execute(each.plan_id)
        each.apply(context.root)


@given("somebody changed {count:d} files that the plan would change")
@when("somebody changes {count:d} files that the plan has changed")
def step_spoiled(context: Context, count: int) -> None:
    spoil(context.root, count)
    context.found = seen(context.root)


@when("the plan is applied")
def step_apply(context: Context) -> None:
    attempt(context, partial(context.execution.apply, context.root))


@when("the plan is rolled back")
def step_roll_back(context: Context) -> None:
    attempt(context, partial(context.execution.rollback, context.root))


@when("{callers:d} threads apply the plan at the same moment")
def step_apply_in_threads(context: Context, callers: int) -> None:
    context.outcomes = context.schedule.run([partial(context.execution.apply, context.root)] * callers)


@then("the tree is what was recorded")
def step_is_recorded(context: Context) -> None:
    assert seen(context.root) == context.recorded, context.refusal


@then("the tree is as it was found")
def step_is_found(context: Context) -> None:
    assert seen(context.root) == context.found


@then("the plan is applied, with {count:d} paths proven")
def step_applied(context: Context, count: int) -> None:
    assert context.plan.applied is not None
    assert (str(context.plan.position), context.plan.applied.paths) == ("apply/applied", count)
    assert context.plan.applied.root == str(context.root.resolve())


@then("it is a TreeConflict that names these {count:d} files")
def step_conflict(context: Context, count: int) -> None:
    assert isinstance(context.refusal, sw.TreeConflict), repr(context.refusal)
    assert context.refusal.details["paths"] == CHANGED[:count]


@then("it is a TreeInUse that names the first plan and its tool")
def step_in_use(context: Context) -> None:
    assert isinstance(context.refusal, sw.TreeInUse), repr(context.refusal)
    assert context.refusal.details["plan_id"] == context.execution.plan_id
    assert context.refusal.details["tool"] == "agent"


@then("each plan has its own file alone")
def step_own_files(context: Context) -> None:
    changed = [[*each.net_changes()] for each in context.executions]
    assert changed == [[f"own-{number}"] for number in range(len(changed))]


@then("the tree has the file of each plan")
def step_all_files(context: Context) -> None:
    added = seen(context.root).keys() - context.found.keys()
    assert added == {f"own-{number}" for number in range(len(context.executions))}


@then("no workspace is left")
def step_no_workspace(context: Context) -> None:
    assert [path for path in context.workspaces if path.exists()] == []


@then("the plan waits to be applied")
def step_waits(context: Context) -> None:
    plan = context.services.plans.get_plan(context.execution.plan_id)
    assert str(plan.position) == "apply/queued"


@then("the plan is constrained, with what the validation wrote")
def step_constrained(context: Context) -> None:
    plan = context.services.plans.get_plan(context.execution.plan_id)
    assert plan.constrained is not None
    assert [each.output for each in plan.constrained.validations] == ["1 failed\n"]


@then("it is a ValidationFailed with the command, its exit code and its output")
def step_validation_failed(context: Context) -> None:
    failure = context.refusal
    assert isinstance(failure, sw.ValidationFailed), repr(failure)
    assert (failure.command, failure.exit_code, failure.output) == (FAILS.command, 1, "1 failed\n")


@then("it is a AlreadyRolledBack that says to use the action again")
def step_plan_rolled_back(context: Context) -> None:
    assert isinstance(context.refusal, sw.AlreadyRolledBack), repr(context.refusal)
    assert "use action 'local/edit' again" in context.refusal.message


@then("the plan is rolled back")
def step_rolled_back(context: Context) -> None:
    assert context.refusal is None, context.refusal
    assert context.plan.rolled_back is not None


@then("all of them are told the same")
def step_same(context: Context) -> None:
    plans = no_errors(context.outcomes)
    context.plan, context.refusal = plans[0], None
    assert plans[0].applied is not None
    assert plans == [plans[0]] * len(plans)
