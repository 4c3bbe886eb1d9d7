"""A team of agents on a repository: a plan, two subplans, a merge, a validated apply, and a rollback."""

import sys
from pathlib import Path

import stepwell as sw

FIXES = {"rounding": ("round(total)", "round(total, 2)"), "tax": ("TAX = 0.19", "TAX = 0.2")}
CHECK = "import cart; assert cart.price([1, 2]) == 3.6"


def agent(address: str, plan_id: str, root: str) -> None:
    """Take the children of a plan that are ready, one at a time, and edit a private copy of the repository."""
    with sw.connect(address, projects=["shop"]) as client:

        def run(plan: sw.Plan, context: sw.WorkContext) -> None:
            old, new = FIXES[plan.description]
            with context.workspace(root) as copy:
                cart = copy / "cart.py"
                cart.write_text(cart.read_text().replace(old, new))

        client.plans.work_on(plan_id, run)


root = Path(sys.argv[1])
before = (root / "cart.py").read_text()
with sw.Runtime.start(workers=0) as runtime, runtime.client(projects=["shop"]) as client:
    for name in ("repair", *FIXES):
        client.plans.create_action(
            name, description=name, definition_of_done="repaired", strategy_actor="agent", execution_actor="agent"
        )
    check = sw.Validation(name="price", command=(sys.executable, "-B", "-c", CHECK))
    plan = client.plans.begin("repair", projects=["shop"], validations=[check])
    client.plans.declare_subplans(plan.plan_id, [sw.subplan(name, alias=name) for name in FIXES])
    list(runtime.executor(2).map(agent, [runtime.address] * 2, [plan.plan_id] * 2, [str(root)] * 2))

    context = client.execution(plan.plan_id)
    merged = context.merge_children()
    print("merged, open conflicts:", len(merged.open_conflicts))
    client.plans.complete_execute(plan.plan_id)
    print(context.plan_diff(), end="")

    done = context.apply(root).applied
    assert done is not None
    print("applied:", done.paths, "path, validated by", [each.name for each in done.validations])
    context.rollback(root)
    print("rolled back:", (root / "cart.py").read_text() == before)
