"""A small application, as a new user writes one: three agents in three processes mend three bugs of a shop.

The program starts a runtime that keeps its state, reads the shop, and plans one child for each bug. Each agent is a
process of its own: it asks where its bug is, edits a copy of the shop, and has its changes recorded. The program merges
the children, applies the result to the shop, and proves it by a validation.

    python application.py SHOP        mends the directory SHOP
    python application.py SHOP ADDRESS PLAN        is one agent, which the program itself starts
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import stepwell as sw

BUGS = {
    "rounding": ("round(x)", "round(x, 2)"),
    "tax": ("TAX = 0.16", "TAX = 0.19"),
    "greeting": ('"Helo"', '"Hello"'),
}
CHECK = 'from shop import TAX, greet, total; assert (TAX, greet(), total([1.005, 2])) == (0.19, "Hello", 3.0)'


def mend(shop: Path) -> sw.Plan:
    """Have three agents mend the shop, and return the plan, which is applied."""
    with sw.Runtime.start(data_dir=shop.with_name("state")) as runtime, runtime.client(projects=["shop"]) as client:
        client.ingest(shop, project="shop")
        client.plans.create_action(
            "fix",
            description="Fix the {bug}",
            definition_of_done="The shop counts and greets as it should",
            strategy_actor="planner",
            execution_actor="coder",
            arguments=[sw.Argument(name="bug", default="bugs", required=False)],
        )
        check = sw.Validation(name="check", command=(sys.executable, "-c", CHECK))
        plan = client.plans.use_action("fix", projects=["shop"], validations=[check])
        client.plans.start_strategize(plan.plan_id)
        client.plans.proceed(plan.plan_id)
        children = [sw.subplan("fix", alias=bug, arguments={"bug": bug}) for bug in BUGS]
        client.plans.declare_subplans(plan.plan_id, children, max_parallel=3)

        command = [sys.executable, __file__, str(shop), runtime.address, plan.plan_id]
        agents = [subprocess.Popen(command) for _ in BUGS]
        assert [agent.wait() for agent in agents] == [0] * len(BUGS)

        context = client.execution(plan.plan_id)
        merged = context.merge_children()
        assert not merged.open_conflicts
        client.plans.complete_execute(plan.plan_id)
        return context.apply(shop)


def work(shop: Path, address: str, parent_plan_id: str) -> None:
    """Be an agent: mend bugs of the shop until there is none left."""
    with sw.connect(address, projects=["shop"]) as client:

        def fix(plan: sw.Plan, context: sw.WorkContext) -> None:
            before, after = BUGS[str(plan.arguments["bug"])]
            answer = client.assemble(sw.ContextRequest(projects=["shop"], query=before, budget_tokens=500))
            source = next(each.source for each in answer.fragments if before in each.text)
            scratch = shutil.copytree(shop, shop.with_name(f"scratch-{plan.plan_id}"))
            with context.capture(scratch):
                file = scratch / source
                file.write_text(file.read_text().replace(before, after))
            shutil.rmtree(scratch)

        client.plans.work_on(parent_plan_id, fix)


if __name__ == "__main__":
    match sys.argv[1:]:
        case [directory]:
            print(mend(Path(directory)).state)
        case [directory, address, parent_plan_id]:
            work(Path(directory), address, parent_plan_id)
        case _:
            sys.exit(str(__doc__))
