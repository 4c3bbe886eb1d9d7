"""Plans that have something to apply: recorded from a tree, and executed."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import stepwell as sw
from tests.support.trees import EMPTY_DIRECTORY, Tree, build, file, link

BEFORE: Tree = {
    "same": file(b"same"),
    "changed": file(b"old"),
    "mode": file(b"x", 0o644),
    "gone/deep/file": file(b"gone"),
    "link": link(b"/etc/passwd"),
    "old name": file(b"moved\n" * 9),
    "empty": EMPTY_DIRECTORY,
}
AFTER: Tree = {
    "same": file(b"same"),
    "changed": file(b"new"),
    "mode": file(b"x", 0o755),
    "link": link(b"changed"),
    "new name": file(b"moved\n" * 9),
    "binary": file(bytes(range(256)), 0o400),
    "new/empty": EMPTY_DIRECTORY,
}
_numbers = count()


def executing(client: sw.Client, validations: Sequence[sw.Validation] = ()) -> sw.PlanExecutionContext:
    """A context of a plan that this client executes."""
    plans = client.plans
    action = plans.create_action(
        f"plan-{next(_numbers)}",
        description="",
        definition_of_done="",
        strategy_actor="planner",
        execution_actor="coder",
        validations=validations,
    )
    plan_id = plans.use_action(action.name, projects=["p"]).plan_id
    plans.start_strategize(plan_id)
    plans.proceed(plan_id)
    return client.execution(plan_id)


def executed_plan(
    client: sw.Client,
    above: Path,
    before: Tree = BEFORE,
    after: Tree = AFTER,
    validations: Sequence[sw.Validation] = (),
) -> sw.PlanExecutionContext:
    """A plan that makes one tree of another, executed, and captured in a directory of its own."""
    context = executing(client, validations)
    scratch = build(above / "scratch", before)
    with context.capture(scratch):
        change_into(scratch, after)
    client.plans.complete_execute(context.plan_id)
    return context


def change_into(root: Path, after: Tree) -> None:
    """Change the files of a directory in place, as an editor would, so that it becomes another tree."""
    for path in root.iterdir():
        if path.name != ".stepwell":
            build(path, {}).rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    fresh = build(root.with_name(f"{root.name} next"), after)
    for path in fresh.iterdir():
        path.rename(root / path.name)
    fresh.rmdir()
