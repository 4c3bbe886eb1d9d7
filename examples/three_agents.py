"""Three agent processes repair a shop: they share its context, each works in a copy, and one plan applies it all."""

import sys

import stepwell as sw

FIXES = {"rounding": ("round(total)", "round(total, 2)"), "tax": ("TAX = 0.19", "TAX = 0.2"), "name": ("Totl", "Total")}


def agent(address: str, plan_id: str, live: str) -> None:
    with sw.connect(address, projects=["shop"]) as client:

        def run(plan: sw.Plan, context: sw.WorkContext) -> None:
            old, new = FIXES[plan.description]
            answer = client.assemble(sw.ContextRequest(query=old, projects=["shop"], budget_tokens=1000))
            with context.workspace(live) as tree:
                for path in {tree / fragment.source for fragment in answer.fragments}:
                    path.write_text(path.read_text().replace(old, new))

        client.plans.work_on(plan_id, run)


with sw.Runtime.start() as runtime, runtime.client(projects=["shop"]) as client:
    client.ingest(live := sys.argv[1])
    for name in ("repair", *FIXES):
        client.plans.create_action(
            name, description=name, definition_of_done="repaired", strategy_actor="agent", execution_actor="agent"
        )
    plan = client.plans.begin("repair", projects=["shop"])
    client.plans.declare_subplans(plan.plan_id, [sw.subplan(name, alias=name) for name in FIXES], retries=1)
    list(runtime.executor(3).map(agent, [runtime.address] * 3, [plan.plan_id] * 3, [live] * 3))
    context = client.execution(plan.plan_id)
    context.merge_children()
    client.plans.complete_execute(plan.plan_id)
    context.apply(live)
